"""How many of a market's days a year has, by the days themselves."""

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import AccountConfig

DAYS_OF_YEAR = 365.25
CONVENTIONS = (252, 365)
"""Days of trading a year of stock exchanges, and of markets that never close."""

_DAY = np.timedelta64(1, "D")
_YEARS = 5.0
# Weekends, holidays and closures move the count of a year's days by so many, and longer counts by this share.
_NEAR_DAYS, _NEAR_SHARE = 5.0, 0.01
# No exchange rests longer than two weeks: what is longer are days that are missing.
_LONGEST_REST = 14.0
_LONGEST_REST_IN_SPACINGS = 5.0


def periods_per_year(dates: NDArray[np.datetime64], account: AccountConfig, span: range | None = None) -> int:
    """Return how many of the days of a market make a year: `account.periods_per_year`, or as many as there are.

    Args:
        dates: datetime64[D] `[days]`, increasing.
        account: its settings.
        span: the days that the number is for; None: the last ones.

    Days of the span, and of the years before it that make it five, are counted and divided by the calendar time that
    they take: the calendar may change, as where coins, which trade every day, join stocks. Gaps of more than two weeks
    are left out of both. The number is 252 or 365 where the days are as many as that but for holidays; else it is
    rounded.

    Raises:
        ValueError: there are fewer than two days.
    """
    if account.periods_per_year is not None:
        return account.periods_per_year
    stop = len(dates) if span is None else span.stop
    longer_ago = dates[stop - 1] - np.timedelta64(round(_YEARS * DAYS_OF_YEAR), "D")
    first = int(np.searchsorted(dates, longer_ago))
    gaps = np.diff(dates[first if span is None else min(first, span.start) : stop]) / _DAY
    if not len(gaps):
        raise ValueError("one day says nothing about a year")
    counted = gaps[gaps <= max(_LONGEST_REST, _LONGEST_REST_IN_SPACINGS * float(np.median(gaps)))]
    years = float(counted.sum()) / DAYS_OF_YEAR
    off = {number: abs(len(counted) - number * years) for number in CONVENTIONS}
    nearest = min(off, key=lambda number: off[number])
    if off[nearest] <= max(_NEAR_DAYS, _NEAR_SHARE * len(counted)):
        return nearest
    return max(1, round(len(counted) / years))
