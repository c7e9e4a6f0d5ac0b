"""Numbers as people read them, with their units."""

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
