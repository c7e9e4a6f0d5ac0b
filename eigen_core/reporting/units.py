"""Numbers as people read them, with their units."""

from datetime import UTC, datetime

BYTES_PER_MB = 1e6
"""A megabyte is a million bytes in every table and plot."""


def number(value: float) -> str:
    """Format a value for people: thousands apart, M for millions, three digits where it is small."""
    if value == 0.0:
        return "0"
    size = abs(value)
    if size >= 1e12 or size < 1e-4:
        text = f"{value:.1e}"
    elif size >= 1e6:
        text = f"{_three_digits(value / 1e6)}M"
    else:
        text = _three_digits(value)
    return text.replace("-", "−")


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed(value: float) -> str:
    """Format a change for people, with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def count(amount: int, noun: str) -> str:
    """Format an amount with its noun: "1 generation", "12 generations"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def duration(seconds: float) -> str:
    """Format a time for people: "8.2 s", "3 min 20 s", "5 h 12 min"."""
    if seconds < 60.0:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600:,} h {whole % 3_600 // 60} min"


def rough_duration(seconds: float) -> str:
    """Format a time that is only guessed: "40 s", "36 min", "5 h 12 min", "3 days 4 h"."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} days {hours % 24} h"


def reward(value: float) -> str:
    """Format a reward for people: two decimals, thousands apart."""
    return f"{value:,.2f}"


def clock(when: datetime, now: datetime) -> str:
    """Format a moment in UTC, with the date if that is not the date of `now`: "04:12 UTC", "23 Nov 04:12 UTC"."""
    when, now = when.astimezone(UTC), now.astimezone(UTC)
    day = "" if when.date() == now.date() else f"{when.day} {when:%b} "
    return f"{day}{when:%H:%M} UTC"


def exact_clock(when: datetime) -> str:
    """Format a moment with date and seconds: "21 Nov 2026, 03:36:10 UTC"."""
    when = when.astimezone(UTC)
    return f"{when.day} {when:%b %Y, %H:%M:%S} UTC"
