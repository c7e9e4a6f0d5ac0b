"""Named tensors as safetensors files, JSON documents as files; nothing in them can be executed."""

import errno
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors import SafetensorError, TensorSpec, safe_open, serialize, serialize_file

from eigen_core.checkpoint.blobs import write_blob, write_bytes
from eigen_core.checkpoint.integrity import DamagedFileError, canonical_json, tensor_bytes
from eigen_core.checkpoint.manifest import DATA_TYPES, FileEntry, TensorFacts
from eigen_core.checkpoint.snapshot import Snapshot

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def tensor_facts(file: str, tensors: Mapping[str, torch.Tensor]) -> tuple[TensorFacts, ...]:
    """Return name, type and shape of tensors, by name.

    Raises:
        ValueError: a tensor for `file` has a type that cannot be stored.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DATA_TYPES:
            raise ValueError(f"tensor '{name}' for {file} is of type {tensor.dtype}, which cannot be stored")
    return tuple(TensorFacts.of(name, tensor) for name, tensor in sorted(tensors.items()))


def serialized(tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file; the order of the metadata in it is not defined."""
    arrays = {name: tensor_bytes(tensor) for name, tensor in tensors.items()}
    return bytes(serialize(_specs(tensors, arrays), metadata))


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file, without a copy of contiguous CPU tensors. Equal content gives equal bytes.

    Raises:
        OSError: the file system refuses.
    """
    arrays = {name: tensor_bytes(tensor) for name, tensor in tensors.items()}
    try:
        serialize_file(_specs(tensors, arrays), path)
    except SafetensorError as error:
        # It gives the number of the system's error in its message alone.
        number = _OS_ERROR.search(str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def _specs(tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, NDArray[np.uint8]]) -> dict[str, TensorSpec]:
    """Describe tensors to the writer, by the addresses of their bytes: `arrays` must live until they are written."""
    return {
        name: TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            data_ptr=arrays[name].ctypes.data,
            data_len=arrays[name].nbytes,
        )
        for name, tensor in tensors.items()
    }


def write_files(snapshot: Snapshot, run: Path) -> list[FileEntry]:
    """Write the tensors and documents of a snapshot as blobs of the run in a folder and return their entries.

    Raises:
        ValueError: one of them cannot be stored; nothing is written then.
    """
    facts = {stem: tensor_facts(f"{stem}.safetensors", held) for stem, held in sorted(snapshot.tensors.items())}
    texts = {stem: document_bytes(f"{stem}.json", held) for stem, held in sorted(snapshot.documents.items())}
    entries = []
    for stem, tensors in facts.items():
        held = snapshot.tensors[stem]
        sha256, size = write_blob(run, partial(write_tensors, tensors=held))
        entries.append(FileEntry(name=f"{stem}.safetensors", bytes=size, sha256=sha256, tensors=tensors))
    for stem, text in texts.items():
        sha256, size = write_blob(run, partial(write_bytes, content=text))
        entries.append(FileEntry(name=f"{stem}.json", bytes=size, sha256=sha256, tensors=None))
    return entries


def read_tensors(path: Path, expected: tuple[TensorFacts, ...]) -> dict[str, torch.Tensor]:
    """Return the tensors of a verified safetensors file, on the CPU.

    They are read, not mapped: nothing that happens to the file later reaches them.

    Raises:
        DamagedFileError: it does not hold the tensors that are expected.
        OSError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except SafetensorError as error:
        raise DamagedFileError("is not a safetensors file") from error
    if {name: (DATA_TYPES.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()} != {
        facts.name: (facts.dtype, facts.shape) for facts in expected
    }:
        raise DamagedFileError("does not hold the tensors that the manifest lists")
    return tensors


def document_bytes(file: str, document: JsonValue | bytes) -> bytes:
    """Return a JSON document in its canonical spelling, or its JSON text as it is.

    Raises:
        ValueError: it holds NaN or infinity; the message names `file`.
    """
    try:
        return document if isinstance(document, bytes) else canonical_json(document)
    except ValueError as error:
        raise ValueError(f"{file} cannot be written as JSON: {error}") from error


def parse_document(content: bytes) -> JsonValue:
    """Return the document of verified JSON text.

    Raises:
        DamagedFileError: it is not JSON.
    """
    try:
        document: JsonValue = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("is not JSON") from error
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON knows no {name}")
