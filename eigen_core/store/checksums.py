"""CRC-32C, the checksum that Google Cloud Storage keeps of every object."""

import base64
from pathlib import Path
from typing import BinaryIO

import google_crc32c

_BLOCK = 4 << 20
_CHECKSUM_BYTES = 4


def crc32c(content: bytes, before: int = 0) -> int:
    """Return the checksum of some bytes, or of all up to them given that of those before."""
    return int(google_crc32c.extend(before, content))


def stream_checksum(stream: BinaryIO) -> tuple[int, int]:
    """Return size (bytes) and checksum of what is left of a stream, in bounded memory."""
    size = checksum = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        checksum = crc32c(block, checksum)
    return size, checksum


def file_checksum(path: Path) -> tuple[int, int]:
    """Return size (bytes) and checksum of a file, in bounded memory."""
    with open(path, "rb", buffering=0) as file:
        return stream_checksum(file)


def to_base64(checksum: int) -> str:
    """Return a checksum as Google Cloud Storage spells it."""
    return base64.b64encode(checksum.to_bytes(_CHECKSUM_BYTES, "big")).decode("ascii")


def from_base64(text: str) -> int:
    """Return a checksum that is spelled as Google Cloud Storage does.

    Raises:
        ValueError: it is no checksum.
    """
    content = base64.b64decode(text, validate=True)
    if len(content) != _CHECKSUM_BYTES:
        raise ValueError(f"not a CRC-32C: {text!r}")
    return int.from_bytes(content, "big")
