"""What lies beside a run's generations, plots and the holdout's results, and whether it is whole."""

import zlib

from eigen_core.checkpoint.sealed import unsealed

_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_WORD = 4


def attachment_damage(name: str, content: bytes) -> str | None:
    """Return what is wrong with a sealed JSON document or a PNG image, or None; other files have nothing to go by.

    Args:
        name: its name, whose ending says what it is.
        content: all of it.
    """
    if name.endswith(".json"):
        document = unsealed(content)
        return document if isinstance(document, str) else None
    if name.endswith(".png"):
        return None if _is_whole_png(content) else "is not a whole PNG image"
    return None


def _is_whole_png(content: bytes) -> bool:
    """Whether all chunks of an image have the checksums that they carry, and the last one is its end.

    A chunk is the length of its data, a type, the data, and the CRC-32 of type and data.
    """
    if not content.startswith(_PNG_START):
        return False
    at = len(_PNG_START)
    kind = b""
    while kind != _PNG_END:
        length = int.from_bytes(content[at : at + _WORD], "big")
        kind = content[at + _WORD : at + 2 * _WORD]
        end = at + 2 * _WORD + length
        checksum = content[end : end + _WORD]
        if len(checksum) < _WORD or zlib.crc32(content[at + _WORD : end]) != int.from_bytes(checksum, "big"):
            return False
        at = end + _WORD
    return at == len(content)
