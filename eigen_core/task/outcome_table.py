"""The outcomes of all purchases of the task `market`, which are known without playing."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.task.interface import Outcomes
from eigen_core.trading.orders import batch_slices, decides, resolve_orders, trade_value
from eigen_core.trading.prices import Prices
from eigen_core.trading.ridge import standardised


@dataclass(frozen=True)
class OutcomeTable:
    """Reward and duration of buying each asset on each day of decisions with each of some sale targets, and with
    coefficient 1.

    Attributes:
        days: int64 `[days]`, day of each row.
        rewards: float32 `[days, assets, targets]`; NaN where the asset cannot be bought.
        shares: float16, days from the decision to the exit / `trading.holding_bars`; above 1 if the sale has to wait.
    """

    days: Tensor
    rewards: Tensor
    shares: Tensor

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig, days: Tensor, targets: Tensor) -> "OutcomeTable":
        """Return the table of decisions on `days` whose positions can end within the day's split.

        `days` are int64 `[days]`, `targets` float64 `[targets]`.
        """
        device = targets.device
        days = days.to(device)
        decided = days[days + trading.holding_bars <= prices.last_day[days]]
        decided = decided[decides(prices, trading, decided)]
        assets = torch.arange(prices.assets, device=device)[:, None]
        shape = (len(decided), prices.assets, len(targets))
        rewards, shares = torch.empty(shape, device=device), torch.empty(shape, dtype=torch.float16, device=device)
        for part in batch_slices(len(decided), prices.assets * len(targets) * prices.fills(trading).before_wait):
            day = decided[part][:, None, None]
            cells = (values.expand(len(day), *shape[1:]) for values in (day, assets, targets))
            trades = resolve_orders(prices, trading, *cells)
            gain = prices.costs(trading).of_assets(assets).net_gain(trades.entry, trades.exit)
            bought = trades.filled & prices.tradable[day[:, 0, 0]][..., None]
            rewards[part] = torch.where(bought, trade_value(trading, torch.ones_like(gain), gain), torch.nan)
            shares[part] = trades.exit_offset / trading.holding_bars
        return cls(decided, rewards, shares)

    def standardised(self) -> "OutcomeTable":
        """Return the table with rewards that are `eigen_core.trading.ridge.standardised`."""
        rewards = self.rewards.cpu().numpy().astype(np.float64)
        scaled = standardised(rewards, ~np.isnan(rewards[..., 0]))
        return replace(self, rewards=torch.from_numpy(scaled.astype(np.float32)).to(self.rewards.device))

    def of_rows(self, rows: Tensor) -> Outcomes:
        rewards, shares = self.rewards[rows], self.shares[rows]
        known = ~rewards[..., 0].isnan()
        return Outcomes(rewards.nan_to_num(), shares.float(), known)
