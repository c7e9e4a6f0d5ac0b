"""The memory guard of a training, with its plan and memory by phase, and its reports, on demand and at an abort."""

import logging
import weakref
from collections.abc import Sequence
from contextvars import copy_context
from typing import Self

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.records import PhaseMemory
from eigen_core.config import Config
from eigen_core.generation import TrainingState, resolve_device
from eigen_core.machine.limits import device_limit, host_limits
from eigen_core.machine.memory_guard import MemoryGuard, MemoryGuardError
from eigen_core.machine.memory_report import MemoryReport, install_report_signal
from eigen_core.machine.memory_usage import PhaseUsage
from eigen_core.planning.memory_parts import peaks_of
from eigen_core.planning.run_plan import RunPlan
from eigen_core.runs.journals import write_memory_report
from eigen_core.runs.listener import Listener

logger = logging.getLogger(__name__)


class MemoryWatch:
    """Lets a `MemoryGuard` abort one training, and SIGUSR1 request reports for `listeners`; a context manager."""

    def __init__(self, config: Config, location: RunLocation, listeners: Sequence[Listener]) -> None:
        self._location = location
        self._listeners = listeners
        gpu = device_limit(resolve_device(config.device))
        self.guard = MemoryGuard(host_limits(config.memory), config.memory, device_limit=gpu)

    def __enter__(self) -> Self:
        self.guard.__enter__()
        context = copy_context()
        self._stop_listening = install_report_signal(lambda: context.copy().run(self._report_on_demand))
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_listening()
        self.guard.__exit__(*error)

    def set_plan(self, run_plan: RunPlan) -> None:
        # GPU memory of CUDA's driver and of the workers is measured as memory of other processes.
        own = peaks_of(part for part in run_plan.parts if part.device_holder == "training")
        self.guard.set_plan(
            [part.row() for part in run_plan.parts],
            {phase: peak.host for phase, peak in run_plan.peaks.items()},
            {phase: peak.device for phase, peak in own.items()},
        )

    def watch_state(self, state: TrainingState) -> None:
        """Let memory reports name the parts of `state` that hold memory, without keeping `state` alive."""
        known = weakref.ref(state)
        self.guard.set_owners(lambda: getattr(known(), "owners", {}))

    def phases_of(self, generation: int) -> tuple[PhaseMemory, ...]:
        """Return the memory of each phase of a generation, in order; retries of a phase are combined with it."""
        attempts: dict[str, list[PhaseUsage]] = {}
        for usage in self.guard.phases:
            if usage.generation == generation:
                attempts.setdefault(usage.phase, []).append(usage)
        return tuple(
            PhaseMemory(
                phase=phase,
                start_bytes=tried[0].start_bytes,
                peak_bytes=max(usage.peak_bytes for usage in tried),
                end_bytes=tried[-1].end_bytes,
                device_allocated_peak=max(usage.device_allocated_peak for usage in tried),
                device_reserved_peak=max(usage.device_reserved_peak for usage in tried),
            )
            for phase, tried in attempts.items()
        )

    def report_abort(self, error: MemoryGuardError) -> None:
        """Save the report of `error` in the run's folder, if the run exists, and send it to the listeners.

        The error loses its traceback, whose frames hold the training's state: this frees memory for saving.
        """
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self._save(error.report, error.phase)

    def _report_on_demand(self) -> None:
        report = self.guard.report("SIGUSR1 was received")
        self._save(report, report.phases[-1].phase if report.phases else "")

    def _save(self, report: MemoryReport, phase: str) -> None:
        if self._location.local.exists():
            newest = self._location.local.newest_manifest()
            generation = 1 if newest is None else newest.generation + 1
            markdown = write_memory_report(self._location, report, generation, phase)
            logger.info("memory: %s. The report is %s", report.reason, markdown)
        for listener in self._listeners:
            listener.memory_reported(report)
