"""The trading environment: many episodes at once, as tensors, with their positions, rewards and results.

A day is a row of the prices, counted from 0; an asset is a tradable column. E is the number of episodes, A of assets, K
`trading.purchases_per_bar`. On each of its steps, one a day, an episode's agent makes a decision: at most K orders.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.machine.gpu import on_device
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.orders import (
    PERCENT,
    Orders,
    batch_slices,
    choose_assets,
    concat_orders,
    orders_of,
    sum_of_day,
    trade_value,
)
from eigen_core.trading.prices import Prices

EPISODE_TIME_VALUES = 2
"""Number of values for each step in `episode_times`."""
PORTFOLIO_VALUES = 4
"""Number of values that agents observe of a position: held, days held, unrealised gain, coefficient."""
GAIN_LIMIT = 5.0
"""Largest observed unrealised gain or loss, as a fraction of the entry price."""
_LARGEST_HALF = float(torch.finfo(torch.float16).max)


class Decision(NamedTuple):
    """The values of the `Orders` of a decision, and which of them became trades (bool), `[E, K]` each."""

    orders: tuple[Tensor, ...]
    bought: Tensor


def joined(decisions: Sequence[Decision]) -> tuple[Orders, Tensor]:
    """Return the orders of decisions, and which became trades, each `[E, decisions, K]`."""
    of_orders = zip(*(decision.orders for decision in decisions), strict=True)
    bought = torch.stack([decision.bought for decision in decisions], dim=1)
    return Orders(*(torch.stack(parts, dim=1) for parts in of_orders)), bought


class Positions:
    """The newest position of E portfolios in each asset. `days` are each portfolio's day, int64 `[E, 1]`.

    As orders do not move prices, the sale of a position is known when it is opened.
    """

    def __init__(self, prices: Prices, trading: TradingConfig, portfolios: int) -> None:
        self._prices, self._trading = prices, trading
        # Days of decision and sale, entry price, and the coefficient as agents observe it. One column more than assets
        # takes the orders that buy nothing; in one dimension a deterministic `scatter_` does not wait for a GPU.
        shape, device = (4, portfolios, prices.assets + 1), prices.close.device
        self._newest = torch.zeros(math.prod(shape), dtype=torch.float64, device=device)
        self._decided, self._sold, self._entry, self._size = self._newest.view(shape)[..., :-1].unbind()
        self._sold.fill_(-1.0)
        self._cells = torch.arange(0, len(self._newest), shape[2], device=device).view(4, portfolios, 1)
        observed = torch.ones((portfolios, prices.assets, PORTFOLIO_VALUES), dtype=torch.float16, device=device)
        _, *self._observed = observed.unbind(-1)
        if prices.held:
            # As if decided on the first day, at full size.
            held = list(prices.held.values())
            self._sold[:, held] = prices.fills(trading).exit_offset[0, held].double()
            self._entry[:, held], self._size[:, held] = prices.close[0, held], 1.0
        # The four float16 of an asset are read as one number.
        self._positions = observed.view(torch.int64).squeeze(-1)
        self._minus_one = torch.tensor(-1.0, dtype=torch.float64, device=device)

    def observed(self, days: Tensor) -> Tensor:
        """Return the observed portfolios, float16 `[E, A, 4]`; see `TradingEnvironment.portfolio`."""
        days_held, gain, size = self._observed
        # A position is older than the holding time if its market was closed on some days, or its sale waits.
        days_held.copy_(((days - self._decided) / self._trading.holding_bars).clamp_(max=1.0))
        close = self._prices.last_close.index_select(0, days.flatten())
        gain.copy_(torch.addcdiv(self._minus_one, close, self._entry).clamp_(-GAIN_LIMIT, GAIN_LIMIT))
        size.copy_(self._size)
        held = self._positions.masked_fill(self._sold <= days, 0)
        return held.unsqueeze(-1).view(torch.float16)

    def decide(self, days: Tensor, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None) -> Decision:
        """Choose K assets by the actions (`TradingEnvironment.step`), and buy those that are filled and not held."""
        trading, prices = self._trading, self._prices
        asset, coefficient = choose_assets(prices, trading, days, coefficients, ranks)
        target = targets.gather(-1, asset).to(torch.float64)
        orders = orders_of(prices, trading, days.flatten(), asset, coefficient, target)
        bought = orders.placed & (self._sold.gather(1, asset) <= days)
        limit, size = trading.max_coefficient, coefficient.abs()
        size = size.clamp(max=_LARGEST_HALF) if limit is None else size / limit
        newest = torch.stack([days.expand_as(asset), days + orders.exit_offset, orders.entry, size])
        cells = self._cells + torch.where(bought, asset, prices.assets)
        self._newest.scatter_(0, cells.flatten(), newest.flatten())
        return Decision(tuple(vars(orders).values()), bought)


@dataclass(frozen=True)
class EpisodeSummary:
    """Results of episodes, `[E]`. An order becomes a trade if it is filled and its asset is not held already.

    Attributes:
        trades: int64, number of trades.
        wins: int64, number of trades with a net gain above zero; with classic bookkeeping, of at least zero.
        idle_days: int64, number of days, settlement included, that ended without an open position; with classic
            bookkeeping only those on which no position closed either.
        fees: float64, sum over the trades: coefficient x transaction costs, without slippage, in % of the entry price.
        reward: float64, sum of the episode's rewards.
        bought: bool `[E, decisions, K]`, the order became a trade.
        asset: int64 `[E, decisions, K]`, asset of the trade; -1 without a trade.
        exit_offset, gain: `[E, decisions, K]`, days from the decision to the exit (int64), and net gain as a fraction
            of the money paid (float64); 0 without a trade.
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
    """Return the rewards of whole episodes, float64 `[E, trading.episode_bars]`, and their results.

    Args:
        days: int64 `[E, decisions]`, days of the decisions, consecutive from the first day of the episode.
        orders: the orders of all decisions, `[E, decisions, K]`.
        bought: bool `[E, decisions, K]`, the order became a trade.

    Raises:
        FloatingPointError: a coefficient or target of an order, or the reward of an episode, is not a finite number.
    """
    rewards = _trade_rewards(prices, trading, days, orders, bought)
    idle = _idle(trading, orders, bought)
    rewards -= idle.to(torch.float64) * trading.idle_penalty
    traded = bought.flatten(1).any(dim=1)
    rewards[:, trading.no_trade_step] -= (~traded).to(torch.float64) * trading.no_trade_penalty
    reward = rewards.sum(dim=1)
    require_finite(orders, reward)
    # In percent of the entry's value times the coefficient: the unit of the reward before `loss_multiplier`.
    costs = prices.costs(trading).of_assets(orders.asset)
    fees = orders.coefficient * PERCENT * costs.cost * (1.0 + orders.exit / orders.entry)
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


def require_finite(orders: Orders, reward: Tensor) -> None:
    """Raise FloatingPointError if a coefficient or target of an order, or a reward, is not a finite number."""
    if not bool((torch.isfinite(orders.coefficient) & torch.isfinite(orders.target)).all()):
        raise FloatingPointError(
            "An agent's coefficient, rank or sale target is not a finite number: its network has diverged. Lower its "
            "learning rates (learner.critic_learning_rate, learner.actor_learning_rate) or learner.gradient_clip."
        )
    if not bool(torch.isfinite(reward).all()):
        raise FloatingPointError(
            "The reward of an episode is not a finite number, although all coefficients and sale targets are: look for "
            "prices of zero or infinity in the data, or set trading.max_coefficient."
        )


def _trade_rewards(prices: Prices, trading: TradingConfig, days: Tensor, orders: Orders, bought: Tensor) -> Tensor:
    """Return the rewards of trades, booked on days by `trading.credit`: float64 `[E, trading.episode_bars]`."""
    episodes, decisions = days.shape
    steps = trading.episode_bars
    fills = prices.fills(trading)
    columns = max(steps, decisions + fills.longest)
    rewards = torch.zeros((episodes, columns), dtype=torch.float64, device=days.device)
    if trading.credit == "decision":
        rewards[:, :decisions] = sum_of_day(torch.where(bought, orders.value, 0.0))
        return rewards[:, :steps]
    cell, last_cell = days.unsqueeze(2) * prices.assets + orders.asset, prices.last_close.numel() - 1
    booked, costs = torch.zeros_like(orders.value), prices.costs(trading).of_assets(orders.asset)
    for offset in range(fill_offset(trading), fills.before_wait + 1):
        worth = booked
        if trading.credit == "marked":
            close = prices.last_close.take((cell + offset * prices.assets).clamp_(max=last_cell))
            worth = trade_value(trading, orders.coefficient, costs.gain_at_market(orders.entry, close))
        worth = torch.where(orders.exit_offset == offset, orders.value, worth)
        counts = bought & (orders.exit_offset >= offset)
        rewards[:, offset : offset + decisions] += sum_of_day(torch.where(counts, worth - booked, 0.0))
        booked = worth
    # A position that only waits is worth the same until its sale.
    waited, left = bought & (orders.exit_offset > fills.before_wait), orders.value - booked
    for offset in np.unique(orders.exit_offset[waited].cpu()).tolist():
        rewards[:, offset : offset + decisions] += sum_of_day(
            torch.where(waited & (orders.exit_offset == offset), left, 0.0)
        )
    if fills.longest > trading.holding_bars:
        # Sales that wait until after the episode are booked on its last day.
        rewards[:, steps - 1] = sum_of_day(rewards[:, steps - 1 :])
    return rewards[:, :steps]


def _idle(trading: TradingConfig, orders: Orders, bought: Tensor) -> Tensor:
    # With classic bookkeeping a day on which a position closes is not idle either.
    last_offset = orders.exit_offset if trading.bookkeeping == "classic" else orders.exit_offset - 1
    decided = torch.arange(bought.shape[1], device=bought.device)
    # The last day on which a position of a decision, or of one before it, is open.
    last = torch.where(bought, decided[:, None] + last_offset, -1).amax(dim=2).cummax(dim=1).values
    step = torch.arange(trading.episode_bars, device=bought.device)
    filled = (step - fill_offset(trading)).clamp(max=len(decided) - 1)
    return (filled < 0) | (last[:, filled.clamp(min=0)] < step)


def episode_times(trading: TradingConfig, device: torch.device) -> Tensor:
    """Return the time that agents observe at each step, and after the last: float32 `[trading.episode_bars + 1, 2]`.

    The first value is the share of the episode that has passed, from 0 to 1; the second is 1 on the first
    `trading.trading_bars` steps, when positions may be opened, then 0. Both are 0 without `trading.observe_portfolio`.
    """
    days = trading.episode_bars
    times = [(step / days, 1.0 if step < trading.trading_bars else 0.0) for step in range(days + 1)]
    return torch.tensor(times, dtype=torch.float32, device=device) * trading.observe_portfolio


def check_first_days(prices: Prices, trading: TradingConfig, first_days: Tensor) -> Tensor:
    """Check the first days of episodes, and return them on the device of the prices: int64 `[E]`.

    If `first_days` is on the CPU, the check does not wait for a GPU.

    Raises:
        InputError: an episode begins before the first day of the prices, or ends after their last day.
        ValueError: `first_days` is not an integer vector of at least one day.
    """
    if first_days.dim() != 1 or first_days.numel() == 0 or first_days.dtype.is_floating_point:
        raise ValueError(
            f"first_days must be an integer vector with one day per episode, not {first_days.dtype} "
            f"of shape {tuple(first_days.shape)}."
        )
    first_days = first_days.to(torch.int64, copy=True)
    earliest, latest = int(first_days.min()), int(first_days.max())
    last_start = prices.days - trading.episode_bars
    if earliest < 0 or latest > last_start:
        wrong = earliest if earliest < 0 else latest
        raise InputError(
            f"an episode of {trading.episode_bars} days from day {wrong} does not fit into the {prices.days:,} days of "
            f"prices (counted from 0): choose a first day from 0 to {last_start}."
        )
    device = prices.close.device
    return on_device(first_days.numpy(), device) if first_days.device.type == "cpu" else first_days.to(device)


def check_actions(shape: tuple[int, ...], coefficients: Tensor, targets: Tensor, ranks: Tensor | None) -> None:
    """Raise `ValueError` if coefficients, targets or ranks have another shape than `shape`; ranks may be None."""
    for name, values in (("coefficients", coefficients), ("targets", targets), ("ranks", ranks)):
        if values is not None and values.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, not {list(values.shape)}.")


class TradingEnvironment:
    """E episodes that advance together, each with its own portfolio of A assets.

    An episode starts on its first day f; at step s = 0 .. T - 1 (T = `trading.episode_bars`) its agent decides after
    the close of day f + s. On the first `trading.trading_bars` steps it orders each of the K tradable assets with the
    highest ranks (`choose_assets`) whose coefficient reaches `trading.buy_threshold` and which it does not hold; no
    other asset takes the place of a held one. `resolve_orders` has the rules of fills and exits. An asset may be bought
    again on the day on which its position closed.

    Reward: a trade is worth its coefficient times its net gain in percent, losses times `trading.loss_multiplier`.
    `trading.credit` says when: `decision` at the step of the decision, `realized` at the step of the day of the exit,
    `marked` day by day from the fill to the exit, as the change of its worth if it were sold at the last known close.
    Each of the T days that ends without an open position, after all fills of the day, costs `trading.idle_penalty`,
    with classic bookkeeping unless a position closed on it; an episode without a trade costs `trading.no_trade_penalty`
    at step `trading.no_trade_step`. But for rounding, `trading.credit` does not change the sum over an episode.

    The host waits for a GPU only at the last step, and in `reset` if the first days are on the GPU. After the last step
    rewards, summary and orders are kept.
    """

    def __init__(self, prices: Prices, trading: TradingConfig) -> None:
        self.prices, self.trading = prices, trading
        self.step_index = trading.episode_bars
        self._positions: Positions | None = None
        self._summary: EpisodeSummary | None = None

    def reset(self, first_days: Tensor) -> None:
        """Start one episode on each of `first_days`, int64 `[E]`: days of the prices, on any device.

        On an episode's first day its agent decides for the first time. Errors: see `check_first_days`.
        """
        self._first_days = check_first_days(self.prices, self.trading, first_days)
        self.step_index = 0
        self._summary = None
        self._decisions: list[Decision] = []
        self._positions = Positions(self.prices, self.trading, len(self._first_days))

    @property
    def days(self) -> Tensor:
        """Day of the next decision, int64 `[E]`; after the last step, the day after the episode."""
        return self._first_days + self.step_index

    @property
    def done(self) -> bool:
        """Whether the episodes are over, or `reset` was not called yet."""
        return self.step_index >= self.trading.episode_bars

    def portfolio(self) -> Tensor:
        """Return the observed portfolios after the close of `days`, before the decision: float16 `[E, A, 4]`.

        The values: held (0 or 1), days since the decision / `trading.holding_bars` (at most 1), unrealised gain (last
        known close / entry price - 1, clipped to [-5, 5]), coefficient / `trading.max_coefficient` (if that is None,
        the coefficient). All are 0 for an asset that is not held, once the episodes are over, and if
        `trading.observe_portfolio` is false. A position that closes on a day is no longer held after its close.
        """
        if self._positions is not None and self.trading.observe_portfolio:
            return self._positions.observed(self.days.unsqueeze(1))
        shape = (len(self._first_days), self.prices.assets, PORTFOLIO_VALUES)
        return torch.zeros(shape, dtype=torch.float16, device=self._first_days.device)

    def step(self, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None) -> None:
        """Place the orders of the day and move to the next; after `trading.trading_bars` steps there are no orders.

        Args:
            coefficients: any float dtype `[E, A]`, clipped to [0, `trading.max_coefficient`].
            targets: any float dtype `[E, A]`, sale targets as fractions of the entry price, clipped to
                [`trading.min_target`, `trading.max_target`].
            ranks: any float dtype `[E, A]`, clipped to [0, 1]; None: the coefficients are the ranks.

        Raises:
            RuntimeError: the episodes are over, or `reset` was not called.
            ValueError: an argument has another shape.
            FloatingPointError: at the last step, if an action for an ordered asset or a reward is not finite.
        """
        days = self.decision_days()
        check_actions((len(self._first_days), self.prices.assets), coefficients, targets, ranks)
        self.end_day(None if days is None else self.decide(days, coefficients, targets, ranks))

    @torch.inference_mode()
    def decision_days(self) -> Tensor | None:
        """Return each episode's day of the next decision, int64 `[E, 1]`; None from step `trading.trading_bars` on.

        `step` calls this, `decide` and `end_day` in turn; a CUDA graph can capture `decide`.
        """
        if self._positions is None:
            raise RuntimeError("The episodes of this TradingEnvironment are over or not started: call reset first.")
        return self.days.unsqueeze(1) if self.step_index < self.trading.trading_bars else None

    # In inference mode an operator costs a tenth less. Callers compute nothing with its tensors.
    @torch.inference_mode()
    def decide(self, days: Tensor, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None) -> Decision:
        """Choose K assets by the actions (see `step`), and open the positions of the orders that are filled."""
        assert self._positions is not None
        return self._positions.decide(days, coefficients, targets, ranks)

    def end_day(self, decision: Decision | None) -> None:
        """Store the day's decision (None: there was none) and move to the next day; after the last, compute results."""
        if decision is not None:
            self._decisions.append(decision)
        self.step_index += 1
        if self.done:
            self._positions = None
            with torch.no_grad():
                self._orders = joined(self._decisions)
                steps = torch.arange(len(self._decisions), device=self._first_days.device)
                days = self._first_days.unsqueeze(1) + steps
                self._rewards, self._summary = book_episodes(self.prices, self.trading, days, *self._orders)

    def rewards(self) -> Tensor:
        """Return the rewards of the episodes, float64 `[E, T]`; raise RuntimeError before their end."""
        self.summary()  # raises before their end
        return self._rewards

    def summary(self) -> EpisodeSummary:
        """Return the results of the episodes; raise RuntimeError before their end."""
        if self._summary is None:
            raise RuntimeError("The episodes are not over: call step until `done`, then read rewards and orders.")
        return self._summary

    def orders(self) -> tuple[Orders, Tensor]:
        """Return the orders of all decisions, and which became trades (bool), each `[E, decisions, K]`.

        Raise RuntimeError before the episodes' end.
        """
        self.summary()  # raises before their end
        return self._orders


@torch.no_grad()
def trade_whole_episodes(
    prices: Prices,
    trading: TradingConfig,
    first_days: Tensor,
    coefficients: Tensor,
    targets: Tensor,
    ranks: Tensor | None = None,
) -> tuple[Tensor, EpisodeSummary]:
    """Trade E episodes of T = `trading.episode_bars` days, with actions that do not depend on the portfolio.

    The rules are those of `TradingEnvironment`. All orders are resolved at once, only the assets held step by step.

    Args:
        first_days: int64 `[E]`, first day of each episode, on any device.
        coefficients: any float dtype `[E, D, A]`, D >= `trading.trading_bars`; actions of later days are ignored.
        targets, ranks: of the same shape, as in `TradingEnvironment.step`.

    Returns:
        Rewards, float64 `[E, T]`, and the results of the episodes.

    Raises:
        InputError, ValueError: see `check_first_days` and `check_actions`.
        FloatingPointError: an action for an ordered asset or a reward is not finite.
    """
    first_days = check_first_days(prices, trading, first_days)
    decisions = trading.trading_bars
    shape = (len(first_days), max(decisions, *coefficients.shape[1:2]), prices.assets)
    check_actions(shape, coefficients, targets, ranks)
    steps = torch.arange(decisions, device=first_days.device)
    days = first_days.unsqueeze(1) + steps
    orders = []
    # In batches of episodes, which bounds memory.
    for part in batch_slices(len(days), coefficients[0, :decisions].numel()):
        wanted, ranked = coefficients[part, :decisions], None if ranks is None else ranks[part, :decisions]
        asset, coefficient = choose_assets(prices, trading, days[part], wanted, ranked)
        target = targets[part, :decisions].gather(-1, asset).to(torch.float64)
        orders.append(orders_of(prices, trading, days[part], asset, coefficient, target))
    combined = concat_orders(orders)
    return book_episodes(prices, trading, days, combined, _leave_out_held(combined, steps, prices.assets))


def _leave_out_held(orders: Orders, steps: Tensor, assets: int) -> Tensor:
    bought = torch.zeros_like(orders.placed)
    exit_step = steps.unsqueeze(1) + orders.exit_offset
    # One column more than assets: it takes the orders that are not bought, so that no step has to select. It is flat:
    # with more dimensions a deterministic `scatter_` copies strides from the host, which a GPU waits for.
    free_from = torch.zeros(len(bought) * (assets + 1), dtype=torch.int64, device=bought.device)
    first_cells = torch.arange(0, len(free_from), assets + 1, device=bought.device).unsqueeze(1)
    for step in range(bought.shape[1]):
        cells = first_cells + orders.asset[:, step]
        buy = orders.placed[:, step] & (free_from.take(cells) <= step)
        bought[:, step] = buy
        free_from.scatter_(0, torch.where(buy, cells, first_cells + assets).flatten(), exit_step[:, step].flatten())
    return bought
