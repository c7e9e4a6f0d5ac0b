"""Memory that is allocated lazily or shared with other processes, failed allocations, and the tensors of an object."""

import errno
import logging
import mmap
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.machine.limits import HostLimit

logger = logging.getLogger(__name__)

# Messages of failed allocations; the last two are of CUDA's driver and libraries, which do not use torch's allocator.
_SIGNS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "not enough memory",
    "error: out of memory",
    "_STATUS_ALLOC_FAILED",
)
# Measured: memory to list tensors, to write the report, and for Prefect to send the end of a flow.
_RESERVED_BYTES = 128_000_000
# Linux's <mman.h>; Python 3.11 has no name for it. Without it the system refuses a mapping larger than its memory.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# torch refuses to empty a GPU's cache while any thread captures a graph.
_device_cache = threading.RLock()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed, on the host or on the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # Failures outside of torch's allocator on a GPU have no error class.
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextmanager
def device_cache_kept() -> Iterator[None]:
    """Let no other thread empty a GPU's cache (`empty_device_cache`) during the block."""
    with _device_cache:
        yield


def empty_device_cache() -> None:
    """Empty torch's cache on a GPU, once no other thread captures a CUDA graph."""
    with _device_cache:
        torch.cuda.empty_cache()


def keep_reserve(limits: Iterable[HostLimit]) -> Callable[[], None]:
    """Reserve addresses for a memory report, if a limit counts addresses (RLIMIT_AS).

    Other limits count resident memory: an allocation beyond them does not fail. Returns a function that frees the
    addresses and may be called more than once. If too few addresses are left, it reserves none and logs a warning.
    """
    if all(limit.kind != "address_space" for limit in limits):
        return lambda: None
    try:
        held = mmap.mmap(-1, _RESERVED_BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        logger.warning("A memory report may fail, since no addresses can be reserved (%s): raise ulimit -v.", error)
        return lambda: None
    return held.close


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros on the CPU whose pages take memory only once they are written; `torch.zeros` writes them all.

    `MemoryError` if the address space is exhausted.
    """
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return torch.zeros(*shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size:,} bytes of addresses cannot be allocated: {error}") from error
    return torch.frombuffer(memory, dtype=dtype).reshape(*shape)


_PLATFORM = "linux"


def shares_memory(device: str) -> bool:
    """Return whether tensors on a `device` ("cpu" or "cuda") can be in memory that other processes here can map."""
    return sys.platform == _PLATFORM and device == "cpu"


@dataclass(frozen=True)
class SharedTensor:
    """A reference to a tensor's memory that other processes can map; the system frees it once no process maps it.

    `path` is its file descriptor in /proc of the process that created it. `opened` checks `name`, which is unique: in
    another container or machine, `path` is something else.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def opened(self) -> Tensor | None:
        """Return the tensor, which must not be written to; None if this process cannot open it."""
        if 0 in self.shape:
            return torch.zeros(self.shape, dtype=self.dtype)
        try:
            # Checked before it is opened: opening a pipe would wait.
            if os.readlink(self.path) != f"/memfd:{self.name} (deleted)":
                return None
            descriptor = os.open(self.path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            return None
        try:
            memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            return torch.frombuffer(memory, dtype=self.dtype).reshape(self.shape)


def shared_zeros(shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, SharedTensor]:
    """Return zeros like `lazy_zeros` in memory that other processes can map, and a reference; `OSError` if refused."""
    assert sys.platform == _PLATFORM
    size = prod(shape) * dtype.itemsize
    name = f"eigen-{uuid4().hex}"
    descriptor = os.memfd_create(name)
    try:
        os.truncate(descriptor, max(size, 1))
        memory = mmap.mmap(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    # Other processes can open it as long as the tensor exists.
    weakref.finalize(memory, os.close, descriptor)
    where = SharedTensor(f"/proc/{os.getpid()}/fd/{descriptor}", name, tuple(shape), dtype)
    tensor = torch.frombuffer(memory, dtype=dtype).reshape(*shape) if size else torch.zeros(*shape, dtype=dtype)
    return tensor, where


def shared_memory_check() -> tuple[Tensor, SharedTensor] | None:
    """Return memory by which other processes test whether they can map memory of this one; None: this system cannot."""
    if not shares_memory("cpu"):
        return None
    try:
        return shared_zeros((1,), torch.uint8)
    except OSError as error:
        logger.warning("Each worker keeps a copy of the replay buffer, since this system shares no memory (%s).", error)
        return None


_CONTAINERS = (list, tuple, set, frozenset)
Values = Tensor | NDArray[Any]


def tensors_of(owner: object) -> dict[int, Values]:
    """Return the tensors and arrays that an object holds, by address; of those that share memory, only the largest.

    Follows containers, and attributes of `owner` and of objects whose classes are Eigen's.
    """
    found: dict[int, Values] = {}
    seen: set[int] = set()
    stack = [owner]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor | np.ndarray):
            add_largest(found, item)
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, _CONTAINERS):
            stack += item
        elif item is owner or type(item).__module__.partition(".")[0] == "eigen_core":
            attributes: Mapping[str, object] = getattr(item, "__dict__", {})
            stack += attributes.values()
    return found


def add_largest(found: dict[int, Values], item: Values) -> None:
    """Add a tensor or array to `found`, by address, unless `found` has one that is as large at the same address."""
    address, _ = memory_of(item)
    if address and (address not in found or found[address].nbytes < item.nbytes):
        found[address] = item


def memory_of(item: Values) -> tuple[int, int]:
    """Return address and size (bytes) of the memory that a tensor or array is part of; zeros if it has no memory."""
    if isinstance(item, Tensor):
        try:
            storage = item.untyped_storage()
            return int(storage.data_ptr()), int(storage.nbytes())
        except (NotImplementedError, RuntimeError):
            # Sparse, fake and batched tensors.
            return 0, 0
    while isinstance(item.base, np.ndarray):
        item = item.base
    return int(item.ctypes.data), item.nbytes


def owned_bytes(owner: object) -> int:
    """Return the size of the tensors and arrays that an object holds, on any device (bytes)."""
    return sum(memory_of(item)[1] for item in tensors_of(owner).values())
