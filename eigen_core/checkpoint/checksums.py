"""Checksums: equal content has equal ones, whatever file it is written to, and JSON documents that carry their own."""

import hashlib
import json
from collections.abc import Iterator, Mapping

import torch
from pydantic import JsonValue

from eigen_core.checkpoint.damage import DamagedFileError

CHUNK_BYTES = 8 << 20
"""Bytes hashed and written at a time."""

_CHECKSUM = "checksum"


def canonical_json(document: JsonValue) -> bytes:
    """Return the one spelling of a JSON document: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: the document holds NaN or infinity, which JSON does not know.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_sha256(document: JsonValue) -> str:
    """Return the SHA-256 of a document's canonical spelling, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def checksummed(fields: Mapping[str, JsonValue]) -> bytes:
    """Return a JSON document with these fields and, as `checksum`, the SHA-256 of their canonical JSON.

    Raises:
        ValueError: the document holds NaN or infinity, or has a field `checksum` already.
    """
    if _CHECKSUM in fields:
        raise ValueError("the field 'checksum' is added here")
    return _file_content({**fields, _CHECKSUM: json_sha256(dict(fields))})


def parse_checksummed(content: bytes) -> dict[str, JsonValue]:
    """Return the fields of a document that `checksummed` wrote, without the checksum.

    Raises:
        DamagedFileError: a byte of it differs from what `checksummed` would write.
    """
    try:
        document = json.loads(content)
        if not isinstance(document, dict) or _CHECKSUM not in document:
            raise DamagedFileError("has no checksum")
        fields = {name: value for name, value in document.items() if name != _CHECKSUM}
        whole = json_sha256(fields) == document[_CHECKSUM] and _file_content(document) == content
    except DamagedFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("is not JSON") from error
    if not whole:
        raise DamagedFileError("does not match its own checksum")
    return fields


def _file_content(document: JsonValue) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def tensor_chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the elements of a tensor of any shape, type, layout in memory and device as bytes, in row-major order.

    Only a tensor that is not contiguous or not on the CPU is copied; the chunks of others show its own memory.
    """
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    view = flat.view(torch.uint8).numpy().data
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def tensor_sha256(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in tensor_chunks(tensor):
        digest.update(chunk)
    return digest.hexdigest()


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one SHA-256 over the names, types, shapes and bytes of `tensors`, in hexadecimal.

    It depends neither on the order of the mapping nor on device, strides or file format; equal hashes mean equal bits.
    """
    return json_sha256(
        [
            [name, str(tensor.dtype), list(tensor.shape), tensor_sha256(tensor)]
            for name, tensor in sorted(tensors.items())
        ]
    )
