"""Writing files so that they last, and reading them only when they are what was written."""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open

from eigen_core.checkpoint.content import canonical_json, combine_tensor_hashes, tensor_chunks
from eigen_core.checkpoint.manifest import FileEntry

_TYPE_NAMES = {
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
_ALIGNMENT = 8


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file, make its content last, and return its size and SHA-256."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def write_document(path: Path, document: JsonValue | bytes) -> FileEntry:
    """Write a JSON document in its canonical spelling, or its JSON text as it is.

    Raises:
        ValueError: it holds NaN or infinity.
    """
    try:
        content = document if isinstance(document, bytes) else canonical_json(document)
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be written as JSON: {error}") from error
    size, digest = write_file(path, [content])
    return FileEntry(name=path.name, bytes=size, sha256=digest, content_sha256=digest)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileEntry:
    """Write named tensors as a safetensors file, one tensor at a time, in one pass and without a copy of CPU tensors.

    The library's own writer would need all tensors contiguous, on the CPU and without shared memory, would make files
    that only their owner can read, and hides the file system's errors. Equal content gives equal bytes: tensors are
    sorted by the size of their elements, largest first, which aligns them all, then by name.

    Raises:
        ValueError: a tensor has a type that is not supported.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPE_NAMES:
            raise ValueError(f"tensor '{name}' for {path.name} is of type {tensor.dtype}, which cannot be stored")
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    hashes: dict[str, str] = {}

    def chunks() -> Iterator[bytes | memoryview]:
        yield _safetensors_header({name: tensors[name] for name in names})
        for name in names:
            digest = hashlib.sha256()
            for chunk in tensor_chunks(tensors[name]):
                digest.update(chunk)
                yield chunk
            hashes[name] = digest.hexdigest()

    size, digest = write_file(path, chunks())
    return FileEntry(name=path.name, bytes=size, sha256=digest, content_sha256=combine_tensor_hashes(tensors, hashes))


def _safetensors_header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return what stands before the tensors' bytes (https://github.com/huggingface/safetensors, "Format")."""
    header = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    content = json.dumps(header, separators=(",", ":")).encode("ascii")
    content += b" " * (-len(content) % _ALIGNMENT)
    return len(content).to_bytes(8, "little") + content


def read_whole(path: Path) -> bytes | str:
    """Return a regular file's content, or what is wrong with it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "is not a file"
        return path.read_bytes()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def file_damage(folder: Path, entry: FileEntry, *, deep: bool) -> str | None:
    """Return what is wrong with a file, or None.

    Args:
        folder: the generation's folder.
        entry: what the file must be.
        deep: compare the SHA-256 too, not just the size.
    """
    path = folder / entry.name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        if status.st_size != entry.bytes:
            return f"has {status.st_size:,} bytes instead of {entry.bytes:,}"
        if deep:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != entry.sha256:
                return "does not match its SHA-256"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def read_tensors(path: Path) -> dict[str, torch.Tensor] | str:
    """Return the tensors of a verified safetensors file, on the CPU, or what is wrong with it.

    They are read, not mapped: nothing that happens to the file later reaches them.
    """
    try:
        with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
            return {name: file.get_tensor(name) for name in sorted(file.keys())}
    except SafetensorError:
        return "is not a safetensors file"


def read_document(path: Path) -> tuple[JsonValue] | str:
    """Return the document of a verified JSON file in a tuple of one, or what is wrong with it."""
    content = read_whole(path)
    if isinstance(content, str):
        return content
    try:
        return (json.loads(content),)
    except (ValueError, RecursionError):
        return "is not JSON"
