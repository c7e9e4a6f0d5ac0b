"""The memory guard of a training: its phases, its reports on demand and at an abort, and the aborts of a run."""

import gc
import logging
import weakref
from collections.abc import Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from eigen_core.checkpoint.location import RunLocation
from eigen_core.checkpoint.session import RunSession
from eigen_core.common.records import PhaseMemory
from eigen_core.config import Config
from eigen_core.generation import TrainingState, resolve_device
from eigen_core.machine import (
    MemoryGuard,
    MemoryGuardError,
    MemoryReport,
    PhaseUsage,
    device_limit,
    host_limits,
    install_report_signal,
    release_free_memory,
)
from eigen_core.machine.allocation import is_exhaustion
from eigen_core.planning.plan import PHASES
from eigen_core.planning.run_plan import RunPlan
from eigen_core.training.journals import (
    GuardAbort,
    memory_key,
    remember_abort,
    require_not_blocked,
    write_memory_report,
)
from eigen_core.training.listener import Listener

logger = logging.getLogger(__name__)


class MemoryWatch:
    """Guards the memory of one training from its first line on; a context manager.

    SIGUSR1 makes a report at any time.

    Args:
        config: the run's.
        location: of the run.
        listeners: receive the reports.

    Raises:
        InputError: a limit cannot be used, or the configuration asks for a GPU and there is none.
    """

    def __init__(self, config: Config, location: RunLocation, listeners: Sequence[Listener]) -> None:
        self._config = config
        self._location = location
        self._listeners = listeners
        self.limits = host_limits(config.memory)
        of_device = device_limit(resolve_device(config.device))
        self.guard = MemoryGuard(self.limits, config.memory, device_limit=of_device)

    def __enter__(self) -> Self:
        self.guard.__enter__()
        context = copy_context()
        self._stop_listening = install_report_signal(lambda: context.copy().run(self._report_on_demand))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_listening()
        self.guard.__exit__(kind, error, traceback)

    def require_not_blocked(self, generation: int) -> None:
        """Raise `BlockedError` if the guard has aborted a generation too often."""
        require_not_blocked(self._location, self._config, self.limits, generation)

    def expect(self, run_plan: RunPlan) -> None:
        """Pass the predicted memory of each phase to the guard."""
        plan = run_plan.plan
        self.guard.set_plan(
            plan.part_rows(),
            {phase: plan.host_bytes(phase) for phase in PHASES},
            # GPU memory of CUDA's driver and of the workers counts as that of others.
            {phase: plan.held_on_device(phase, "training") for phase in PHASES},
        )

    def watch_state(self, state: TrainingState) -> None:
        """Let reports name the parts of a run that hold memory, without keeping them alive."""
        known = weakref.ref(state)

        def owners() -> dict[str, object]:
            held = known()
            return {} if held is None else held.owners

        self.guard.set_owners(owners)

    def add_uploads(self, session: RunSession) -> None:
        """Add the state of the uploads to the reports."""
        self.guard.add_section("Uploads", lambda: str(session.uploads() or "There are none: the store is a folder."))

    def phases_of(self, generation: int) -> tuple[PhaseMemory, ...]:
        """Return the memory of the phases of a generation, in order; the attempts of a phase are one."""
        attempts: dict[str, list[PhaseUsage]] = {}
        for usage in self.guard.usage_of(generation):
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

    def keep_abort(self, error: MemoryGuardError) -> None:
        """Save the report of the guard's error and the abort in the run, if it exists.

        The error loses its traceback, whose frames hold the state of the training: drawing the report needs memory.
        """
        error.__traceback__ = error.__cause__ = error.__context__ = None
        generation, pictures = self._generation_under_way(), list[Path]()
        if self._location.local.exists():
            markdown = write_memory_report(self._location, error.report, generation, error.phase)
            abort = GuardAbort(
                generation=generation,
                phase=error.phase,
                moment=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
                limit=str(self.limits.smallest),
                config_sha256=memory_key(self._config),
                reason=str(error),
            )
            alike = remember_abort(self._location, abort)
            logger.info("%s The report is %s (time %d in this generation).", error, markdown, alike)
            pictures = _drawn(error.report, markdown)
        self._show(error.report, pictures)

    def _generation_under_way(self) -> int:
        newest = self._location.local.newest_manifest()
        return 1 if newest is None else newest.generation + 1

    def _report_on_demand(self) -> None:
        report, pictures = self.guard.report("SIGUSR1 came"), list[Path]()
        if self._location.local.exists():
            phase = report.phases[-1].phase if report.phases else ""
            markdown = write_memory_report(self._location, report, self._generation_under_way(), phase)
            logger.info("SIGUSR1: the memory report is %s", markdown)
            pictures = _drawn(report, markdown)
        self._show(report, pictures)

    def _show(self, report: MemoryReport, pictures: Sequence[Path]) -> None:
        for listener in self._listeners:
            listener.memory_reported(report, pictures)


def _drawn(report: MemoryReport, markdown: Path) -> list[Path]:
    """Draw the memory over time beside a report, and return the picture's path; none if memory does not suffice."""
    gc.collect()
    release_free_memory()
    from eigen_core.reporting.plots import plot_memory_curve

    try:
        return [plot_memory_curve(report, markdown.with_suffix(".png"))]
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        logger.warning("The memory report has no picture: there is not enough memory to draw it.")
        return []
