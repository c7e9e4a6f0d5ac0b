"""Sizes as people read them."""

BYTES_PER_GB = 1e9
"""A gigabyte is a thousand million bytes, in settings, tables and reports."""
_MEGABYTE = 1e6


def size(amount: float) -> str:
    """Format bytes for people: "3.72 GB", "87 MB", "-1.2 MB", "0 MB"."""
    if abs(amount) >= BYTES_PER_GB:
        return f"{amount / BYTES_PER_GB:,.2f} GB"
    megabytes = amount / _MEGABYTE
    text = f"{megabytes:,.0f}" if abs(megabytes) >= 10 or megabytes == 0 else f"{megabytes:.1f}"
    return f"{text} MB"


def signed_size(amount: float) -> str:
    """Format a change for people, with its sign."""
    return f"+{size(amount)}" if amount > 0 else size(amount)
