"""The memory of columns: on a device, on the host, or in files."""

import mmap
import os
import tempfile
from collections.abc import Collection
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from eigen_core.errors import InputError
from eigen_core.memory import unwritten_zeros
from eigen_core.memory.allocation import empty_device_cache


class ColumnMemory:
    """Allocates columns.

    A file has no name, and is gone when its column is freed or the process ends. Its disk is reserved when it is made:
    a disk that becomes full under a mapping would kill the process.

    Args:
        device: where they live; the CPU for those in files.
        folder: where files are; None: all columns are in memory.
        in_files: names of the columns that are in files.

    Raises:
        ValueError: files are asked for on another device than the CPU.
    """

    def __init__(self, device: torch.device, folder: Path | None, in_files: Collection[str]) -> None:
        if folder is not None and device.type != "cpu":
            raise ValueError(f"Trajectories in files live on the CPU, not on {device}: pick minibatches from there.")
        self._device = device
        self._folder = folder
        self._in_files = in_files
        self._mapped: dict[str, mmap.mmap] = {}

    def zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeros; on the CPU what is not written takes no memory.

        Raises:
            MemoryError, torch.OutOfMemoryError: there is not so much memory.
            InputError: the folder cannot hold the file.
        """
        self._mapped.pop(name, None)
        size = prod(shape) * dtype.itemsize
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=self._device)
        if self._folder is None or name not in self._in_files or size == 0:
            return unwritten_zeros(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                _reserve(file.fileno(), size)
                self._mapped[name] = mmap.mmap(file.fileno(), size)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"{self._folder} cannot hold the {size:,} bytes of the trajectories' {name}: {error}. Choose another "
                "folder, or fewer steps."
            ) from error
        return torch.frombuffer(self._mapped[name], dtype=dtype).reshape(shape)

    def release_mapped(self) -> None:
        """Take what was written or read of columns in files out of the memory of this process."""
        for memory in self._mapped.values():
            memory.madvise(mmap.MADV_DONTNEED)

    def release_freed(self) -> None:
        """Return the memory of freed columns to the device."""
        if self._device.type == "cuda":
            empty_device_cache()


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
