"""Named tensors as safetensors files, JSON documents as files; nothing in them can be executed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open

from eigen_core.checkpoint.blobs import BlobFolder, HashingFile
from eigen_core.checkpoint.checksums import canonical_json, tensor_chunks
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.manifest import DATA_TYPES, FileEntry, TensorFacts
from eigen_core.checkpoint.snapshot import Snapshot

_ALIGNMENT = 8


def tensor_facts(file: str, tensors: Mapping[str, torch.Tensor]) -> tuple[TensorFacts, ...]:
    """Return name, type and shape of tensors, by name.

    Raises:
        ValueError: a tensor for `file` has a type that cannot be stored.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DATA_TYPES:
            raise ValueError(f"tensor '{name}' for {file} is of type {tensor.dtype}, which cannot be stored")
    return tuple(TensorFacts.of(name, tensor) for name, tensor in sorted(tensors.items()))


def tensor_file(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the content of a safetensors file, piece by piece and without a copy of CPU tensors.

    The library's own writer would need all tensors contiguous, on the CPU and without shared memory, would make files
    that only their owner can read, and hides the file system's errors. Equal content gives equal bytes: tensors are
    sorted by the size of their elements, largest first, which aligns them all, then by name.

    Args:
        tensors: of types in `DATA_TYPES`.
        metadata: text for the header.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    yield _header({name: tensors[name] for name in names}, metadata)
    for name in names:
        yield from tensor_chunks(tensors[name])


def _header(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """Return what stands before the tensors' bytes (https://github.com/huggingface/safetensors, "Format")."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DATA_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    content = json.dumps(header, separators=(",", ":")).encode("ascii")
    content += b" " * (-len(content) % _ALIGNMENT)
    return len(content).to_bytes(8, "little") + content


def write_files(snapshot: Snapshot, blobs: BlobFolder) -> list[FileEntry]:
    """Write the tensors and documents of a snapshot as blobs and return their entries.

    Raises:
        ValueError: one of them cannot be stored; nothing is written then.
    """
    facts = {stem: tensor_facts(f"{stem}.safetensors", held) for stem, held in sorted(snapshot.tensors.items())}
    texts = {stem: document_bytes(f"{stem}.json", held) for stem, held in sorted(snapshot.documents.items())}
    entries = []
    for stem, tensors in facts.items():
        sha256, size = blobs.write(partial(_fill, chunks=tensor_file(snapshot.tensors[stem])))
        entries.append(FileEntry(name=f"{stem}.safetensors", bytes=size, sha256=sha256, tensors=tensors))
    for stem, text in texts.items():
        sha256, size = blobs.write(partial(_fill, chunks=[text]))
        entries.append(FileEntry(name=f"{stem}.json", bytes=size, sha256=sha256, tensors=None))
    return entries


def _fill(file: HashingFile, chunks: Iterable[bytes | memoryview]) -> None:
    for chunk in chunks:
        file.write(chunk, lasting=True)


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
