"""Equity of accounts over a span of days, and the trading days of a year (`periods_per_year`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import AccountConfig

Values = NDArray[np.float64]

DAYS_OF_YEAR = 365.25
_CONVENTIONS = (252, 365)  # stock exchanges, and markets that never close
_NEAR_DAYS, _NEAR_SHARE = 5.0, 0.01  # tolerance for holidays and closures: in days, and as a share of the days counted
_LONGEST_REST, _LONGEST_REST_IN_SPACINGS = 14.0, 5.0  # longer gaps are missing days


@dataclass(frozen=True)
class EquityCurve:
    """Value of an account at the close of each day of a span.

    Attributes:
        dates: datetime64[D] `[days]`, increasing.
        capital: money before the first day.
        equity: float64 `[days]`, cash and positions at their last known close (money); an account that has lost all
            stays at 0.
        exposure: float64 `[days]`, value of the positions at the close as a share of the equity.
        traded: float64 `[days]`, value of the day's purchases and sales at their fills (money).
        costs: float64 `[days]`, transaction costs and slippage of the day (money).
    """

    dates: NDArray[np.datetime64]
    capital: float
    equity: Values
    exposure: Values
    traded: Values
    costs: Values

    @property
    def returns(self) -> Values:
        """Return of each day as a fraction of the equity before it, float64 `[days]`; 0 where that is 0."""
        before = np.concatenate([[self.capital], self.equity[:-1]])
        return share_of(self.equity, before, nothing=1.0) - 1.0


@dataclass(frozen=True)
class Accounts:
    """The accounts of several traders over the same days, each with the same capital.

    Attributes:
        dates: datetime64[D] `[days]`.
        capital: of each trader, before the first day (money).
        equity, exposure, traded, costs: float64 `[traders, days]`, as in `EquityCurve`.
        interest: float64 `[traders]`, interest earned on cash (money).
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
        """Return the sum of all accounts, each scaled by `share`."""
        equity, traded, costs = (values.sum(axis=0) * share for values in (self.equity, self.traded, self.costs))
        exposure = share_of((self.exposure * self.equity).sum(axis=0) * share, equity)
        return EquityCurve(self.dates, self.capital * len(self.equity) * share, equity, exposure, traded, costs)


def share_of(part: Values, whole: Values, nothing: float = 0.0) -> Values:
    """Return part / whole, and `nothing` where the whole is 0."""
    shares: Values = np.divide(
        part, whole, out=np.full(np.broadcast_shapes(part.shape, whole.shape), nothing), where=whole != 0.0
    )
    return shares


def concat_curves(curves: Sequence[EquityCurve]) -> EquityCurve:
    """Return the curve of an account that starts each span with the last equity of the span before it.

    Positions at the end of a span become cash at their last known close, without costs. Numbers of whole shares are not
    computed anew for the other capital. Spans that are not in the order of their days raise ValueError.
    """
    dates = np.concatenate([curve.dates for curve in curves])
    if len(wrong := np.flatnonzero(dates[1:] <= dates[:-1])):
        raise ValueError(
            f"Spans must be in the order of their days, but {dates[wrong[0] + 1]} follows {dates[wrong[0]]}."
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
    """Return the mean of accounts over the same days with the same capital, each weighted equally."""
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
    """Return the rate of each day since the day before, from an annual rate (fractions): float64 `[days]`.

    It compounds by calendar time, and is 0 on the first of the `dates`, datetime64[D] `[days]`.
    """
    years = np.diff(dates, prepend=dates[:1]) / np.timedelta64(1, "D") / DAYS_OF_YEAR
    rates: Values = (1.0 + rate) ** years - 1.0
    return rates


def periods_per_year(dates: NDArray[np.datetime64], account: AccountConfig, span: range | None = None) -> int:
    """Return the trading days of a year: `account.periods_per_year`, or else an estimate from the dates.

    The estimate is from the days of the span, or from the five years until its end if these are more: a calendar
    changes, for example when coins, which trade every day, join stocks. It leaves out gaps of more than two weeks, and
    is 252 or 365 where it differs from these only by holidays.

    Args:
        dates: datetime64[D] `[days]`, increasing; fewer than two raise ValueError.
        span: the days to annualise; None: the last five years.
    """
    if account.periods_per_year is not None:
        return account.periods_per_year
    stop = len(dates) if span is None else span.stop
    first = int(np.searchsorted(dates, dates[stop - 1] - np.timedelta64(round(5 * DAYS_OF_YEAR), "D")))
    gaps = np.diff(dates[first if span is None else min(first, span.start) : stop]) / np.timedelta64(1, "D")
    if not len(gaps):
        raise ValueError(
            "Trading days per year cannot be estimated from one date: give more dates, or account.periods_per_year."
        )
    counted = gaps[gaps <= max(_LONGEST_REST, _LONGEST_REST_IN_SPACINGS * float(np.median(gaps)))]
    years = float(counted.sum()) / DAYS_OF_YEAR
    nearest = min(_CONVENTIONS, key=lambda number: abs(len(counted) - number * years))
    if abs(len(counted) - nearest * years) <= max(_NEAR_DAYS, _NEAR_SHARE * len(counted)):
        return nearest
    return max(1, round(len(counted) / years))
