"""Memory of a process that others of the same machine and user can map (Linux)."""

import logging
import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from uuid import uuid4

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_PLATFORM = "linux"


def shares_memory(device: str) -> bool:
    """Return whether tensors on a kind of device can be in memory that other processes map."""
    return sys.platform == _PLATFORM and device == "cpu"


@dataclass(frozen=True)
class SharedTensor:
    """Where other processes find a tensor of this one.

    The system frees the memory with the last process that has it, however that ends; no file has a name.

    Attributes:
        path: of its descriptor, in the /proc of the process that made it.
        name: which no other memory has. On another machine, or in another container, the path leads elsewhere.
        shape, dtype: of the tensor.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def opened(self) -> Tensor | None:
        """Return the tensor, which must not be written to; None where it cannot be reached from here."""
        if 0 in self.shape:
            return torch.zeros(self.shape, dtype=self.dtype)
        try:
            # Looked at before it is opened: opening a pipe would wait.
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
    """Return zeros on the CPU that other processes can map, and where.

    As with `unwritten_zeros`, a page of them takes memory when it is first written.

    Raises:
        OSError: the system refuses it.
    """
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
    # Others open it as long as the tensor is there.
    weakref.finalize(memory, os.close, descriptor)
    where = SharedTensor(f"/proc/{os.getpid()}/fd/{descriptor}", name, tuple(shape), dtype)
    tensor = torch.frombuffer(memory, dtype=dtype).reshape(*shape) if size else torch.zeros(*shape, dtype=dtype)
    return tensor, where


def shared_probe() -> tuple[Tensor, SharedTensor] | None:
    """Return memory by which others find out whether they can map that of this process; None where it shares none."""
    if not shares_memory("cpu"):
        return None
    try:
        return shared_zeros((1,), torch.uint8)
    except OSError as error:
        logger.warning("Each worker keeps a replay of its own: this system shares no memory (%s).", error)
        return None
