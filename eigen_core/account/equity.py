"""The equity of accounts over a span of days."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class EquityCurve:
    """Value of an account at the close of each day of a span.

    Attributes:
        dates: datetime64[D] `[days]`, increasing.
        capital: money before the first day.
        equity: float64 `[days]`, cash and positions at their last known close (money); an account that has lost all
            stays at 0.
        exposure: float64 `[days]`, value of the positions at the close as a share of the equity.
        traded: float64 `[days]`, what was bought and sold on the day, at the prices of the fills (money).
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
        """Return of each day as a fraction of the equity before it, float64 `[days]`; 0 where nothing was left."""
        return daily_returns(self.equity, self.capital)


@dataclass(frozen=True)
class Accounts:
    """The accounts of several traders over the same days, each with the same capital.

    Attributes:
        dates: datetime64[D] `[days]`.
        capital: of each, before the first day (money).
        equity, exposure, traded, costs: float64 `[traders, days]`, as in `EquityCurve`.
        interest: float64 `[traders]`, earned on cash.
    """

    dates: NDArray[np.datetime64]
    capital: float
    equity: Values
    exposure: Values
    traded: Values
    costs: Values
    interest: Values

    def curve(self, trader: int) -> EquityCurve:
        """Return the equity of one trader."""
        daily = (self.equity, self.exposure, self.traded, self.costs)
        return EquityCurve(self.dates, self.capital, *(values[trader] for values in daily))

    def together(self, share: float = 1.0) -> EquityCurve:
        """Return the sum of all accounts, times `share`."""
        equity, traded, costs = (values.sum(axis=0) * share for values in (self.equity, self.traded, self.costs))
        exposure = share_of((self.exposure * self.equity).sum(axis=0) * share, equity)
        return EquityCurve(self.dates, self.capital * len(self.equity) * share, equity, exposure, traded, costs)


def daily_returns(equity: Values, capital: float) -> Values:
    """Return of each day as a fraction of the equity before it, 0 where nothing was left; float64 `[..., days]`."""
    before = np.concatenate([np.full_like(equity[..., :1], capital), equity[..., :-1]], axis=-1)
    return share_of(equity, before, nothing=1.0) - 1.0


def share_of(part: Values, whole: Values, nothing: float = 0.0) -> Values:
    """Return part / whole, and `nothing` where the whole is 0."""
    shares: Values = np.divide(
        part, whole, out=np.full(np.broadcast_shapes(part.shape, whole.shape), nothing), where=whole != 0.0
    )
    return shares
