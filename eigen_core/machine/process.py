"""The memory of this process alone: its size, its peak, and how the C library handles what is freed."""

import ctypes
import logging
import mmap
import resource
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
# malloc.h of the GNU C library.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_MAPPED_BYTES = 8 * 1024**2
_TOP_BYTES = 64 * 1024**2
# `resident_part` needs a byte for each page: mappings that were never written can be large.
_PAGES_AT_ONCE = 1 << 20


def own_resident_bytes() -> int:
    """Return the resident memory of this process alone (bytes)."""
    return statm()[1]


def address_space_bytes() -> int:
    """Return the addresses that this process has mapped, whether memory is behind them or not (bytes)."""
    return statm()[0]


def statm(process: int | None = None) -> tuple[int, int]:
    """Return addresses and resident memory of a process, by default this one (bytes).

    Raises:
        psutil.NoSuchProcess: it has ended.
        psutil.AccessDenied: it may not be looked at.
    """
    try:
        virtual, resident, *_ = Path(f"/proc/{process or 'self'}/statm").read_text().split()
    except OSError:
        info = psutil.Process(process).memory_info()
        return int(info.vms), int(info.rss)
    return int(virtual) * mmap.PAGESIZE, int(resident) * mmap.PAGESIZE


def proc_entries(path: Path) -> dict[str, int]:
    """Read lines such as "Pss: 12 kB" of a file in /proc (bytes).

    Raises:
        OSError: the file cannot be read.
    """
    entries = (line.split() for line in path.read_text().splitlines())
    return {entry[0].rstrip(":"): int(entry[1]) * 1024 for entry in entries if len(entry) == 3 and entry[2] == "kB"}


def process_bytes(name: str, path: Path | None = None) -> int:
    """Return an entry of /proc/self/status, such as "RssFile", or of another file (bytes); 0 where there is none."""
    try:
        return proc_entries(path or _STATUS).get(name, 0)
    except OSError as error:
        logger.debug("%s is not known: %s.", name, error)
        return 0


def peak_resident_bytes() -> int:
    """Return the highest resident memory of this process, without its children, since the last `reset_peak` (bytes).

    Where the peak cannot be reset it is the highest since the process started.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return process_bytes("VmHWM") or (peak if sys.platform == "darwin" else peak * 1024)


def reset_peak() -> bool:
    """Let the peak start again from the present memory. Return whether the system can do that (Linux, man 5 proc)."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError as error:
        logger.debug("The peak of the resident memory cannot be reset: %s.", error)
        return False
    return True


def release_free_memory() -> bool:
    """Return freed memory that the allocator keeps to the system. Return whether there was any.

    glibc keeps freed blocks, so resident memory changes although nothing leaks; trimming it once a generation keeps it
    flat. Does nothing where the C library has no `malloc_trim`.
    """
    trim = _c_function("malloc_trim", ctypes.c_size_t)
    return trim is not None and trim(0) == 1


def tune_allocator(arenas: int = 2) -> bool:
    """Make the C library keep less freed memory; return whether it has these settings (GNU's has).

    The threads of this process share `arenas` heaps: each further one would get its own heap, and free memory of one
    heap cannot serve another. With Prefect's threads the resident memory changes by megabytes. The same as
    `MALLOC_ARENA_MAX`, for a process that has started.

    Blocks of 8 MiB and more are mapped one by one and unmapped when they are freed. By default the library raises that
    threshold up to 32 MiB, as blocks are freed, and allocates smaller ones in the heap, which becomes fragmented: the
    train phase of preset `eigen2` rose by 2,457 MB where 1,586 MB of tensors lived at once, and by 1,653 MB with the
    fixed threshold. Mapping costs a page fault for each page: at 8 MiB no time that could be measured in preset
    `quickstart`, at 4 MiB 0.1 s a generation. A fixed threshold also stops the library from raising the one for the
    free memory at the top of the heap, so that one is set too.
    """
    mallopt = _c_function("mallopt", ctypes.c_int, ctypes.c_int)
    settings = ((_M_ARENA_MAX, arenas), (_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_TRIM_THRESHOLD, _TOP_BYTES))
    return mallopt is not None and {mallopt(option, value) for option, value in settings} == {1}


def resident_part(address: int, size: int) -> int:
    """Return how much of a range of this process's addresses is in memory (bytes); `size` where that is not known."""
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
    """Return a function of the C library that returns an int; None where the library does not have it."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.argtypes = arguments
    return function
