"""Compare a run's plan with the memory and disk of this machine, and refuse a run that does not fit."""

import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from eigen_core.checkpoint.store import ANOTHER_STORE, run_root
from eigen_core.common.errors import InputError
from eigen_core.common.files import FREE_SPACE, nearest_there
from eigen_core.common.text import size
from eigen_core.config import Config
from eigen_core.generation import resolve_device
from eigen_core.machine import (
    DeviceLimit,
    DeviceUsage,
    HostLimit,
    device_limit,
    host_limits,
    release_free_memory,
)
from eigen_core.machine.allocation import owned_bytes
from eigen_core.machine.limits import Limit
from eigen_core.machine.usage import SystemMeter, Usage
from eigen_core.planning.plan import PHASES, Plan, plan_of
from eigen_core.planning.probe import ProbeFailure, ProbeResult, Shape, cache_probe, cached_probe, probe
from eigen_core.planning.sizes import Sizes
from eigen_core.planning.suggestions import Suggestion, suggestions_for
from eigen_core.task import TaskData

logger = logging.getLogger(__name__)

_MOST_SUGGESTED = 3
# A training is probed before it starts unless this multiple of the memory that can be counted, plus this reserve, fits.
_TIMES_COUNTED, _ROOM_BYTES = 2, 4_000_000_000
# Measured on Linux with glibc, torch 2.13 (CPU) and Prefect 3.8.8, at the peak of a training: mostly stacks of threads.
_ADDRESSES_WITHOUT_MEMORY = 1_900_000_000


DISK_ADVICE = f"{FREE_SPACE}, keep fewer generations (checkpoint.keep_last), or {ANOTHER_STORE}."


@dataclass(frozen=True)
class DiskRoom:
    """Disk space that a run still needs on this machine, and free space.

    `needed_bytes` is the run's largest size in `folder` at any time, less its present size.
    """

    folder: Path
    needed_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, plan: Plan, config: Config, run: str | None) -> "DiskRoom":
        """Return the disk space of a run with this plan; `run`: its name, None for a new one."""
        settings = config.checkpoint
        folder = run_root(settings.store, settings.local)
        most = plan.disk.local_bytes or plan.disk.most_bytes
        held = 0 if run is None else sum(_size_of(path) for path in (folder / run).rglob("*"))
        return cls(folder, max(most - held, 0), shutil.disk_usage(nearest_there(folder)).free)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.free_bytes

    def __str__(self) -> str:
        return f"it takes {size(self.needed_bytes)} of the disk, and {size(self.free_bytes)} are free at {self.folder}"


def _size_of(path: Path) -> int:
    """Return the size of a file; 0 if `path` is no file or was deleted meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


@dataclass(frozen=True)
class RunPlan:
    """A plan and its verdict under the limits of this machine.

    Attributes:
        suggestions: settings that lower its memory; empty if its memory fits.
        disk: space that the run still needs here.
        missing_device: the run asks for a GPU, and this machine has none.
    """

    data: TaskData
    plan: Plan
    limits: tuple[HostLimit, ...]
    device_limit: DeviceLimit | None
    suggestions: tuple[Suggestion, ...]
    disk: DiskRoom
    missing_device: bool = False

    @property
    def fits(self) -> bool:
        return self.fits_memory and self.disk.fits

    @property
    def fits_memory(self) -> bool:
        return self.plan.fits and not self.missing_device

    @property
    def measured(self) -> ProbeResult | None:
        return self.plan.measured if isinstance(self.plan.measured, ProbeResult) else None

    def sentence(self) -> str:
        """Return the verdict in one to four sentences: peak, phase, limit with its origin, settings that would fit."""
        if self.disk.fits:
            return self.memory_sentence()
        disk = f"{self.disk}. {DISK_ADVICE}"
        if self.fits_memory:
            return f"The run does not fit: {disk}"
        return f"{self.memory_sentence()} {disk[0].upper()}{disk[1:]}"

    def memory_sentence(self) -> str:
        if self.fits_memory:
            return f"The run fits: {'; '.join(str(verdict) for verdict in self.plan.verdicts)}."
        needs = [str(verdict) for verdict in self.plan.verdicts if not verdict.fits]
        if self.missing_device:
            needs.append(f"it takes {size(self.plan.peak_device_bytes)} of a GPU, and torch finds none here")
        return " ".join([f"The run does not fit: {'; '.join(needs)}.", *self._advice()])

    def _advice(self) -> list[str]:
        if self.missing_device and self.plan.fits:
            return ["Use device cpu or auto, or check the driver."]
        enough = [suggestion for suggestion in self.suggestions if suggestion.fits]
        shown = "; ".join(map(str, (enough or self.suggestions)[:_MOST_SUGGESTED]))
        if enough:
            return [f"What helps: {shown}."]
        return [f"{f'What helps: {shown}; but no' if shown else 'No'} setting is enough: the run needs more memory."]

    def document(self) -> dict[str, object]:
        return {
            "panel": None if self.data.facts is None else asdict(self.data.facts),
            **self.plan.document(),
            "fits": self.fits,
            "sentence": self.sentence(),
            "limits": [{"bytes": limit.bytes, "origin": limit.origin, "kind": limit.kind} for limit in self.limits],
            "device_limit": None
            if self.device_limit is None
            else {"bytes": self.device_limit.bytes, "origin": self.device_limit.origin},
            "suggestions": [
                {**asdict(suggestion), "settings": dict(suggestion.settings)} for suggestion in self.suggestions
            ],
        }


class RunTooLargeError(Exception):
    """A run does not fit into this machine. The message is `run_plan.sentence()`."""

    def __init__(self, run_plan: RunPlan) -> None:
        super().__init__(run_plan.sentence())
        self.run_plan = run_plan


def plan_run(
    config: Config, data: TaskData, run: str | None = None, *, shape: Shape | None = None, measured: bool = True
) -> RunPlan:
    """Plan a run, and find out whether it fits into the memory and disk that this machine has now.

    Args:
        run: its name, to subtract its present files; None: a new run.
        shape: of a panel of random numbers in `data`; None: `data` is the run's.
        measured: always probe the run. If false, this process will train it, and it is probed only if it might not fit
            and the cache has no result.

    Raises:
        InputError: a memory limit cannot be read, or is too low for any run.
    """
    limits = host_limits(config.memory)
    missing = config.device == "cuda" and not torch.cuda.is_available()
    device = torch.device("cpu") if missing else resolve_device(config.device)
    of_device = device_limit(device)
    sizes = Sizes.of(config, data)
    counted = plan_of(config, sizes)
    release_free_memory()
    usage, hard = SystemMeter(limits, device).read(), config.memory.hard
    own = 0 if measured else usage.own - owned_bytes(data.content)
    of_host = zip(limits, usage.counted, strict=True)
    left = (_available(limit, taken, usage, counted, hard) for limit, taken in of_host)
    available = {"host": min(left, key=lambda limit: limit.bytes)}
    if of_device is not None:
        available["device"] = _available_on_device(of_device, usage.device, counted, hard)
    # Limits of the run and of addresses do not include the memory of other processes.
    for_probe = min(
        int(hard * limit.bytes) - (0 if limit.kind in ("run", "address_space") else taken)
        for limit, taken in zip(limits, usage.counted, strict=True)
    )

    def plan_with(changed: Config, sizes: Sizes, *, anew: bool) -> Plan:
        """Return the plan of a configuration, probed if the memory that can be counted fits."""
        plan = plan_of(changed, sizes, limits=available, own_bytes=own)
        if missing or not plan.fits:
            return plan
        found: ProbeResult | ProbeFailure | None = None if anew else cached_probe(changed, data)
        if found is None and (anew or not _is_roomy(plan)):
            found = probe(changed, shape, for_probe)
            if isinstance(found, ProbeResult):
                cache_probe(changed, data, found)
            else:
                logger.info("In phase %s, %s. The memory plan is a lower bound.", found.phase, found.why)
        return plan_of(changed, sizes, found, limits=available, own_bytes=own)

    def plan_changed(changed: Config) -> Plan | None:
        try:
            return plan_with(changed, Sizes.of(changed, data), anew=False)
        except InputError:
            return None

    plan = plan_with(config, sizes, anew=measured)
    suggestions = suggestions_for(config, plan, plan_changed)
    room = DiskRoom.of(plan, config, run)
    return RunPlan(data, plan, limits, of_device, tuple(suggestions), room, missing)


def _is_roomy(plan: Plan) -> bool:
    """Whether the run fits with a generous reserve for the memory that cannot be counted."""
    return all(_TIMES_COUNTED * verdict.peak_bytes + _ROOM_BYTES <= verdict.limit.bytes for verdict in plan.verdicts)


def require_fit(config: Config, data: TaskData, run: str | None = None) -> RunPlan:
    """Return the plan of a run, probed if it might not fit (`plan_run`).

    Raises:
        RunTooLargeError: the run does not fit.
        InputError: a memory limit cannot be read, or `device` is cuda and there is no GPU.
    """
    resolve_device(config.device)
    run_plan = plan_run(config, data, run, measured=False)
    if not run_plan.fits:
        raise RunTooLargeError(run_plan)
    return run_plan


def _available(limit: HostLimit, counted: int, usage: Usage, plan: Plan, hard: float) -> Limit:
    """Return the part of a limit that is left for resident memory of the run's processes.

    Limits of a control group and of the machine include other processes, whose present memory is subtracted. RLIMIT_AS
    limits the address space of this process alone: addresses that are not resident are subtracted.
    """
    if limit.kind == "address_space":
        left = _left(limit, hard)
        unused = max(counted - usage.own, _ADDRESSES_WITHOUT_MEMORY) + plan.nonresident_bytes
        replay = f", {size(plan.nonresident_bytes)} of them the replay's" if plan.nonresident_bytes else ""
        origin = f"{left.origin}, less {size(unused)} of addresses that are not resident{replay}"
        return Limit(max(left.bytes - unused, 0), origin)
    return _left(limit, hard, 0 if limit.kind == "run" else counted - usage.host)


def _available_on_device(limit: DeviceLimit, usage: DeviceUsage | None, plan: Plan, hard: float) -> Limit:
    context = max(plan.held_on_device(phase, "driver") for phase in PHASES)
    return _left(limit, hard, 0 if usage is None else usage.taken - usage.reserved - context)


def _left(limit: Limit, hard: float, others: int = 0) -> Limit:
    """Return the share `hard` of a limit, less the memory of other processes (bytes)."""
    less = f", less {size(others)} that other processes use now" if others > 0 else ""
    left = max(int(hard * limit.bytes) - max(others, 0), 0)
    return Limit(left, f"{hard:.0%} of {size(limit.bytes)}, {limit.origin}{less}")
