"""The trading environment: many episodes at once, as arrays."""

from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.errors import InputError
from eigen_core.trading.orders import (
    Orders,
    combine_orders,
    fill_offset,
    gain_at_close,
    place_orders,
    sum_of_day,
    target_price,
    trade_value,
)
from eigen_core.trading.prices import Prices
from eigen_core.trading.summary import EpisodeSummary, account

PORTFOLIO_VALUES = 4
"""Values of an asset's portfolio state: held, days held, unrealised gain, coefficient."""
EPISODE_TIME_VALUES = 2
"""Values of a day's time in its episode: share of the days passed, whether positions may be opened."""
GAIN_LIMIT = 5.0
"""Bound of the unrealised gain that is observed, as a fraction."""
_LARGEST_HALF = float(torch.finfo(torch.float16).max)
# Rows of the state of an asset's latest position. Steps are kept as float64, exact far beyond any episode.
_DECISION_STEP, _EXIT_STEP, _ENTRY, _COEFFICIENT, _VALUE, _MARK = range(6)


def episode_time(step_index: int, trading: TradingConfig) -> tuple[float, float]:
    """Return the time in the episode that agents see at step `step_index`.

    The share of the episode that has passed, and 1 while positions may be opened, else 0. Both are 0 if
    `trading.observe_portfolio` is false.
    """
    if not trading.observe_portfolio:
        return 0.0, 0.0
    return step_index / trading.episode_days, 1.0 if step_index < trading.trading_days else 0.0


def episode_times(trading: TradingConfig, device: torch.device) -> Tensor:
    """Return `episode_time` of every step and of the end, float32 `[episode days + 1, 2]`."""
    times = [episode_time(step, trading) for step in range(trading.episode_days + 1)]
    return torch.tensor(times, dtype=torch.float32, device=device)


def check_first_days(prices: Prices, trading: TradingConfig, first_days: Tensor) -> Tensor:
    """Return the first days of episodes, int64 `[episodes]`, on the prices' device.

    Raises:
        InputError: an episode would leave the prices.
        ValueError: `first_days` is not a vector of at least one day.
    """
    if first_days.dim() != 1 or first_days.numel() == 0 or first_days.dtype.is_floating_point:
        raise ValueError(
            f"first_days must be an integer vector with an episode each, not {first_days.dtype} "
            f"of shape {tuple(first_days.shape)}."
        )
    first_days = first_days.to(device=prices.close.device, dtype=torch.int64, copy=True)
    earliest, latest = int(first_days.min()), int(first_days.max())
    last_start = prices.days - trading.episode_days
    if earliest < 0 or latest > last_start:
        wrong = earliest if earliest < 0 else latest
        raise InputError(
            f"an episode of {trading.episode_days} days from day {wrong} leaves the prices, which have {prices.days:,} "
            f"days: choose a first day from 0 to {last_start}."
        )
    return first_days


def check_actions(shape: tuple[int, ...], coefficients: Tensor, targets: Tensor, ranks: Tensor | None) -> None:
    """Raise `ValueError` if a part of the actions has another shape."""
    parts = {"coefficients": coefficients, "targets": targets} | ({} if ranks is None else {"ranks": ranks})
    for name, values in parts.items():
        if values.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, not {list(values.shape)}.")


class TradingEnvironment:
    """E episodes in step, over A assets, each its own portfolio.

    Episode e starts at day f; at step s = 0 .. T - 1 (T = `trading.episode_days`) the agent decides after the close of
    day t = f + s. On steps before `trading.trading_days` each of the `trading.purchases_per_day` tradable assets with
    the highest ranks (`choose_assets`) is ordered if its coefficient reaches `trading.buy_threshold` and it is not
    held; there is no other choice in place of one that is. `resolve_orders` says how an order fills and closes. An
    asset may be bought again on the day it closed.

    Reward: a trade is worth its coefficient times its net gain in percent, losses times `trading.loss_multiplier`.
    `trading.credit` says when that is booked: `decision` at the step of the decision, `realized` at the step whose day
    is the exit's, `marked` day by day from the fill to the exit, the change of what closing at the day's last known
    close would be worth. Each of the T days that ends without an open position (after the exits, the fills and a
    purchase at the close of that day) takes `trading.idle_penalty`, with classic bookkeeping unless a position closed
    on it; an episode without a trade takes `trading.no_trade_penalty` at `trading.no_trade_step`. The sum over an
    episode does not depend on `trading.credit`, up to rounding.

    Nothing is read back from the device except at `reset` and at the last step. Nothing is kept of an episode but its
    summary, unless `record_trades`.
    """

    def __init__(self, prices: Prices, trading: TradingConfig, record_trades: bool = False) -> None:
        self.prices = prices
        self.trading = trading
        self._record_trades = record_trades
        self._step_index = trading.episode_days
        self._summary: EpisodeSummary | None = None

    def reset(self, first_days: Tensor) -> None:
        """Start episodes at `first_days`, int64 `[E]`; former ones are dropped.

        Raises:
            InputError: an episode would leave the prices.
            ValueError: `first_days` is not a vector of at least one day.
        """
        self._first_days = check_first_days(self.prices, self.trading, first_days)
        self._days = self._first_days
        self._step_index = 0
        self._summary = None
        episodes, device = len(first_days), self._first_days.device
        # One column more than assets: it takes the orders that are not bought, so that no step has to select.
        self._state = torch.zeros((6, episodes, self.prices.assets + 1), dtype=torch.float64, device=device)
        self._state[_EXIT_STEP] = -1.0
        self._state[_ENTRY] = 1.0
        self._idle_days = torch.zeros(episodes, dtype=torch.int64, device=device)
        self._reward = torch.zeros(episodes, dtype=torch.float64, device=device)
        self._orders: list[Orders] = []
        self._bought: list[Tensor] = []

    @property
    def days(self) -> Tensor:
        """Day of the coming decision, int64 `[E]`; the day after the episode when it is over."""
        return self._days

    @property
    def step_index(self) -> int:
        """Steps done since `reset`."""
        return self._step_index

    @property
    def done(self) -> bool:
        """Whether the episodes are over (or none has begun)."""
        return self._step_index >= self.trading.episode_days

    def portfolio(self) -> Tensor:
        """Return what agents see of their portfolio after the close of `days`, before the decision.

        float16 `[E, A, 4]`: held (0 or 1), days since the decision / `holding_days`, unrealised gain (last known close
        / entry price - 1, a fraction within plus or minus 5), coefficient / `max_coefficient` (the coefficient itself
        if unbounded). Zero for an asset that is not held, for all of them when the episodes are over, and always if
        `trading.observe_portfolio` is false. A position that closes on day t is not held on it any more.
        """
        episodes, assets, step = len(self._first_days), self.prices.assets, self._step_index
        shape = (episodes, assets, PORTFOLIO_VALUES)
        seen = torch.zeros(shape, dtype=torch.float16, device=self._first_days.device)
        if self.done or not self.trading.observe_portfolio:
            return seen
        positions = self._state[:, :, :assets]
        held = positions[_EXIT_STEP] > step
        gain = self.prices.last_close[self._days] / positions[_ENTRY] - 1.0
        size = positions[_COEFFICIENT] / (self.trading.max_coefficient or 1.0)
        seen[..., 0] = held
        seen[..., 1] = torch.where(held, (step - positions[_DECISION_STEP]) / self.trading.holding_days, 0.0)
        seen[..., 2] = torch.where(held, gain.clamp(-GAIN_LIMIT, GAIN_LIMIT), 0.0)
        seen[..., 3] = torch.where(held, size.clamp(max=_LARGEST_HALF), 0.0)
        return seen

    @torch.no_grad()
    def step(self, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None) -> Tensor:
        """Decide on the day `days` and move to the next.

        Args:
            coefficients: any float dtype `[E, A]`, clipped to 0 and `trading.max_coefficient`.
            targets: any float dtype `[E, A]`, sale targets as fractions, clipped to `trading.min_target` and
                `trading.max_target`.
            ranks: any float dtype `[E, A]`, clipped to 0 and 1, of which the highest are bought; None: the
                coefficients are the ranks.

        Returns:
            Rewards of the step, float64 `[E]`.

        Raises:
            RuntimeError: the episodes are over.
            ValueError: an action has the wrong shape.
            FloatingPointError: at the last step, if an action that counted or a reward of the episode is not finite.
        """
        if self.done:
            raise RuntimeError("The episodes are over: call reset before the next step.")
        shape = (len(self._first_days), self.prices.assets)
        check_actions(shape, coefficients, targets, ranks)
        step = self._step_index
        rewards = self._book_open_positions()
        exit_step = self._state[_EXIT_STEP, :, :-1]
        held = exit_step > step
        active = (exit_step >= step if self.trading.bookkeeping == "classic" else held).any(dim=1)
        if step < self.trading.trading_days:
            orders = place_orders(self.prices, self.trading, self._days, coefficients, targets, ranks)
            bought = orders.placed & ~held.gather(1, orders.asset)
            rewards = rewards + self._open(orders, bought)
            if fill_offset(self.trading) == 0:
                active = active | bought.any(dim=1)
        idle = ~active
        rewards = rewards - idle.to(torch.float64) * self.trading.idle_penalty
        self._idle_days += idle
        if step == self.trading.no_trade_step:
            traded = torch.cat(self._bought, dim=1).any(dim=1)
            rewards = rewards - (~traded).to(torch.float64) * self.trading.no_trade_penalty
        self._reward += rewards
        self._step_index += 1
        self._days = self._first_days + self._step_index
        if self._step_index == self.trading.episode_days:
            self._finish()
        return rewards

    def summary(self) -> EpisodeSummary:
        """Return the account of the episodes.

        Raises:
            RuntimeError: the episodes are not over.
        """
        if self._summary is None:
            raise RuntimeError("The episodes are not over: the account is made after their last step.")
        return self._summary

    def trades(self) -> pd.DataFrame:
        """Return all trades of the episodes, one a row, ordered by episode, decision and rank.

        Columns: episode, asset (its column), decision_day, fill_day, exit_day (days of the panel), entry, exit (prices,
        slippage included), target (price of its sale before the last day), coefficient, gain (net, a fraction), value
        (reward), reason (`target` or `time`).

        Raises:
            RuntimeError: the episodes are not over, or trades were not recorded.
        """
        if not self._record_trades:
            raise RuntimeError("Trades were not recorded: create the environment with record_trades=True.")
        if self._summary is None:
            raise RuntimeError("The episodes are not over: the list of trades is made after their last step.")
        bought = torch.stack(self._bought, dim=1)
        episode, step, _ = (index.cpu() for index in bought.nonzero(as_tuple=True))
        # Rows of a boolean selection come in the order of nonzero: episode by episode, each by its decisions.
        trade = {name: values[bought].cpu() for name, values in vars(_stacked(self._orders)).items()}
        decision_day = self._first_days.cpu()[episode] + step
        columns = {
            "episode": episode,
            "asset": trade["asset"],
            "decision_day": decision_day,
            "fill_day": decision_day + fill_offset(self.trading),
            "exit_day": decision_day + trade["exit_offset"],
            "entry": trade["entry"],
            "exit": trade["exit"],
            "target": target_price(self.trading, trade["entry"], trade["target"]),
            "coefficient": trade["coefficient"],
            "gain": trade["gain"],
            "value": trade["value"],
        }
        table = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
        table["reason"] = np.where(trade["at_target"].numpy(), "target", "time")
        return table

    def _book_open_positions(self) -> Tensor:
        """Return what positions opened before today book today, float64 `[E]`."""
        if self.trading.credit == "decision":
            return torch.zeros_like(self._reward)
        step, positions = self._step_index, self._state[:, :, :-1]
        closing = positions[_EXIT_STEP] == step
        if self.trading.credit == "realized":
            return torch.where(closing, positions[_VALUE], 0.0).sum(dim=1)
        gain = gain_at_close(self.trading, positions[_ENTRY], self.prices.last_close[self._days])
        mark = torch.where(closing, positions[_VALUE], trade_value(self.trading, positions[_COEFFICIENT], gain))
        booked = torch.where(positions[_EXIT_STEP] >= step, mark - positions[_MARK], 0.0).sum(dim=1)
        positions[_MARK] = mark
        return booked

    def _open(self, orders: Orders, bought: Tensor) -> Tensor:
        """Open the positions that today's decisions buy; return what they book today, float64 `[E]`."""
        mark, booked = torch.zeros_like(orders.value), torch.zeros_like(orders.value)
        if self.trading.credit == "decision":
            booked = torch.where(bought, orders.value, 0.0)
        elif self.trading.credit == "marked" and fill_offset(self.trading) == 0:
            close = self.prices.close.take(self._days.unsqueeze(1) * self.prices.assets + orders.asset)
            mark = trade_value(self.trading, orders.coefficient, gain_at_close(self.trading, orders.entry, close))
            booked = torch.where(bought, mark, 0.0)
        position = torch.stack(
            (
                torch.full_like(orders.value, self._step_index),
                self._step_index + orders.exit_offset,
                orders.entry,
                orders.coefficient,
                orders.value,
                mark,
            )
        )
        column = torch.where(bought, orders.asset, self.prices.assets)
        self._state.scatter_(2, column.expand(6, -1, -1), position)
        self._orders.append(orders)
        self._bought.append(bought)
        return sum_of_day(booked)

    def _finish(self) -> None:
        """Make the account after the last step."""
        orders, bought = _stacked(self._orders), torch.stack(self._bought, dim=1)
        if not self._record_trades:
            self._orders, self._bought = [], []
        self._summary = account(self.trading, orders, bought, self._idle_days, self._reward)


def _stacked(orders: list[Orders]) -> Orders:
    """Join the orders of all decisions, each `[E, K]`, to `[E, decisions, K]`."""
    return combine_orders(orders, partial(torch.stack, dim=1))
