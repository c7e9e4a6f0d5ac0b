"""Equity of accounts over a span (a range of consecutive days), and the trading days of a year."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.common.text import count
from eigen_core.config import AccountConfig
from eigen_core.market.formats import dates_of, unit_of

Values = NDArray[np.float64]

DAYS_OF_YEAR = 365.25
_CONVENTIONS = (252, 365)  # stock exchanges, and markets that never close
_NEAR_DAYS, _NEAR_SHARE = 5.0, 0.01  # tolerance for holidays and closures: in days, and as a share of the days counted
_CLOSED_SHARE = 0.025  # such as the closure of September 2001, as a share of a year
_LONGEST_REST, _LONGEST_REST_IN_SPACINGS = 14.0, 5.0  # longer gaps (days, and median gaps) are missing data


@dataclass(frozen=True)
class EquityCurve:
    """Value of an account at the close of each day of a span.

    Attributes:
        dates: datetime64[D] `[days]`, increasing.
        capital: equity before the first day (money).
        equity: float64 `[days]`, cash plus positions at their last known close (money); it stays at 0 once it is 0.
        exposure: float64 `[days]`, value of the positions at the close as a share of the equity.
        traded: float64 `[days]`, value of the day's purchases plus sales at the prices of their fills (money).
        costs: float64 `[days]`, transaction costs and slippage of the day (money).
    """

    dates: NDArray[np.datetime64]
    capital: float
    equity: Values
    exposure: Values
    traded: Values
    costs: Values

    @property
    def days(self) -> str:
        """The first and the last day: "2012-01-03 to 2013-12-31"."""
        return f"{self.dates[0]} to {self.dates[-1]}"

    @property
    def length(self) -> str:
        """The number of days or bars: "1,250 days"."""
        return count(len(self.dates), unit_of(self.dates))

    @property
    def returns(self) -> Values:
        """Return of each day as a fraction of the equity of the day before, float64 `[days]`; 0 if that equity is 0."""
        before = np.concatenate([[self.capital], self.equity[:-1]])
        return share_of(self.equity, before, nothing=1.0) - 1.0


@dataclass(frozen=True)
class Accounts:
    """The accounts of several traders (agents or baselines) over the same days, each with the same capital.

    Attributes:
        dates: datetime64[D] `[days]`.
        capital: equity of each trader before the first day (money).
        equity, exposure, traded, costs: float64 `[traders, days]`, as in `EquityCurve`.
        interest: float64 `[traders]`, interest earned on cash over all days (money).
    """

    dates: NDArray[np.datetime64]
    capital: float
    equity: Values
    exposure: Values
    traded: Values
    costs: Values
    interest: Values

    def curve(self, trader: int) -> EquityCurve:
        daily = (self.equity, self.exposure, self.traded, self.costs)
        return EquityCurve(self.dates, self.capital, *(values[trader] for values in daily))

    def combined_curve(self, share: float = 1.0) -> EquityCurve:
        """Return one account that is the sum of all accounts, each multiplied by `share`."""
        equity, traded, costs = (values.sum(axis=0) * share for values in (self.equity, self.traded, self.costs))
        exposure = share_of((self.exposure * self.equity).sum(axis=0) * share, equity)
        return EquityCurve(self.dates, self.capital * len(self.equity) * share, equity, exposure, traded, costs)


def share_of(part: Values, whole: Values, nothing: float = 0.0) -> Values:
    """Return part / whole, broadcast to each other; `nothing` where the whole is 0."""
    shares: Values = np.divide(
        part, whole, out=np.full(np.broadcast_shapes(part.shape, whole.shape), nothing), where=whole != 0.0
    )
    return shares


def concat_curves(curves: Sequence[EquityCurve]) -> EquityCurve:
    """Return the curve of one account over several spans, each begun with the last equity of the span before it.

    Each curve is multiplied by one factor, so positions at the end of a span become cash at their last known close,
    without costs, and numbers of whole shares are not computed anew for the other capital. Spans that overlap or are
    not in the order of their days raise ValueError.
    """
    dates = np.concatenate([curve.dates for curve in curves])
    if len(wrong := np.flatnonzero(dates[1:] <= dates[:-1])):
        raise ValueError(
            f"Curves to join must be in the order of their days, but {dates[wrong[0] + 1]} follows {dates[wrong[0]]}."
        )
    capital, factors = curves[0].capital, []
    for curve in curves:
        factors.append(capital / curve.capital)
        capital = float(curve.equity[-1]) * factors[-1]

    def carried(name: str) -> np.ndarray:
        return np.concatenate([getattr(curve, name) * factor for curve, factor in zip(curves, factors, strict=True)])

    return EquityCurve(
        dates=dates,
        capital=curves[0].capital,
        equity=carried("equity"),
        exposure=np.concatenate([curve.exposure for curve in curves]),
        traded=carried("traded"),
        costs=carried("costs"),
    )


def mean_curve(curves: Sequence[EquityCurve]) -> EquityCurve:
    """Return one account whose equity is the mean of accounts that have the same days and the same capital."""
    equity = np.stack([curve.equity for curve in curves])
    positions = np.stack([curve.exposure for curve in curves]) * equity
    return EquityCurve(
        dates=curves[0].dates,
        capital=curves[0].capital,
        equity=equity.mean(axis=0),
        exposure=share_of(positions.mean(axis=0), equity.mean(axis=0)),
        traded=np.mean([curve.traded for curve in curves], axis=0),
        costs=np.mean([curve.costs for curve in curves], axis=0),
    )


def daily_rates(rate: float, dates: NDArray[np.datetime64]) -> Values:
    """Return the interest of each of `dates`, datetime64[D] `[days]`, since the date before it: float64 `[days]`.

    The annual `rate` and the result are fractions. Interest compounds by calendar time; on the first date it is 0.
    """
    years = np.diff(dates, prepend=dates[:1]) / np.timedelta64(1, "D") / DAYS_OF_YEAR
    return (1.0 + rate) ** years - 1.0


def periods_per_year(dates: NDArray[np.datetime64], account: AccountConfig, span: range | None = None) -> int:
    """Return the number of trading days of a year: `account.periods_per_year`, or if None an estimate from the dates.

    The estimate is from the days of the span, or from the year until its end if that is longer: a calendar changes, for
    example when coins, which trade every day, join stocks. It leaves out gaps of more than two weeks (or five median
    gaps, if longer). It is 252 or 365 where it, or the estimate from five years in place of one, differs from this only
    by holidays, and the span's own year by no more than an unusual closure.

    Args:
        dates: datetime64[D] `[days]`, increasing, or ends of bars; an estimate from fewer than two days raises
            ValueError. Bars: their median number in a day, times days of a year.
        span: days to annualise, as indices into `dates`; None: estimate from the last year of `dates`.
    """
    if account.periods_per_year is not None:
        return account.periods_per_year
    each, first_bars, bars = np.unique(dates_of(dates), return_index=True, return_counts=True)
    if len(each) < len(dates):
        of_span = None
        if span is not None:
            first, last = (np.searchsorted(first_bars, (span.start, span.stop - 1), side="right") - 1).tolist()
            of_span, bars = range(first, last + 1), bars[: last + 1]
        return round(float(np.median(bars)) * periods_per_year(each, account, of_span))
    stop = len(dates) if span is None else span.stop

    def counted(years: float) -> tuple[int, float]:
        """Return the trading days, and their time in years, of the span or the `years` until its end."""
        first = int(np.searchsorted(dates, dates[stop - 1] - np.timedelta64(round(years * DAYS_OF_YEAR), "D")))
        gaps = np.diff(dates[first if span is None else min(first, span.start) : stop]) / np.timedelta64(1, "D")
        longest = max(_LONGEST_REST, _LONGEST_REST_IN_SPACINGS * float(np.median(gaps))) if len(gaps) else 0.0
        kept = gaps[gaps <= longest]
        return len(kept), float(kept.sum()) / DAYS_OF_YEAR

    five = counted(5.0)
    days, years = counted(1.0) if counted(1.0)[0] else five
    if not days:
        raise ValueError(
            "Trading days per year cannot be estimated from one date: give more dates, or set account.periods_per_year."
        )
    for some, time in ((days, years), five):
        beside, nearest = min((abs(some - number * time), number) for number in _CONVENTIONS)
        usual = beside <= max(_NEAR_DAYS, _NEAR_SHARE * some)
        if usual and abs(days - nearest * years) <= max(_NEAR_DAYS, _CLOSED_SHARE * days):
            return nearest
    return max(1, round(days / years))
