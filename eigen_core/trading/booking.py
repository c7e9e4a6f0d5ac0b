"""Rewards of each step once all decisions are known, and which days were idle."""

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.orders import Orders, gain_at_close, sum_of_day, trade_value
from eigen_core.trading.prices import Prices


def book(prices: Prices, trading: TradingConfig, days: Tensor, orders: Orders, bought: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rewards of whole episodes, float64 `[episodes, steps]`, and which days were idle, bool of this shape.

    Args:
        prices: prices of all days.
        trading: the rules.
        days: int64 `[episodes, decisions]`, days of consecutive decisions, the first on the first day of the episode.
        orders: `[episodes, decisions, K]`.
        bought: bool `[episodes, decisions, K]`, which of them became trades.
    """
    rewards = _trade_rewards(prices, trading, days, orders, bought)
    idle = _idle(trading, orders, bought, prices.fills(trading).longest)
    rewards -= idle.to(torch.float64) * trading.idle_penalty
    traded = bought.flatten(1).any(dim=1)
    rewards[:, trading.no_trade_step] -= (~traded).to(torch.float64) * trading.no_trade_penalty
    return rewards, idle


def _trade_rewards(prices: Prices, trading: TradingConfig, days: Tensor, orders: Orders, bought: Tensor) -> Tensor:
    """Return what trades book as `trading.credit` says, float64 `[episodes, steps]`."""
    episodes, decisions = days.shape
    steps = trading.episode_days
    longest = prices.fills(trading).longest
    columns = max(steps, decisions + longest)
    rewards = torch.zeros((episodes, columns), dtype=torch.float64, device=days.device)
    if trading.credit == "decision":
        rewards[:, :decisions] = sum_of_day(torch.where(bought, orders.value, 0.0))
        return rewards[:, :steps]
    cell, last_cell = days.unsqueeze(2) * prices.assets + orders.asset, prices.last_close.numel() - 1
    booked = torch.zeros_like(orders.value)
    for offset in range(fill_offset(trading), longest + 1):
        worth = booked
        if trading.credit == "marked":
            close = prices.last_close.take((cell + offset * prices.assets).clamp_(max=last_cell))
            worth = trade_value(trading, orders.coefficient, gain_at_close(trading, orders.entry, close))
        worth = torch.where(orders.exit_offset == offset, orders.value, worth)
        counts = bought & (orders.exit_offset >= offset)
        rewards[:, offset : offset + decisions] += sum_of_day(torch.where(counts, worth - booked, 0.0))
        booked = worth
    if longest > trading.holding_days:
        # Sales that wait beyond the episode are booked on its last day.
        rewards[:, steps - 1] = sum_of_day(rewards[:, steps - 1 :])
    return rewards[:, :steps]


def _idle(trading: TradingConfig, orders: Orders, bought: Tensor, longest: int) -> Tensor:
    """Return which days end without an open position, bool `[episodes, steps]`.

    With classic bookkeeping a day on which a position closes is not idle either.
    """
    episodes, decisions, _ = bought.shape
    steps = trading.episode_days
    last_offset = orders.exit_offset if trading.bookkeeping == "classic" else orders.exit_offset - 1
    active = torch.zeros((episodes, max(steps, decisions + longest)), dtype=torch.bool, device=bought.device)
    for offset in range(fill_offset(trading), longest + 1):
        active[:, offset : offset + decisions] |= (bought & (last_offset >= offset)).any(dim=2)
    return ~active[:, :steps]
