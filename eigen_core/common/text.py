"""Formats values for messages and tables: numbers with units, quoted values, URLs without passwords."""

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from pydantic import JsonValue

FLOAT32_BYTES = 4
"""Bytes of a float32."""
BYTES_PER_MB = 1e6
"""A megabyte (MB) in settings, tables, plots and reports is a million bytes."""
BYTES_PER_GB = 1e9

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def size(amount: float) -> str:
    """Format a number of bytes: "3.72 GB", "87 MB", "-1.2 MB", "0 MB"."""
    if abs(amount) >= BYTES_PER_GB:
        return f"{amount / BYTES_PER_GB:,.2f} GB"
    megabytes = amount / BYTES_PER_MB
    text = f"{megabytes:,.0f}" if abs(megabytes) >= 10 or megabytes == 0 else f"{megabytes:.1f}"
    return f"{text} MB"


def duration(seconds: float) -> str:
    """Format a measured time: "8.24 s", "3 min 20 s", "5 h 12 min", "3 days 4 h"."""
    if seconds < _MINUTE:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < _HOUR:
        return _in_two_units(whole, _MINUTE, "min", 1, "s")
    if whole < 2 * _DAY:
        return _in_two_units(whole, _HOUR, "h", _MINUTE, "min")
    return _in_two_units(whole, _DAY, "days", _HOUR, "h")


def rough_duration(seconds: float) -> str:
    """Format an estimated time, with fewer digits than `duration`: "0.52 s", "40 s", "36 min", "5 h 12 min"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 90 else duration(_MINUTE * round(seconds / _MINUTE))


def _in_two_units(seconds: int, large: int, name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large:,} {name}" + (f" {rest} {small_name}" if rest else "")


def number(value: float) -> str:
    """Format a value: "0.123", "1,234", "2.5M" (millions), "1.0e+12"; below 100 to three significant digits."""
    if value == 0.0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e12 or magnitude < 1e-4:
        text = f"{value:.1e}"
    elif magnitude >= 1e6:
        text = f"{_three_digits(value / 1e6)}M"
    else:
        text = _three_digits(value)
    return text.replace("-", "−")


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction (0.124) as a percentage: "12.4 %", "−3.0 %"."""
    return f"{_rounded(100.0 * fraction, digits)} %"


def change(value: float, digits: int = 2) -> str:
    """Format a change with its sign, plus if it is zero after rounding: "+0.12", "−3.00", "+0.00"."""
    return f"{value:+z,.{digits}f}".replace("-", "−")


def money(amount: float) -> str:
    """Format an amount of money, rounded to whole units of its currency: "112,400", "−3,050"."""
    return _rounded(amount, 0)


def _rounded(value: float, digits: int) -> str:
    """Format a value; zero after rounding has no sign."""
    return f"{value:z,.{digits}f}".replace("-", "−")


def ratio(value: float) -> str:
    return _rounded(value, 2)


def count(amount: int, noun: str) -> str:
    """Format a number with a noun, which gets an "s" unless the number is 1: "1 generation", "12 generations"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def in_words(statistics: Mapping[str, float]) -> str:
    """Return the first three `statistics`, values by name, as text: "trades 60.3, win rate 0.48, idle days 12"."""
    shown = islice(statistics.items(), 3)
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in shown)


def listed(items: Sequence[str], most: int) -> str:
    """Join the first `most` items and count the rest, if any: "a, b and 3 more"."""
    return ", ".join(items[:most]) + (f" and {len(items) - most:,} more" if len(items) > most else "")


def reward(value: float) -> str:
    return f"{value:,.2f}"


def clock(when: datetime, now: datetime) -> str:
    """Format a time in UTC, with its date unless `now` is on the same day: "04:12 UTC", "23 Nov 04:12 UTC"."""
    when, now = when.astimezone(UTC), now.astimezone(UTC)
    day = "" if when.date() == now.date() else f"{when.day} {when:%b} "
    return f"{day}{when:%H:%M} UTC"


def exact_clock(when: datetime) -> str:
    """Format a time with date and seconds: "21 Nov 2026, 03:36:10 UTC"."""
    when = when.astimezone(UTC)
    return f"{when.day} {when:%b %Y, %H:%M:%S} UTC"


_SHOWN_CHARACTERS = 40
_SHOWN_BITS = 1_000


def json_or_text(text: str) -> JsonValue:
    """Parse `text` as JSON; None if it is empty, the text itself if it is not JSON. NaN and Infinity become strings."""
    if not text:
        return None
    try:
        value: JsonValue = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return value


def text_or_json(value: object) -> str:
    """Return a value as JSON, but a text as it is; `json_or_text` parses it again."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(value: object) -> str:
    """Return a value as text in quotes, on one line and cut off after 40 characters; of None only the quotes."""
    text = value if isinstance(value, str) else "" if value is None else _BOUNDED.repr(value)
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return f"'{short}'" if short.isprintable() else repr(short)


class _Bounded(reprlib.Repr):
    """A `repr` that stays short, and does not fail, for deeply nested values, long lists and huge integers."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= _SHOWN_BITS else f"a number of {x.bit_length():,} bits"


_BOUNDED = _Bounded()


_SCHEME = r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://"
# After the colon comes a password, which may contain slashes, or a port, which is a number.
_LOGIN = r"(?:[^/?#\s]{0,2000}|[^@/:\s]{0,200}:(?!\d+(?:/|\s|$))[^@\s]{0,2000})@"
# Without a scheme: `user:password@host`, but neither a path of Windows nor an address for e-mail.
_BARE_LOGIN = (
    r"""(?<![\w.+%:/\\@-])(?!mailto:)[\w.+%-]{1,60}(?:@[\w.-]{1,60})?:(?![/\\])[^\s@/\\,;"']{1,200}@(?=[\w\[])"""
)
_LONG_SECRET = "(?:password|passwd|pwd|token|secret|signature|credentials?|(?:api|access|account)_?key)"
_SHORT_SECRET = "(?:key|jwt|code|sas|sig|auth|pass)"
_NAME = rf"(?:[a-z0-9_.-]{{0,60}}{_LONG_SECRET}|(?:[a-z0-9_.-]{{0,60}}[_.-])?{_SHORT_SECRET})"
_USER = re.compile(rf"({_SCHEME}){_LOGIN}|{_BARE_LOGIN}", re.IGNORECASE)
_PARAMETER = re.compile(rf"([?&;#]{_NAME}=)[^&;#\s]+", re.IGNORECASE)
_LONGEST = 4_096
"""`has_credentials` searches only this many characters, since its time is quadratic in them; no setting is longer."""


def has_credentials(text: str) -> bool:
    """Whether a text contains a user with a password, a URL with a user, or a secret parameter (such as `?token=`)."""
    return any(secret.search(text[:_LONGEST]) for secret in (_USER, _PARAMETER))


def without_credentials(text: str) -> str:
    """Replace the users, passwords and values of secret parameters in URLs and addresses of a text by three dots."""
    return _PARAMETER.sub(r"\1...", _USER.sub(r"\1...@", text))


DISTRIBUTION = "eigen-trader"
"""Name of Eigen on PyPI; the package `eigen` there is a different project."""
