"""Rewards and results of whole episodes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.order_fills import OrderCosts, fill_offset
from eigen_core.trading.orders import PERCENT, Orders, sum_of_day, trade_value
from eigen_core.trading.prices import Prices


@dataclass(frozen=True)
class EpisodeSummary:
    """Results of each episode, `[episodes]`; K is `trading.purchases_per_day`.

    Attributes:
        trades: int64, orders that were filled.
        wins: int64, trades with a net gain above zero; with classic bookkeeping, of at least zero.
        idle_days: int64, days of the whole episode that ended without an open position; with classic bookkeeping only
            those that also began without one.
        fees: float64, transaction costs, without slippage, in percent of an entry's value times its coefficient.
        reward: float64, sum of the episode's rewards.
        bought: bool `[episodes, decisions, K]`, orders that became trades.
        asset: int64 `[episodes, decisions, K]`, the asset; -1 where there was no trade.
        exit_offset, gain: `[episodes, decisions, K]`, days from decision to exit, and net gain; 0 where there was no
            trade.
    """

    trades: Tensor
    wins: Tensor
    idle_days: Tensor
    fees: Tensor
    reward: Tensor
    bought: Tensor
    asset: Tensor
    exit_offset: Tensor
    gain: Tensor


def book_episodes(
    prices: Prices, trading: TradingConfig, days: Tensor, orders: Orders, bought: Tensor
) -> tuple[Tensor, EpisodeSummary]:
    """Return the rewards of whole episodes, float64 `[episodes, steps]`, and their results.

    Args:
        days: int64 `[episodes, decisions]`, days of decisions, consecutive from the first day of the episode.
        orders: `[episodes, decisions, K]`.
        bought: bool `[episodes, decisions, K]`, orders that became trades.

    Raises:
        FloatingPointError: a coefficient or target of an order, or a reward, is not a finite number.
    """
    rewards = _trade_rewards(prices, trading, days, orders, bought)
    idle = _idle(trading, orders, bought, prices.fills(trading).longest)
    rewards -= idle.to(torch.float64) * trading.idle_penalty
    traded = bought.flatten(1).any(dim=1)
    rewards[:, trading.no_trade_step] -= (~traded).to(torch.float64) * trading.no_trade_penalty
    reward = rewards.sum(dim=1)
    _require_finite(orders, reward)
    # In percent of the entry's value times the coefficient: the unit of the reward before `loss_multiplier`.
    fees = orders.coefficient * PERCENT * OrderCosts.of(trading).cost * (1.0 + orders.exit / orders.entry)
    wins = orders.gain >= 0.0 if trading.bookkeeping == "classic" else orders.gain > 0.0
    return rewards, EpisodeSummary(
        trades=bought.sum(dim=(1, 2)),
        wins=(bought & wins).sum(dim=(1, 2)),
        idle_days=idle.sum(dim=1),
        fees=sum_of_day(torch.where(bought, fees, 0.0)).sum(dim=1),
        reward=reward,
        bought=bought,
        asset=torch.where(bought, orders.asset, -1),
        exit_offset=torch.where(bought, orders.exit_offset, 0),
        gain=torch.where(bought, orders.gain, 0.0),
    )


def _require_finite(orders: Orders, reward: Tensor) -> None:
    if not bool((torch.isfinite(orders.coefficient) & torch.isfinite(orders.target)).all()):
        raise FloatingPointError(
            "An agent's coefficient or sale target is not a finite number: its network has diverged, lower the "
            "learning rates or learner.gradient_clip."
        )
    if not bool(torch.isfinite(reward).all()):
        raise FloatingPointError(
            "The reward of an episode is not a finite number although the actions are: look for prices of zero or "
            "infinity in the data, or bound trading.max_coefficient."
        )


def _trade_rewards(prices: Prices, trading: TradingConfig, days: Tensor, orders: Orders, bought: Tensor) -> Tensor:
    """Return the rewards of trades by `trading.credit`, float64 `[episodes, steps]`."""
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
            worth = trade_value(trading, orders.coefficient, OrderCosts.of(trading).gain_at_market(orders.entry, close))
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
