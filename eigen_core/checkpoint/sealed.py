"""Small JSON documents that carry their own checksum, so that no changed byte goes unnoticed."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from eigen_core.checkpoint.content import json_sha256

_CHECKSUM = "checksum"


def sealed(fields: Mapping[str, JsonValue]) -> bytes:
    """Return the one spelling of a document with these fields and, as `checksum`, the SHA-256 of their canonical JSON.

    Raises:
        ValueError: the document holds NaN or infinity, or has a field `checksum` already.
    """
    if _CHECKSUM in fields:
        raise ValueError("the field 'checksum' is written by the seal itself")
    return _spell({**fields, _CHECKSUM: json_sha256(dict(fields))})


def unsealed(content: bytes) -> dict[str, JsonValue] | str:
    """Return all fields of a sealed document, the checksum included, or what is wrong with it.

    It must be spelled exactly as `sealed` does it.
    """
    try:
        document = json.loads(content)
        if not isinstance(document, dict) or _CHECKSUM not in document:
            return "has no checksum"
        fields = {name: value for name, value in document.items() if name != _CHECKSUM}
        if json_sha256(fields) != document[_CHECKSUM] or _spell(document) != content:
            return "does not match its own checksum"
    except (ValueError, RecursionError):
        return "is not JSON"
    return document


def _spell(document: JsonValue) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")
