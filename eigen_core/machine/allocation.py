"""Allocations that fail, and addresses that take no memory until they are written."""

import errno
import logging
import mmap
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from eigen_core.machine.limits import HostLimit

logger = logging.getLogger(__name__)

# The last two are of CUDA, its driver and its libraries, which ask for memory beside torch's allocator.
_SIGNS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "not enough memory",
    "error: out of memory",
    "_STATUS_ALLOC_FAILED",
)
# Of the reserve. Measured: counting the objects, the texts, the picture, and what Prefect sends at the end of a flow.
_RESERVED_BYTES = 128_000_000
# Linux's <mman.h>; Python 3.11 has no name for it. Without it the system refuses a mapping larger than its memory.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# torch refuses to empty a GPU's cache while any thread captures a graph.
_device_cache = threading.RLock()


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error says that memory could not be had, on the host or on the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # What fails outside of torch's allocator on a GPU has no error class of its own.
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextmanager
def device_cache_kept() -> Iterator[None]:
    """Let no other thread empty a GPU's cache (`empty_device_cache`) during the block, which captures a CUDA graph."""
    with _device_cache:
        yield


def empty_device_cache() -> None:
    """Return what torch holds on a GPU and does not use; waits until no other thread captures a CUDA graph."""
    with _device_cache:
        torch.cuda.empty_cache()


def keep_reserve(limits: Iterable[HostLimit]) -> Callable[[], None]:
    """Keep addresses for a memory report, which takes memory too, if a limit counts addresses (RLIMIT_AS).

    No memory is behind them. Returns a function that frees them and may be called again. Other limits count resident
    memory: an allocation beyond them does not fail, and needs no reserve. Where there are not enough addresses, none
    are kept.
    """
    if all(limit.kind != "address_space" for limit in limits):
        return lambda: None
    try:
        held = mmap.mmap(-1, _RESERVED_BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        logger.warning("No addresses can be kept for a memory report: %s.", error)
        return lambda: None
    return held.close


def unwritten_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros on the CPU that take addresses only; a page of them takes memory when it is first written.

    `torch.zeros` writes them all.

    Raises:
        MemoryError: there are not so many addresses.
    """
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return torch.zeros(*shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size:,} bytes of addresses cannot be had: {error}") from error
    return torch.frombuffer(memory, dtype=dtype).reshape(*shape)
