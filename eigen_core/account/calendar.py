"""Years: how many days of trading they have, and what their rates are a day."""

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import AccountConfig

Values = NDArray[np.float64]

DAYS_OF_YEAR = 365.25
_CONVENTIONS = (252, 365)  # stock exchanges, and markets that never close
_NEAR_DAYS, _NEAR_SHARE = 5.0, 0.01  # by which holidays and closures move the count of a year's days, or of several
_LONGEST_REST, _LONGEST_REST_IN_SPACINGS = 14.0, 5.0  # longer gaps are missing days


def daily_rates(rate: float, dates: NDArray[np.datetime64]) -> Values:
    """Return what a rate of a year earns since the day before, compounded by calendar time; float64 `[days]`.

    Args:
        rate: a year (a fraction).
        dates: datetime64[D] `[days]`. On the first day an account begins, and nothing is earned.
    """
    years = np.diff(dates, prepend=dates[:1]) / np.timedelta64(1, "D") / DAYS_OF_YEAR
    rates: Values = (1.0 + rate) ** years - 1.0
    return rates


def periods_per_year(dates: NDArray[np.datetime64], account: AccountConfig, span: range | None = None) -> int:
    """Return how many days of a market make a year: `account.periods_per_year`, or as many as there are.

    Days of the span, and of the years before it that make it five, are counted and divided by the calendar time that
    they take: the calendar may change, as where coins, which trade every day, join stocks. Gaps of more than two weeks
    are left out of both. The number is 252 or 365 where the days are as many as that but for holidays; else it is
    rounded.

    Args:
        dates: datetime64[D] `[days]`, increasing; fewer than two raise ValueError.
        account: its settings.
        span: the days that the number is for; None: the last ones.
    """
    if account.periods_per_year is not None:
        return account.periods_per_year
    stop = len(dates) if span is None else span.stop
    first = int(np.searchsorted(dates, dates[stop - 1] - np.timedelta64(round(5 * DAYS_OF_YEAR), "D")))
    gaps = np.diff(dates[first if span is None else min(first, span.start) : stop]) / np.timedelta64(1, "D")
    if not len(gaps):
        raise ValueError("one day says nothing about a year")
    counted = gaps[gaps <= max(_LONGEST_REST, _LONGEST_REST_IN_SPACINGS * float(np.median(gaps)))]
    years = float(counted.sum()) / DAYS_OF_YEAR
    nearest = min(_CONVENTIONS, key=lambda number: abs(len(counted) - number * years))
    if abs(len(counted) - nearest * years) <= max(_NEAR_DAYS, _NEAR_SHARE * len(counted)):
        return nearest
    return max(1, round(len(counted) / years))
