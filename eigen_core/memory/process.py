"""How much memory this process holds, and giving back what it no longer uses."""

import ctypes
import logging
import resource
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

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


def peak_resident_bytes() -> int:
    """Return the highest resident memory of this process, without its children, since the last `reset_peak` (bytes).

    Where the peak cannot be reset it is the highest since the process started.
    """
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        logger.debug("There is no %s; the peak comes from getrusage.", _STATUS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> bool:
    """Let the peak start again from the present memory. Return whether the system can do that (Linux, man 5 proc)."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError as error:
        logger.debug("The peak of the resident memory cannot be reset: %s.", error)
        return False
    return True


def release_free_memory() -> bool:
    """Give freed memory that the allocator keeps back to the system. Return whether any was.

    glibc keeps freed blocks, so resident memory wanders although nothing leaks; trimming it once a generation keeps it
    flat. Does nothing where the C library has no `malloc_trim`.
    """
    trim = _malloc_trim()
    return trim is not None and trim(0) == 1


def tune_allocator(arenas: int = 2) -> bool:
    """Let the C library keep less of what is freed; return whether it can be told so (GNU's can).

    The threads of this process share so many heaps: each further one would get a heap of its own, and what is free in
    one cannot serve another. With Prefect's threads the resident memory wanders by megabytes. The same as
    `MALLOC_ARENA_MAX`, for a process that has started.

    Blocks of 8 MiB and more are mapped one by one and unmapped when they are freed. By itself the library raises that
    threshold up to 32 MiB, as blocks are freed, and cuts what is smaller out of the heap, which falls to pieces: the
    train phase of preset `eigen2` rose by 2,457 MB where 1,586 MB of tensors lived at once, and by 1,653 MB with the
    fixed threshold. Mapping costs a page fault for each page: at 8 MiB no time that could be measured in preset
    `quickstart`, at 4 MiB 0.1 s a generation. A fixed threshold also stops the library from raising the one that says
    how much free memory the top of the heap may keep, so that one is given too.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_M_ARENA_MAX, arenas), (_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_TRIM_THRESHOLD, _TOP_BYTES))
    return {mallopt(option, value) for option, value in settings} == {1}


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return lambda pad: int(trim(pad))
