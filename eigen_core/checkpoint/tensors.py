"""Named tensors in safetensors files; reading such a file cannot run code, unlike a pickle."""

import errno
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from eigen_core.checkpoint.integrity import DamagedFileError, json_sha256
from eigen_core.checkpoint.manifest import DataType, TensorInfo

DATA_TYPES: dict[torch.dtype, DataType] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TORCH_TYPES: dict[DataType, torch.dtype] = {name: dtype for dtype, name in DATA_TYPES.items()}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def tensor_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a tensor's elements in row-major order as uint8 `[bytes]`; of a contiguous CPU tensor this is a view."""
    array: NDArray[np.uint8] = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return array


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one SHA-256 (hexadecimal) of names, types, shapes and bytes; order and device do not matter."""
    return json_sha256(
        [
            [name, str(tensor.dtype), list(tensor.shape), hashlib.sha256(tensor_bytes(tensor).data).hexdigest()]
            for name, tensor in sorted(tensors.items())
        ]
    )


def tensor_infos(file: str, tensors: Mapping[str, torch.Tensor]) -> tuple[TensorInfo, ...]:
    """Return name, type and shape of tensors, sorted by name; `ValueError` (naming `file`) if one cannot be stored."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DATA_TYPES:
            raise ValueError(f"tensor '{name}' for {file} is of type {tensor.dtype}, which cannot be stored")
    return tuple(
        TensorInfo(name=name, dtype=DATA_TYPES[tensor.dtype], shape=tuple(tensor.shape))
        for name, tensor in sorted(tensors.items())
    )


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file without copying contiguous CPU tensors. Equal tensors give equal bytes."""
    # The writer reads from the addresses of these arrays, so they must live until it is done.
    arrays = {name: tensor_bytes(tensor) for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            data_ptr=arrays[name].ctypes.data,
            data_len=arrays[name].nbytes,
        )
        for name, tensor in tensors.items()
    }
    try:
        serialize_file(specs, path)
    except SafetensorError as error:
        # safetensors gives the error number (errno) of the operating system only in its message.
        number = _OS_ERROR.search(str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def read_tensors(path: Path, expected: tuple[TensorInfo, ...]) -> dict[str, torch.Tensor]:
    """Read the tensors of a file into CPU memory (not mapped); `DamagedFileError` if they differ from `expected`."""
    try:
        with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except SafetensorError as error:
        raise DamagedFileError("is not a safetensors file") from error
    if {name: (DATA_TYPES.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()} != {
        info.name: (info.dtype, info.shape) for info in expected
    }:
        raise DamagedFileError("does not hold the tensors that the manifest lists")
    return tensors
