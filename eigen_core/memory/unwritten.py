"""Tensors on the host whose pages take memory only once they are written."""

import mmap
import sys
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

# Linux's <mman.h>; Python 3.11 has no name for it. Without it the system refuses a mapping larger than its memory.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


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
