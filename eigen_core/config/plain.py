"""Values as plain text: how they are read, and how they are shown in a sentence."""

import json
import reprlib

from pydantic import JsonValue

_SHOWN_CHARACTERS = 40
_SHOWN_BITS = 1_000


def plain_value(text: str) -> JsonValue:
    """Return the value that `text` is: what JSON says if it is JSON, None if it is empty, else the text itself."""
    if not text:
        return None
    try:
        value: JsonValue = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return value


def shown(value: object) -> str:
    """Return any value in quotes, on one line and of at most some 40 characters."""
    text = value if isinstance(value, str) else "" if value is None else _BOUNDED.repr(value)
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return f"'{short}'" if short.isprintable() else repr(short)


class _Bounded(reprlib.Repr):
    """Neither depth nor length of a value makes its text long, or fail."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= _SHOWN_BITS else f"a number of {x.bit_length():,} bits"


_BOUNDED = _Bounded()
