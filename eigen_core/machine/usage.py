"""The memory that the run's processes use on the host and on the device."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import torch

from eigen_core.config.model import MemoryConfig
from eigen_core.machine.limits import HostLimit, device_limit, host_limits, memory_of_machine
from eigen_core.machine.process import (
    own_resident_bytes,
    peak_resident_bytes,
    proc_entries,
    process_bytes,
    reset_peak,
    statm,
)

logger = logging.getLogger(__name__)

# The children are measured so seldom that it takes less than this share of the time.
_CHILDREN_SHARE = 0.001
_CHILDREN_SECONDS = 2.0
# Other threads may change this process's memory while it is compared with a child's.
_MOST_READINGS = 100
# The system counts resident memory by processor: two readings of one memory may differ.
_LARGEST_DIFFERENCE = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """GPU memory (bytes).

    Attributes:
        allocated: in tensors of this process.
        reserved: held by torch in this process, tensors included.
        taken: by all processes, of the whole device.
    """

    allocated: int
    reserved: int
    taken: int

    @property
    def counted(self) -> int:
        """Memory that cannot be allocated any more: all that is taken, but for unused memory of torch's cache."""
        return max(self.taken - (self.reserved - self.allocated), self.allocated)


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory at one moment (bytes).

    Attributes:
        own: resident memory of this process.
        children: resident memory of its descendants, without what they share with it.
        counted: what counts against each limit, in the order of the limits.
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
    """Measures memory for a guard."""

    def read(self) -> Usage:
        """Measure the memory now. Must be quick and callable from any thread."""

    def peaks(self) -> tuple[int | None, DeviceUsage | None]:
        """Return the highest memory since `reset_peaks`, where it is known.

        Resident of this process (bytes), and allocated and reserved on the device.
        """

    def reset_peaks(self) -> None:
        """Start the peaks again from the present."""


def host_bytes() -> int:
    """Return the resident memory of this process and all its descendants (bytes).

    Pages of the heap that several of them share, as forked processes do, count once. Libraries count whole for this
    process and by their share for the others. Takes about a millisecond for each GB if there are descendants.
    """
    own, children = own_resident_bytes(), _descendants_bytes()
    if not children:
        return own
    shared_with_children = 0
    if in_proportion := process_bytes("Pss_Anon", Path("/proc/self/smaps_rollup")):
        shared_with_children = max(process_bytes("RssAnon") - in_proportion, 0)
    return own - shared_with_children + children


def _descendants_bytes() -> int:
    """Return the memory of all descendants, without their share of the shared memory that this process has whole."""
    shares = [_share_of(child) for child in psutil.Process().children(recursive=True)]
    shared = sum(of_shared for _, of_shared in shares)
    return sum(share for share, _ in shares) - (min(shared, process_bytes("RssShmem")) if shared else 0)


def _share_of(child: psutil.Process) -> tuple[int, int]:
    """Return the memory of a descendant, and what of it is shared memory (`SharedTensor`; bytes).

    Pages are divided among the processes that share them (PSS). 0 if it has ended, or is between vfork and exec, where
    it still runs in the memory of its parent.
    """
    try:
        if _runs_in_memory_of_this_process(child.pid):
            return 0, 0
        entries: dict[str, int] = {}
        with suppress(OSError):
            entries = proc_entries(Path(f"/proc/{child.pid}/smaps_rollup"))
        return entries.get("Pss") or statm(child.pid)[1], entries.get("Pss_Shmem", 0)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0, 0


def _runs_in_memory_of_this_process(child: int) -> bool:
    """Return whether a child still runs in the memory of this process, and so shows its figures.

    A child that was forked has the same addresses, but not the pages of the libraries, and so far less resident memory.
    """
    for _ in range(_MOST_READINGS):
        (before, resident), (theirs, resident_theirs), (after, _) = statm(), statm(child), statm()
        if theirs in (before, after) and abs(resident - resident_theirs) < _LARGEST_DIFFERENCE:
            return True
        if before == after:
            break
    return False


def gpu_in_use() -> bool:
    """Return whether this process has begun to use a GPU, without starting to."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch has no annotation here


def device_bytes(device: torch.device) -> DeviceUsage | None:
    """Return the memory in use on a GPU; None for the CPU, and before torch has used the GPU."""
    if device.type != "cuda" or not gpu_in_use():
        return None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceUsage(
        int(torch.cuda.memory_allocated(device)), int(torch.cuda.memory_reserved(device)), int(total - free)
    )


class SystemMeter:
    """Measures the processes, the control groups, the machine and the GPU.

    This process is measured each time, its descendants less often: that takes longer.

    Args:
        limits: limits against which memory is counted.
        device: device of the tensors.
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
        """Measure the memory now."""
        virtual, own = statm()
        children = self._children_bytes()
        # A list first: a report that lists all objects could find a tuple that is filled while files are read.
        counted = tuple([self._counted(limit, own + children, virtual) for limit in self._limits])
        return Usage(own, children, counted, device_bytes(self._device))

    def _children_bytes(self) -> int:
        now = self._clock()
        if now >= self._next_look:
            # Set first, so that no other thread measures meanwhile.
            self._next_look = now + _CHILDREN_SECONDS
            self._children = _descendants_bytes()
            ended = self._clock()
            self._next_look = ended + max(_CHILDREN_SECONDS, (ended - now) / _CHILDREN_SHARE)
        return self._children

    def _counted(self, limit: HostLimit, resident: int, virtual: int) -> int:
        if limit.kind == "address_space":
            return virtual
        if limit.kind == "machine":
            total, available = memory_of_machine(self._root)
            return max(total - available, resident)
        return max((limit.group.taken() if limit.group else None) or 0, resident)

    def peaks(self) -> tuple[int | None, DeviceUsage | None]:
        """Return the highest memory since `reset_peaks`."""
        now = device_bytes(self._device)
        if now is None:
            return peak_resident_bytes(), None
        allocated, reserved = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
        return peak_resident_bytes(), DeviceUsage(int(allocated(self._device)), int(reserved(self._device)), now.taken)

    def reset_peaks(self) -> None:
        """Start the peaks again from the present."""
        reset_peak()
        if self._device.type == "cuda" and gpu_in_use():
            torch.cuda.reset_peak_memory_stats(self._device)


def headroom_bytes(memory: MemoryConfig, device: torch.device) -> int:
    """Return how much more can be allocated on a device before the hard line of the tightest limit (bytes), at least 0.

    On the CPU every limit of the host counts (`host_limits`), on a GPU the memory that its driver reports.

    Raises:
        InputError: a limit cannot be used, or the driver does not answer.
    """
    on_device = device_limit(device)
    if on_device is not None:
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(int(free + unused - (1.0 - memory.hard) * on_device.bytes), 0)
    limits = host_limits(memory).limits
    counted = SystemMeter(limits).read().counted
    return max(min(int(memory.hard * limit.bytes) - taken for limit, taken in zip(limits, counted, strict=True)), 0)
