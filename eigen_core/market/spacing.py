"""Weekly and monthly bars are recognised by the regular spacing of their days, and refused."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.days import Days

_GAPS_TO_JUDGE_BY = 10
_MOST_GAPS = 0.8
_NEAR = (0.8, 1.25)
_NAMES = {"weekly": (6, 8), "monthly": (26, 33), "quarterly": (85, 95)}


def refuse_longer_bars(days: Days, known: NDArray[np.bool_], symbols: Sequence[str], source: str) -> None:
    """Refuse prices of which most symbols have one row a week, a month, or any other number of days above one.

    Gaps of daily prices are not regular: their days follow each other after one day, but for weekends.

    Args:
        days: datetime64[D] `[days]`, increasing.
        known: bool `[days, symbols]`, there is a price.
        symbols: names.
        source: the name of the source, for messages.

    Raises:
        InputError: over half of the symbols with enough rows are such.
    """
    spacings = {
        symbol: spacing
        for symbol, column in zip(symbols, known.T, strict=True)
        if (spacing := _spacing(np.diff(days[column]).astype(np.int64))) is not None
    }
    longer = {symbol: spacing for symbol, spacing in spacings.items() if spacing > 1}
    if not longer or 2 * len(longer) <= len(spacings):
        return
    usual = int(np.median(list(longer.values())))
    name = next((name for name, (low, high) in _NAMES.items() if low <= usual <= high), f"{usual}-day")
    raise InputError(
        f"{source}: most rows of {len(longer)} of {len(symbols)} symbols, '{next(iter(longer))}' first, follow each "
        f"other after about {usual} days: these look like {name} bars. Holding days, windows and yearly figures count "
        "trading days: give daily bars."
    )


def _spacing(gaps: NDArray[np.int64]) -> int | None:
    """Return by how many days most rows follow each other, 0 if they do so irregularly; None: too few rows to judge."""
    if len(gaps) < _GAPS_TO_JUDGE_BY:
        return None
    usual = float(np.median(gaps))
    near = (gaps >= _NEAR[0] * usual) & (gaps <= _NEAR[1] * usual)
    return round(usual) if near.mean() >= _MOST_GAPS else 0
