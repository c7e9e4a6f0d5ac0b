"""The account of an episode that is over."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.orders import Orders, is_win, sum_of_day, trade_fees


@dataclass(frozen=True)
class EpisodeSummary:
    """The account of each episode, `[episodes]`; K is `trading.purchases_per_day`.

    Attributes:
        trades: int64, orders that were filled.
        wins: int64, trades with a net gain above zero; with classic bookkeeping also those with one of zero.
        losses: int64, trades with a net gain below zero.
        idle_days: int64, days of the whole episode that ended without an open position; with classic bookkeeping only
            those that also began without one.
        fees: float64, transaction costs in percent of each entry's value, times its coefficient; no slippage.
        reward: float64, sum of the episode's rewards.
        bought: bool `[episodes, decisions, K]`, which orders became trades.
        asset: int64 `[episodes, decisions, K]`, what was bought; -1 where there was no trade.
        exit_offset, gain: `[episodes, decisions, K]`, days from decision to exit, and net gain; 0 where there was no
            trade.
    """

    trades: Tensor
    wins: Tensor
    losses: Tensor
    idle_days: Tensor
    fees: Tensor
    reward: Tensor
    bought: Tensor
    asset: Tensor
    exit_offset: Tensor
    gain: Tensor

    @property
    def win_rate(self) -> Tensor:
        """Share of the trades that won, float64 `[episodes]`; 0 where there was no trade."""
        return self.wins.to(torch.float64) / self.trades.clamp(min=1)


def account(
    trading: TradingConfig, orders: Orders, bought: Tensor, idle_days: Tensor, reward: Tensor
) -> EpisodeSummary:
    """Make the account of episodes that are over.

    Args:
        trading: the rules.
        orders: the orders of all decisions `[episodes, trading_days, K]`.
        bought: bool `[episodes, trading_days, K]`, which of them became trades.
        idle_days: int64 `[episodes]`.
        reward: float64 `[episodes]`, sum of the rewards.

    Raises:
        FloatingPointError: a coefficient or target that counted, or a reward, is not a finite number.
    """
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
    fees = trade_fees(trading, orders.coefficient, orders.entry, orders.exit)
    return EpisodeSummary(
        trades=bought.sum(dim=(1, 2)),
        wins=(bought & is_win(trading, orders.gain)).sum(dim=(1, 2)),
        losses=(bought & (orders.gain < 0.0)).sum(dim=(1, 2)),
        idle_days=idle_days,
        fees=sum_of_day(torch.where(bought, fees, 0.0)).sum(dim=1),
        reward=reward,
        bought=bought,
        asset=torch.where(bought, orders.asset, -1),
        exit_offset=torch.where(bought, orders.exit_offset, 0),
        gain=torch.where(bought, orders.gain, 0.0),
    )
