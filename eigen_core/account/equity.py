"""The equity of an account over a span of days."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EquityCurve:
    """What an account was worth at the close of each day of a span.

    Attributes:
        dates: datetime64[D] `[days]`, increasing.
        capital: money before the first day.
        equity: float64 `[days]`, cash and positions at their last known close (money).
        exposure: float64 `[days]`, value of the positions at the close as a share of the equity.
        traded: float64 `[days]`, what was bought and sold on the day, at the prices of the fills (money).
        costs: float64 `[days]`, transaction costs and slippage of the day (money).
    """

    dates: NDArray[np.datetime64]
    capital: float
    equity: NDArray[np.float64]
    exposure: NDArray[np.float64]
    traded: NDArray[np.float64]
    costs: NDArray[np.float64]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return of each day as a fraction of the equity before it, float64 `[days]`."""
        before = np.concatenate(([self.capital], self.equity[:-1]))
        return self.equity / before - 1.0
