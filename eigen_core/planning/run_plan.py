"""The plan of a run: the memory and disk that it needs, and the refusal of a run that does not fit this machine."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from eigen_core.checkpoint.integrity import CONFIG_NAME
from eigen_core.checkpoint.store import ANOTHER_FOLDER
from eigen_core.checkpoint.store_location import run_root
from eigen_core.common.errors import End
from eigen_core.common.files import nearest_existing, require_place
from eigen_core.common.text import percent, size
from eigen_core.config import Config
from eigen_core.config.model import CheckpointConfig
from eigen_core.generation import resolve_device
from eigen_core.machine.allocation import owned_bytes
from eigen_core.machine.limits import DeviceLimit, HostLimit, Limit, device_limit, host_limits
from eigen_core.machine.memory_usage import SystemMeter, Usage, release_free_memory
from eigen_core.planning.memory_parts import (
    CUDA_CONTEXT_BYTES,
    PHASES,
    PLOTS_BYTES,
    TRAINING_BYTES,
    Part,
    Phase,
    parts_of,
    peaks_of,
)
from eigen_core.planning.probe import ProbeFailure, ProbeResult, Shape, cache_probe, cached_probe, probe
from eigen_core.planning.sizes import DiskPlan, Memory, Sizes
from eigen_core.task.interface import TaskData

logger = logging.getLogger(__name__)

# A training is probed before it starts unless this multiple of the memory that can be counted, plus this reserve, fits.
_TIMES_COUNTED, _ROOM_BYTES = 2, 4_000_000_000
# Measured on Linux with glibc, torch 2.13 (CPU) and Prefect 3.8.8, at the peak of a training: mostly stacks of threads.
_ADDRESSES_WITHOUT_MEMORY = 1_900_000_000

_MEMORY_ADVICE = (
    "Lower population.group_size to 1, which leaves the results on a CPU as they are, or lower learner.batch_size, "
    "replay.capacity or population.size."
)
DISK_ADVICE = f"Free some space, keep fewer generations (checkpoint.keep_last), or {ANOTHER_FOLDER}."
Where = Literal["host", "device", "disk"]


@dataclass(frozen=True)
class LimitCheck:
    """Whether a run fits below one limit.

    Attributes:
        where: whether the limit is on memory of the host, on memory of the device (GPU), or on the disk.
        peak_bytes, phase: the highest peak of all phases, and its phase; on the disk, the size of the files, and None.
        limit_bytes, origin: the limit less what other processes use and a safety margin; where it comes from.
        at_least: `peak_bytes` is a lower bound, since the run was not measured.
    """

    where: Where
    phase: str | None
    peak_bytes: int
    limit_bytes: int
    origin: str
    at_least: bool = False

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes by which the peak exceeds the limit."""
        return max(self.peak_bytes - self.limit_bytes, 0)

    def __str__(self) -> str:
        missing = "" if self.fits else f": {size(self.missing_bytes)} are missing"
        if self.at_least and not self.fits:
            missing = ": that is too little"
        taken = f"{'at least ' if self.at_least else ''}{size(self.peak_bytes)}"
        where = "the disk" if self.phase is None else f"{self.where} memory at the peak, in phase {self.phase}"
        return f"it needs {taken} of {where}, and {size(self.limit_bytes)} are available ({self.origin}){missing}"


@dataclass(frozen=True)
class RunPlan:
    """Memory and disk of a run, and whether this machine has them.

    Attributes:
        measured: result or failure of the run's probe (`probe`); None if it was not probed. Without a result, `parts`
            lack the memory of computations.
        checks: one each for the host's memory, for the GPU's if the run uses one, and for the disk.
        limits, device_limit: memory limits of this machine; no `device_limit` without a GPU.
    """

    data: TaskData
    sizes: Sizes
    parts: tuple[Part, ...]
    disk: DiskPlan
    measured: ProbeResult | ProbeFailure | None
    checks: tuple[LimitCheck, ...]
    limits: tuple[HostLimit, ...] = ()
    device_limit: DeviceLimit | None = None

    @classmethod
    def of(
        cls,
        data: TaskData,
        sizes: Sizes,
        measured: ProbeResult | ProbeFailure | None = None,
        limits: Mapping[Where, Limit] | None = None,
        own_bytes: int = 0,
    ) -> "RunPlan":
        """Return the plan of a run below `limits`; those of memory and disk that are missing are not checked.

        `measured` is None if the run was not probed. `own_bytes`: as in `parts_of`.
        """
        parts = parts_of(sizes, measured if isinstance(measured, ProbeResult) else None, own_bytes)
        plan = cls(data, sizes, parts, DiskPlan.of(sizes), measured, ())
        return replace(plan, checks=tuple(plan._check(where, limit) for where, limit in (limits or {}).items()))

    def _check(self, where: Where, limit: Limit) -> LimitCheck:
        if where == "disk":
            return LimitCheck(where, None, self.disk.local_bytes or self.disk.most_bytes, limit.bytes, limit.origin)
        measured, highest = self.measured, self.peak_phase(where)
        peak, phase = int(getattr(self.peaks[highest], where)), str(highest)
        if isinstance(measured, ProbeFailure):
            least = 0
            if measured.out_of_memory and (where == "host") == (self.sizes.device == "cpu"):
                least = limit.bytes + 1
            elif measured.reached_bytes and where == "host":
                least = measured.reached_bytes + TRAINING_BYTES + PLOTS_BYTES
            if least > peak:
                peak, phase = least, measured.phase
        return LimitCheck(where, phase, peak, limit.bytes, limit.origin, not isinstance(measured, ProbeResult))

    @cached_property
    def peaks(self) -> Mapping[Phase, Memory]:
        """The peak of each phase, summed over all processes (bytes)."""
        return peaks_of(self.parts)

    def peak_phase(self, where: Literal["host", "device"] = "host") -> Phase:
        return max(PHASES, key=lambda phase: int(getattr(self.peaks[phase], where)))

    @property
    def fits(self) -> bool:
        return all(check.fits for check in self.checks)

    @property
    def memory_checks(self) -> tuple[LimitCheck, ...]:
        return tuple(check for check in self.checks if check.where != "disk")

    @property
    def fits_memory(self) -> bool:
        return all(check.fits for check in self.memory_checks)

    @property
    def fits_disk(self) -> bool:
        return all(check.fits for check in self.checks if check.where == "disk")

    def sentence(self, *, disk: bool = True) -> str:
        """Return in one to four sentences whether the run fits and what helps; `disk`: mention a disk without room."""
        lacking = [check for check in (self.checks if disk else self.memory_checks) if not check.fits]
        if not lacking:
            return f"The run fits: {'; '.join(map(str, self.memory_checks))}."
        sentences = [f"The run does not fit: {'; '.join(map(str, lacking))}."]
        if not self.fits_memory:
            no_gpu = self.sizes.device == "cuda" and self.device_limit is None
            sentences.append("Use device cpu or auto, or check the driver." if no_gpu else _MEMORY_ADVICE)
        if disk and not self.fits_disk:
            sentences.append(DISK_ADVICE)
        return " ".join(sentences)


class RunTooLargeError(Exception):
    """A run does not fit into this machine. The message is `run_plan.sentence()`."""

    def __init__(self, run_plan: RunPlan) -> None:
        super().__init__(run_plan.sentence())
        self.run_plan = run_plan
        self.end = End.DISK_FULL if run_plan.fits_memory else End.TOO_LARGE


def require_fit(config: Config, data: TaskData, run: str | None = None) -> RunPlan:
    """Return the plan of a run, probed if it might not fit (`plan_run`).

    `RunTooLargeError` if it does not fit; `InputError` if there is no limit or GPU to read, or no place for its files.
    """
    resolve_device(config.device)
    require_run_folder(config.checkpoint, run)
    run_plan = plan_run(config, data, run, measured=False)
    if not run_plan.fits:
        raise RunTooLargeError(run_plan)
    return run_plan


def require_run_folder(settings: CheckpointConfig, run: str | None = None) -> None:
    """Raise `InputError` if the files of a run (None: any) cannot be written on this machine; write nothing."""
    require_place(run_root(settings.store, settings.local) / (run or "run") / CONFIG_NAME, ANOTHER_FOLDER)


def plan_run(
    config: Config, data: TaskData, run: str | None = None, *, shape: Shape | None = None, measured: bool = True
) -> RunPlan:
    """Plan a run, and find out whether it fits into the memory and disk that this machine has now.

    Args:
        run: name of the run, whose present files count as free space; None: a new run.
        shape: shape of the panel of random numbers in `data`; None: `data` is the run's own.
        measured: always probe the run. If false, this process will train it, and it is probed only if it might not fit
            and this machine's cache has no result of its probe.

    Raises:
        InputError: a memory limit cannot be read, or is too low for any run.
    """
    limits, hard = host_limits(config.memory), config.memory.hard
    missing = config.device == "cuda" and not torch.cuda.is_available()
    device = torch.device("cpu") if missing else resolve_device(config.device)
    of_device = device_limit(device)
    release_free_memory()
    usage = SystemMeter(limits, device).read()
    own = 0 if measured else usage.own - owned_bytes(data.content)
    disk = _disk_room(config.checkpoint, run)
    # The run's own limit and that of the address space do not include the memory of other processes.
    for_probe = min(
        int(hard * limit.bytes) - (0 if limit.kind in ("run", "address_space") else counted)
        for limit, counted in zip(limits, usage.counted, strict=True)
    )

    sizes = Sizes.of(config, data)
    available: dict[Where, Limit] = {"host": _available(limits, usage, sizes, hard)}
    if missing:
        available["device"] = Limit(0, "torch finds no GPU here")
    elif of_device is not None:
        taken = usage.device.taken - usage.device.reserved - CUDA_CONTEXT_BYTES if usage.device else 0
        available["device"] = _left(of_device, hard, taken, _OTHERS)
    available["disk"] = disk
    plan = RunPlan.of(data, sizes, None, available, own)
    if plan.fits_memory:
        found: ProbeResult | ProbeFailure | None = None if measured else cached_probe(config, data)
        is_roomy = all(_TIMES_COUNTED * one.peak_bytes + _ROOM_BYTES <= one.limit_bytes for one in plan.memory_checks)
        if found is None and (measured or not is_roomy):
            found = probe(config, shape, for_probe)
            if isinstance(found, ProbeResult):
                cache_probe(config, data, found)
            else:
                logger.info("In phase %s, %s. The memory plan is a lower bound.", found.phase, found.why)
        plan = RunPlan.of(data, sizes, found, available, own)
    return replace(plan, limits=limits, device_limit=of_device)


def _disk_room(settings: CheckpointConfig, run: str | None) -> Limit:
    """Return the space for a run's files on this machine: the free space, plus the space that its files take now."""
    folder = run_root(settings.store, settings.local)
    held = 0 if run is None else sum(_size_of(path) for path in (folder / run).rglob("*"))
    free = shutil.disk_usage(nearest_existing(folder)).free
    return Limit(free + held, f"{size(free)} free at {folder}" + f", {size(held)} in the run's files" * (held > 0))


def _size_of(path: Path) -> int:
    """Return the size of a file; 0 if `path` is no file or does not exist any more."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


_OTHERS = "that other processes use now"


def _available(limits: tuple[HostLimit, ...], usage: Usage, sizes: Sizes, hard: float) -> Limit:
    """Return the resident memory that the tightest limit leaves for the run's processes.

    Limits of a control group and of the machine include other processes, whose present memory is subtracted. RLIMIT_AS
    limits the address space of this process alone: addresses that are not resident are subtracted.
    """
    unused = sizes.nonresident_bytes
    left = []
    for limit, counted in zip(limits, usage.counted, strict=True):
        if limit.kind == "address_space":
            addresses = max(counted - usage.own, _ADDRESSES_WITHOUT_MEMORY) + unused
            words = f"of addresses that are not resident, {size(unused)} of them the replay's"
            left.append(_left(limit, hard, addresses, words))
        else:
            left.append(_left(limit, hard, 0 if limit.kind == "run" else counted - usage.host, _OTHERS))
    return min(left, key=lambda limit: limit.bytes)


def _left(limit: Limit, hard: float, taken: int, words: str) -> Limit:
    """Return the share `hard` of a limit less `taken` bytes; `words` say what takes them."""
    less = f", less {size(taken)} {words}" if taken > 0 else ""
    left = max(int(hard * limit.bytes) - max(taken, 0), 0)
    return Limit(left, f"{percent(hard, 0)} of {size(limit.bytes)}, {limit.origin}{less}")
