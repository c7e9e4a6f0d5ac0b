"""Costs of buying and selling."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import TradingConfig
from eigen_core.trading.fills import BASIS_POINTS

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Fees:
    """Fractions of a price.

    Attributes:
        cost: transaction cost of each side.
        slippage: how much worse an order at the market is filled.
    """

    cost: float
    slippage: float

    @classmethod
    def of(cls, trading: TradingConfig) -> Self:
        """Return those of the trading rules."""
        return cls(trading.cost_bps / BASIS_POINTS, trading.slippage_bps / BASIS_POINTS)

    def of_purchase(self, entry: Values) -> Values:
        """Return cost and slippage of buying one share at `entry`, slippage included (money)."""
        return entry * (self.cost + self.slippage / (1.0 + self.slippage))

    def of_sale(self, exit_price: Values, at_target: NDArray[np.bool_]) -> Values:
        """Return cost and slippage of selling one share at `exit_price`, slippage included (money).

        A sale at a target has no slippage.
        """
        slippage = np.where(at_target, 0.0, self.slippage / (1.0 - self.slippage) if self.slippage < 1.0 else 0.0)
        return exit_price * (self.cost + slippage)
