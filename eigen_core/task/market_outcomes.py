"""Gains of every possible purchase of the training days: one table for all agents, built once from prices."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.task.outcomes import Outcomes
from eigen_core.trading import Prices
from eigen_core.trading.orders import net_gain, resolve_orders, trade_value

_CELLS_AT_A_TIME = 1 << 20
"""Prices looked at together while the table is built: a few tens of megabytes."""


def sale_targets(trading: TradingConfig, count: int, device: torch.device) -> Tensor:
    """Return `count` sale targets, evenly spread from the smallest to the largest: float64 `[targets]`."""
    return torch.linspace(trading.min_target, trading.max_target, count, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class OutcomeTable:
    """Reward and duration of the purchase of each asset on each day at each sale target, of size 1.

    Attributes:
        first_day: of the table.
        rewards: float32 `[days, assets, targets]`; NaN where nothing can be bought.
        shares: float16 `[days, assets, targets]`, days from the decision to the exit / `trading.holding_days`; above 1
            where a sale waits.
    """

    first_day: int
    rewards: Tensor
    shares: Tensor

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig, days: range, targets: Tensor) -> "OutcomeTable":
        """Return the table of those of some days whose positions end on these days too, whatever their target.

        Args:
            prices: prices of all days.
            trading: the rules.
            days: nothing after them is looked at.
            targets: float64 `[targets]`.
        """
        decided = days[: -trading.holding_days]
        shape = (len(decided), prices.assets, len(targets))
        table = cls(
            decided.start,
            torch.empty(shape, device=targets.device),
            torch.empty(shape, dtype=torch.float16, device=targets.device),
        )
        at_once = max(1, _CELLS_AT_A_TIME // (prices.assets * len(targets) * prices.fills(trading).longest))
        for first in range(0, len(decided), at_once):
            table._fill(prices, trading, slice(first, min(first + at_once, len(decided))), targets)
        return table

    def _fill(self, prices: Prices, trading: TradingConfig, rows: slice, targets: Tensor) -> None:
        device, shape = targets.device, self.rewards[rows].shape
        days = torch.arange(rows.start, rows.stop, device=device)[:, None, None] + self.first_day
        assets = torch.arange(prices.assets, device=device)[:, None]
        trades = resolve_orders(prices, trading, days.expand(shape), assets.expand(shape), targets.expand(shape))
        gain = net_gain(trading, trades.entry, trades.exit)
        bought = trades.filled & prices.tradable[days[:, 0, 0]][..., None]
        rewards = trade_value(trading, torch.ones_like(gain), gain)
        self.rewards[rows] = torch.where(bought, rewards, torch.nan).float()
        self.shares[rows] = (trades.exit_offset / trading.holding_days).half()

    @property
    def days(self) -> range:
        """The days of the decisions."""
        return range(self.first_day, self.first_day + len(self.rewards))

    def of_rows(self, rows: Tensor) -> Outcomes:
        """Return the outcomes of the decisions in some rows, int64 `[agents, batch]`."""
        rewards, shares = self.rewards[rows], self.shares[rows]
        known = ~rewards[..., 0].isnan()
        return Outcomes(rewards.nan_to_num(), shares.float(), known)
