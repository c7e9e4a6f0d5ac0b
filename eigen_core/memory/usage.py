"""What the run's processes take of the host and of the device."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import torch

from eigen_core.memory.limits import HostLimit, memory_of_machine
from eigen_core.memory.process import peak_resident_bytes, reset_peak

logger = logging.getLogger(__name__)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_KIB = 1024
# A look at the children waits until it takes less than this share of the time.
_CHILDREN_SHARE = 0.001
_CHILDREN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What this process takes of a GPU (bytes).

    Attributes:
        allocated: in tensors.
        reserved: taken from the driver by torch, tensors included.
        taken: by all processes, of the whole device.
    """

    allocated: int
    reserved: int
    taken: int

    @property
    def counted(self) -> int:
        """What cannot be had any more: all that is taken, but for what torch holds and does not use."""
        return max(self.taken - (self.reserved - self.allocated), self.allocated)


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at the memory (bytes).

    Attributes:
        own: resident memory of this process.
        children: resident memory of its descendants, without what they share with it.
        counted: what counts against each limit, in the limits' order.
        device: None without a GPU.
    """

    own: int
    children: int
    counted: tuple[int, ...]
    device: DeviceUsage | None = None

    @property
    def host(self) -> int:
        """Resident memory of this process and its descendants."""
        return self.own + self.children


class Meter(Protocol):
    """What a guard looks at."""

    def read(self) -> Usage:
        """Look at the memory now. Must be quick and callable from any thread."""

    def peak(self) -> int | None:
        """Return the highest resident memory of this process since `reset_peaks`; None where that is not known."""

    def device_peak(self) -> DeviceUsage | None:
        """Return the highest allocated and reserved memory of the device since `reset_peaks`."""

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present."""


def host_bytes() -> int:
    """Return the resident memory of this process and all its descendants (bytes).

    Pages of the heap that several of them share, as forked processes do, count once. Libraries count whole for this
    process and by their share for the others. Takes about a millisecond for each GB if there are descendants.
    """
    own = own_resident_bytes()
    shares = [share for child in psutil.Process().children(recursive=True) if (share := _share_of(child)) is not None]
    if not shares:
        return own
    return own - _shared_with_children() + sum(shares)


def own_resident_bytes() -> int:
    """Return the resident memory of this process alone (bytes)."""
    return _statm()[1]


def address_space_bytes() -> int:
    """Return the addresses that this process has taken, whether memory is behind them or not (bytes)."""
    return _statm()[0]


def _statm() -> tuple[int, int]:
    try:
        virtual, resident, *_ = _STATM.read_text().split()
    except FileNotFoundError:
        info = psutil.Process().memory_info()
        return int(info.vms), int(info.rss)
    return int(virtual) * _PAGE, int(resident) * _PAGE


def process_bytes(name: str) -> int:
    """Return an entry of /proc/self/status, such as "RssFile" (bytes); 0 where the system does not have it."""
    return _rollup(Path("/proc/self/status")).get(name, 0)


def _share_of(child: psutil.Process) -> int | None:
    """Memory of a descendant, shared pages divided among those who share them (PSS); None if it has none of its own.

    It is gone then, or on its way from vfork to exec, where it still is in the memory of its parent.
    """
    try:
        if _is_in_our_memory(child.pid):
            return None
        rollup = _rollup(Path(f"/proc/{child.pid}/smaps_rollup"))
        return rollup["Pss"] if "Pss" in rollup else int(child.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _is_in_our_memory(pid: int) -> bool:
    """Whether a process shows the very memory of this one; ours may change while we look."""
    try:
        before, theirs, after = (path.read_text().split()[:3] for path in (_STATM, Path(f"/proc/{pid}/statm"), _STATM))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return theirs in (before, after)


def _shared_with_children() -> int:
    """What this process counts whole although its share of it is less: pages of the heap that others hold too."""
    rollup = _rollup(Path("/proc/self/smaps_rollup"))
    if "Pss_Anon" not in rollup:
        return 0
    return max(process_bytes("RssAnon") - rollup["Pss_Anon"], 0)


def _rollup(path: Path) -> dict[str, int]:
    """Read lines such as "Pss: 12 kB" (bytes); nothing where the file cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        logger.debug("%s cannot be read: %s.", path, error)
        return {}
    entries = (line.split() for line in lines)
    return {entry[0].rstrip(":"): int(entry[1]) * _KIB for entry in entries if len(entry) == 3 and entry[2] == "kB"}


def gpu_in_use() -> bool:
    """Whether this process has begun to use a GPU; asking does not make it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch has no annotation here


def device_bytes(device: torch.device) -> DeviceUsage | None:
    """Return what is taken of a GPU; None for the CPU, and before torch has used the GPU."""
    if device.type != "cuda" or not gpu_in_use():
        return None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceUsage(
        int(torch.cuda.memory_allocated(device)), int(torch.cuda.memory_reserved(device)), int(total - free)
    )


class SystemMeter:
    """Looks at the processes, the control groups, the machine and the GPU.

    This process is looked at each time, its descendants less often: that takes longer.

    Args:
        limits: what memory is to be counted against.
        device: where tensors live.
        root: folder that stands for the root of the file system, for the machine's memory.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        limits: Sequence[HostLimit],
        device: torch.device | None = None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = tuple(limits)
        self._device = device or torch.device("cpu")
        self._root = root
        self._clock = clock
        self._children = 0
        self._next_look = -float("inf")

    def read(self) -> Usage:
        """Look at the memory now."""
        virtual, own = _statm()
        children = self._children_bytes()
        # A list first: a tuple that is filled while files are read could be met half-filled (`census.live_objects`).
        counted = tuple([self._counted(limit, own + children, virtual) for limit in self._limits])
        return Usage(own, children, counted, device_bytes(self._device))

    def _children_bytes(self) -> int:
        now = self._clock()
        if now >= self._next_look:
            # Set first: another thread that comes meanwhile does not look too.
            self._next_look = now + _CHILDREN_SECONDS
            shares = [_share_of(child) for child in psutil.Process().children(recursive=True)]
            self._children = sum(share for share in shares if share is not None)
            ended = self._clock()
            self._next_look = ended + max(_CHILDREN_SECONDS, (ended - now) / _CHILDREN_SHARE)
        return self._children

    def _counted(self, limit: HostLimit, resident: int, virtual: int) -> int:
        if limit.kind == "address_space":
            return virtual
        if limit.kind == "machine":
            total, available = memory_of_machine(self._root)
            return max(total - available, resident)
        taken = limit.group.taken() if limit.group is not None else None
        return resident if taken is None else max(taken, resident)

    def peak(self) -> int | None:
        """Return the highest resident memory of this process since `reset_peaks` (bytes)."""
        return peak_resident_bytes()

    def device_peak(self) -> DeviceUsage | None:
        """Return the highest allocated and reserved memory of the device since `reset_peaks`."""
        now = device_bytes(self._device)
        if now is None:
            return None
        return DeviceUsage(
            int(torch.cuda.max_memory_allocated(self._device)),
            int(torch.cuda.max_memory_reserved(self._device)),
            now.taken,
        )

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present."""
        reset_peak()
        if self._device.type == "cuda" and gpu_in_use():
            torch.cuda.reset_peak_memory_stats(self._device)
