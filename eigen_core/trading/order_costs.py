"""Costs of an order, the same in rewards, accounts, benchmarks and orders of the next day."""

from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.equity import Values

_BASIS_POINTS = 10_000.0

Money = TypeVar("Money", float, Values, Tensor)
"""Prices or values of any shape."""


@dataclass(frozen=True)
class OrderCosts:
    """Transaction cost of each side, and slippage of an order at the market, as fractions of a price."""

    cost: float
    slippage: float

    @classmethod
    def of(cls, trading: TradingConfig) -> Self:
        return cls(trading.cost_bps / _BASIS_POINTS, trading.slippage_bps / _BASIS_POINTS)

    def purchase_price(self, price: Money) -> Money:
        """Return the price at which an order at the market buys: slippage included, transaction cost not."""
        return price * (1.0 + self.slippage)

    def sale_price(self, price: Money) -> Money:
        """Return the price at which an order at the market sells: slippage included, transaction cost not."""
        return price * (1.0 - self.slippage)

    def paid(self, value: Money) -> Money:
        """Return the money that leaves the account for a purchase of this value at its `purchase_price`."""
        return value * (1.0 + self.cost)

    def received(self, value: Money) -> Money:
        """Return the money that a sale of this value, at its `sale_price` or a target, brings to the account."""
        return value * (1.0 - self.cost)

    def net_gain(self, entry: Tensor, exit_price: Tensor) -> Tensor:
        """Return the gain of a trade after the costs of both sides, as a fraction of the money paid.

        Slippage is part of the two prices.
        """
        return self.received(exit_price) / self.paid(entry) - 1.0

    def gain_at_market(self, entry: Tensor, price: Tensor) -> Tensor:
        """Return the `net_gain` of a position that is sold at the market, where a share costs `price`."""
        return self.net_gain(entry, self.sale_price(price))

    def purchase_costs(self, entry: Values) -> Values:
        """Return cost and slippage of buying one share at `entry`, a price with slippage (money)."""
        return entry * (self.cost + self.slippage / (1.0 + self.slippage))

    def sale_costs(self, exit_price: Values, at_target: NDArray[np.bool_]) -> Values:
        """Return cost and slippage of selling one share at `exit_price`, a price with slippage (money).

        A sale at a target has no slippage.
        """
        slippage = np.where(at_target, 0.0, self.slippage / (1.0 - self.slippage) if self.slippage < 1.0 else 0.0)
        return exit_price * (self.cost + slippage)

    @property
    def buying(self) -> float:
        """Cost and slippage of a purchase as a share of its value without slippage."""
        return (1.0 + self.slippage) * (1.0 + self.cost) - 1.0

    @property
    def selling(self) -> float:
        """Cost and slippage of a sale as a share of its value without slippage."""
        return 1.0 - (1.0 - self.slippage) * (1.0 - self.cost)
