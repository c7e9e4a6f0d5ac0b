"""Memory in use by this process and its descendants, on the host and on a GPU: now, and over the phases of a run."""

import ctypes
import logging
import mmap
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from eigen_core.common.text import quoted, size
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.limits import HostLimit, Limit, host_limits, proc_entries

logger = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
# malloc.h of the GNU C library.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_ARENAS = 2
_MAPPED_BYTES = 8 * 1024**2
_TOP_BYTES = 64 * 1024**2
# `resident_part` needs a byte for each page: mappings that were never written can be large.
_PAGES_AT_ONCE = 1 << 20


def own_resident_bytes() -> int:
    return statm()[1]


def statm(process: int | None = None) -> tuple[int, int]:
    """Return address space and resident memory of a process, by default this one (bytes); `psutil.Error` if unknown."""
    info = psutil.Process(process).memory_info()
    return int(info.vms), int(info.rss)


def process_bytes(name: str) -> int:
    """Return an entry of /proc/self/status, such as "RssFile" (bytes); 0 if there is no entry or no such file."""
    try:
        return proc_entries(_STATUS).get(name, 0)
    except OSError as error:
        logger.debug("%s is not known: %s.", name, error)
        return 0


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process since the last `reset_peak`, or else since its start (bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return process_bytes("VmHWM") or (peak if sys.platform == "darwin" else peak * 1024)


def reset_peak() -> bool:
    """Reset the peak of resident memory to its present size; return whether the system allows it (man 5 proc)."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError as error:
        logger.debug("The peak of the resident memory cannot be reset: %s.", error)
        return False
    return True


def release_free_memory() -> None:
    """Give the system back freed memory that glibc keeps (`malloc_trim`)."""
    trim = _c_function("malloc_trim", ctypes.c_size_t)
    if trim is not None:
        trim(0)


def tune_allocator() -> None:
    """Make glibc return freed memory to the system sooner; no effect with another C library.

    All threads share two heaps, as with `MALLOC_ARENA_MAX`: free memory of one heap cannot serve another.
    Blocks of 8 MiB and more (`M_MMAP_THRESHOLD`) are mapped one by one and unmapped when they are freed: glibc would
    raise this threshold up to 32 MiB, and its heap would become fragmented (preset `eigen2`: 2,457 MB for 1,586 MB of
    tensors). A fixed threshold stops glibc from raising `M_TRIM_THRESHOLD`, so that threshold is set too.
    """
    mallopt = _c_function("mallopt", ctypes.c_int, ctypes.c_int)
    settings = ((_M_ARENA_MAX, _ARENAS), (_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_TRIM_THRESHOLD, _TOP_BYTES))
    if mallopt is not None:
        for option, value in settings:
            mallopt(option, value)


def resident_part(address: int, size: int) -> int:
    """Return how many of `size` bytes from `address` on are resident in this process; `size` if it is not known."""
    mincore = _c_function("mincore", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    page = mmap.PAGESIZE
    if mincore is None or size == 0:
        return size
    resident = 0
    for start in range(address - address % page, address + size, _PAGES_AT_ONCE * page):
        pages = min((address + size - start + page - 1) // page, _PAGES_AT_ONCE)
        flags: NDArray[np.uint8] = np.zeros(pages, dtype=np.uint8)
        if mincore(start, pages * page, flags.ctypes.data) != 0:
            return size
        resident += int(np.count_nonzero(flags & 1)) * page
    return min(resident, size)


@cache
def _c_function(name: str, *arguments: Any) -> Callable[..., int] | None:  # noqa: ANN401 - types of ctypes
    """Return a function of the C library that returns an int; None if the library has none."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.argtypes = arguments
    return function


# The children are measured so seldom that it takes less than this share of the time.
_CHILDREN_SHARE = 0.001
_CHILDREN_SECONDS = 2.0
# Other threads may change this process's memory while it is compared with a child's.
_MOST_READINGS = 100
# The system counts resident memory by processor: two readings of one memory may differ.
_LARGEST_DIFFERENCE = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Use of a GPU's memory (bytes): in tensors of this process, held by torch for it (with its cache), by all."""

    allocated: int
    reserved: int
    taken: int

    @property
    def counted(self) -> int:
        """Memory that cannot be allocated any more: all but the unused part of torch's cache."""
        return max(self.taken - (self.reserved - self.allocated), self.allocated)


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory at one moment (bytes).

    Attributes:
        own, children: resident memory of this process, and of its descendants without pages shared with it.
        counted: for each limit of the host, in the order of `host_limits`, the memory that counts against it.
        device: use of the GPU; None without one, or before torch has used it.
    """

    own: int
    children: int
    counted: tuple[int, ...]
    device: DeviceUsage | None = None

    @property
    def host(self) -> int:
        """Resident memory of this process and its descendants."""
        return self.own + self.children


def _descendants_bytes() -> int:
    """Return the memory of all descendants, without shared memory that is already counted for this process."""
    shares = [_share_of(child) for child in psutil.Process().children(recursive=True)]
    shared = sum(of_shared for _, of_shared in shares)
    return sum(share for share, _ in shares) - (min(shared, process_bytes("RssShmem")) if shared else 0)


def _share_of(child: psutil.Process) -> tuple[int, int]:
    """Return the memory of a descendant, and its part in shared memory (`SharedTensor`; bytes).

    Pages are divided among the processes that share them (PSS). 0 if it has ended, or is between vfork and exec and so
    runs in the memory of its parent.
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
    """Return whether a child still runs in the memory of this process, and so has its size.

    A forked child has the same addresses, but not the pages of the libraries: far less resident memory.
    """
    for _ in range(_MOST_READINGS):
        (before, resident), (theirs, resident_theirs), (after, _) = statm(), statm(child), statm()
        if theirs in (before, after) and abs(resident - resident_theirs) < _LARGEST_DIFFERENCE:
            return True
        if before == after:
            break
    return False


@dataclass(frozen=True)
class OtherProcess:
    """A process that does not belong to the run: its name, number (PID) and resident memory (bytes)."""

    name: str
    number: int
    resident: int

    def __str__(self) -> str:
        return f"{quoted(self.name)} (PID {self.number}) {size(self.resident)}"


_OTHERS_SHOWN = 3


def memory_of_others(limit: Limit, counted: int, usage: Usage) -> tuple[int, tuple[OtherProcess, ...]]:
    """Return which part of the bytes `counted` against a limit other processes hold, and the largest three of these.

    Only on the host are they known by name. Some may be hidden from this process, as outside of its container.
    """
    if not isinstance(limit, HostLimit):
        return (max(usage.device.taken - usage.device.reserved, 0) if usage.device else 0), ()
    if limit.kind in ("run", "address_space"):
        return 0, ()
    own, found = psutil.Process(), []
    run = {own.pid, *(child.pid for child in own.children(recursive=True))}
    for process in psutil.process_iter():
        # It may have ended, or be another user's.
        with suppress(psutil.Error):
            if process.pid not in run and (limit.group is None or limit.group.has(process.pid)):
                found.append(OtherProcess(process.name(), process.pid, int(process.memory_info().rss)))
    found.sort(key=lambda other: -other.resident)
    return max(counted - usage.host, 0), tuple(found[:_OTHERS_SHOWN])


def gpu_in_use() -> bool:
    """Return whether this process has initialised CUDA; does not initialise it."""
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
    """Measures memory: of this process each time, of its descendants less often, and what counts against `limits`."""

    def __init__(self, limits: Sequence[HostLimit], device: torch.device | None = None) -> None:
        self._limits = tuple(limits)
        self._device = device or torch.device("cpu")
        self._children = 0
        self._next_reading = -float("inf")

    def read(self) -> Usage:
        """Measure the memory now; may be called from any thread."""
        virtual, own = statm()
        children = self._children_bytes()
        # A list first: a report that lists all objects could find a tuple that is filled while files are read.
        counted = tuple([self._counted(limit, own + children, virtual) for limit in self._limits])
        return Usage(own, children, counted, device_bytes(self._device))

    def _children_bytes(self) -> int:
        now = time.monotonic()
        if now >= self._next_reading:
            # Set first, so that no other thread measures at the same time.
            self._next_reading = now + _CHILDREN_SECONDS
            self._children = _descendants_bytes()
            ended = time.monotonic()
            self._next_reading = ended + max(_CHILDREN_SECONDS, (ended - now) / _CHILDREN_SHARE)
        return self._children

    def _counted(self, limit: HostLimit, resident: int, virtual: int) -> int:
        if limit.kind == "address_space":
            return virtual
        if limit.kind == "machine":
            machine = psutil.virtual_memory()
            return max(int(machine.total - machine.available), resident)
        return max((limit.group.used() if limit.group else None) or 0, resident)

    def peaks(self) -> tuple[int, DeviceUsage | None]:
        """Return the highest memory since `reset_peaks`: resident of this process (bytes), and on the device."""
        now = device_bytes(self._device)
        if now is None:
            return peak_resident_bytes(), None
        allocated, reserved = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
        return peak_resident_bytes(), DeviceUsage(int(allocated(self._device)), int(reserved(self._device)), now.taken)

    def reset_peaks(self) -> None:
        reset_peak()
        if self._device.type == "cuda" and gpu_in_use():
            torch.cuda.reset_peak_memory_stats(self._device)


def headroom_bytes(memory: MemoryConfig) -> int:
    """Return how many bytes can be allocated on the host before the hard line of the tightest limit, at least 0."""
    limits = host_limits(memory)
    counted = SystemMeter(limits).read().counted
    return max(min(int(memory.hard * limit.bytes) - taken for limit, taken in zip(limits, counted, strict=True)), 0)


# A prediction uses this many newest phases of a name.
_REMEMBERED = 3
_NO_DEVICE = DeviceUsage(0, 0, 0)


@dataclass
class PhaseUsage:
    """The memory of a phase of a generation (bytes).

    Attributes:
        began, ended: seconds since the `MemoryGuard` was made; for a running phase `ended` is its last reading.
        start_bytes, peak_bytes, end_bytes: resident memory of all processes of the run.
        device_start_bytes, device_end_bytes: in tensors on the GPU; 0 without one.
        device_allocated_peak, device_reserved_peak: peaks in tensors, and held by torch (see `DeviceUsage`).
    """

    phase: str
    generation: int
    began: float
    ended: float
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    device_start_bytes: int = 0
    device_end_bytes: int = 0
    device_allocated_peak: int = 0
    device_reserved_peak: int = 0

    @classmethod
    def begin(cls, phase: str, generation: int, now: float, usage: Usage) -> Self:
        begun = cls(phase, generation, now, now, usage.host, usage.host, usage.host)
        begun.device_start_bytes = (usage.device or _NO_DEVICE).allocated
        begun.note(now, usage)
        return begun

    def note(self, now: float, usage: Usage) -> None:
        self.ended, self.end_bytes = now, usage.host
        self.device_end_bytes = (usage.device or _NO_DEVICE).allocated
        self.note_peaks(usage.host, usage.device)

    def note_peaks(self, host: int, device: DeviceUsage | None) -> None:
        self.peak_bytes = max(self.peak_bytes, host)
        if device is not None:
            self.device_allocated_peak = max(self.device_allocated_peak, device.allocated)
            self.device_reserved_peak = max(self.device_reserved_peak, device.reserved)


def expected_growth(ended: Iterable[PhaseUsage], name: str) -> tuple[int, int]:
    """Return the expected growth of memory in the next phase called `name`, on host and device (bytes).

    It is a sum: the most that one of the three newest such phases freed again, and the least that one kept. The first
    phases keep libraries and caches that load only once; a leak keeps as much every time. `ended`: oldest phase first.
    """
    newest = [phase for phase in ended if phase.phase == name][-_REMEMBERED:]
    return (
        _growth([(phase.start_bytes, phase.peak_bytes, phase.end_bytes) for phase in newest]),
        _growth([(p.device_start_bytes, p.device_allocated_peak, p.device_end_bytes) for p in newest]),
    )


def _growth(phases: Sequence[tuple[int, int, int]]) -> int:
    if not phases:
        return 0
    return max(peak - end for _, peak, end in phases) + max(min(end - start for start, _, end in phases), 0)
