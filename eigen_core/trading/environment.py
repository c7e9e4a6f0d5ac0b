"""The trading environment: many episodes at once, as tensors, with their positions, rewards and results.

A day is a row of the prices, counted from 0; an asset is a tradable column. E is the number of episodes, A of assets, K
`trading.purchases_per_bar`. On each of its steps, one a day, an episode's agent makes a decision: at most K orders.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.machine.gpu import on_device
from eigen_core.trading.order_fills import OrderCosts, fill_offset
from eigen_core.trading.orders import (
    PERCENT,
    Orders,
    batch_slices,
    choose_assets,
    concat_orders,
    orders_of,
    sum_of_day,
    target_price,
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


@dataclass(frozen=True)
class HeldPrices:
    """The prices that `Positions` reads; those of one position lie close together in memory.

    Attributes:
        values: float64 `[4 or more, assets, days]`. 0: entry price of an order decided on the day, slippage included;
            minus infinity if the order cannot be filled. 1 and 2: price that a sale target is compared with, where the
            day is the first after the decision (1) or a later one (2): the high; minus infinity where no target can be
            reached; infinity where classic bookkeeping closes every position. 3: last known close. 4 and more, by the
            day of the decision: the price that is compared `trading.holding_bars` and more days later; infinity where
            the sale that ends the holding time comes before.
        offsets: int64 `[2 rows - 1, 1, 1]`, indices into the flat `values`, relative to the cell of an asset and the
            day of a decision: entry price, then prices to compare and closes of the next rows - 1 days.
        rows: most days from a decision to its sale or to the first day on which a position only waits for its sale.
        waits: bool `[days + 1, assets]`, `Fills.waits`; None if no sale waits beyond the rows.
    """

    values: Tensor
    offsets: Tensor
    rows: int
    waits: Tensor | None

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig) -> "HeldPrices":
        fills = prices.fills(trading)
        rows = min(fills.longest, fills.before_wait + 1)
        late = range(trading.holding_bars, rows)
        shape = (4 + len(late), prices.assets, prices.days)
        values = torch.full(shape, torch.inf, dtype=torch.float64, device=prices.close.device)
        entry, first, reached, last_close, *compared_late = values.mT.unbind()
        entry.copy_(fills.entry.nan_to_num(nan=-torch.inf, posinf=torch.inf))
        reached.copy_(prices.high.nan_to_num(nan=-torch.inf, posinf=torch.inf))
        if trading.fill == "next_open":
            first.copy_(reached.masked_fill(prices.open.isnan(), -torch.inf))
        elif trading.fill == "next_close":
            first.fill_(-torch.inf)
        else:
            first.copy_(reached)
        if trading.bookkeeping == "classic":
            for compared in (first, reached):
                compared.masked_fill_(prices.missing, torch.inf)
        last_close.copy_(prices.last_close)
        for day, compared in zip(late, compared_late, strict=True):
            compared[:-day] = (first if day == 1 else reached)[day:]
            compared.masked_fill_(fills.exit_offset <= day, torch.inf)
        later, part = range(1, rows), entry.numel()
        highs = [part * min(day, 2) + day if day not in late else part * (4 + late.index(day)) for day in later]
        offsets = torch.tensor([0, *highs, *(part * 3 + day for day in later)], device=values.device)[:, None, None]
        waits = torch.nn.functional.pad(fills.waits, (0, 0, 0, 1)) if fills.longest > rows else None
        return cls(values, offsets, rows, waits)


class Positions:
    """The open positions of E episodes as agents observe them, in a table of the coming days.

    As orders do not move prices, all observations of a position until its sale are computed when it is opened. `open`
    writes them into the rows of the days after its own; `observed` reads the row of a step. A position that then only
    waits for its sale is copied from row to row.
    """

    def __init__(self, prices: HeldPrices, trading: TradingConfig, first_days: Tensor) -> None:
        self._prices, self._trading = prices, trading
        _, assets, self._price_days = prices.values.shape
        episodes, rows, device = len(first_days), prices.rows, prices.values.device
        # The four float16 of an asset are moved as one int64. After a day its row serves the day `rows` later.
        coming = torch.zeros((rows, episodes, assets), dtype=torch.int64, device=device)
        self._coming, self._rows = coming.view(-1), coming.unbind()
        self._observed = coming.view(torch.float16).view(*coming.shape, PORTFOLIO_VALUES).unbind()
        first = torch.arange(2 * rows, device=device) % rows * (episodes * assets)
        cells = first[:, None, None] + torch.arange(episodes, device=device)[:, None] * assets
        self._cells_later = [cells[row + 1 : row + rows] for row in range(rows)]
        # All purchases are computed in the same memory, so that its views are made once.
        of_day = (episodes, trading.purchases_per_bar)
        self._met = torch.empty((2 * rows - 1, *of_day), dtype=torch.float64, device=device)
        self._entry, self._compared, self._close = torch.split(self._met, [1, rows - 1, rows - 1])
        self._cells = torch.empty((rows - 1, *of_day), dtype=torch.int64, device=device)
        self._written = torch.empty_like(self._cells)
        self._flat = self._cells.view(-1), self._written.view(-1)
        observed = torch.ones((rows - 1, *of_day, PORTFOLIO_VALUES), dtype=torch.float16, device=device)
        _, days_held, self._gain, self._size = observed.unbind(-1)
        ages = torch.arange(1, rows, dtype=torch.float64, device=device)[:, None, None]
        # A position is older than the holding time if its market was closed on some days, or its sale waits.
        days_held.copy_((ages / trading.holding_bars).clamp(max=1.0))
        self._position = observed.view(torch.int64).squeeze(-1)
        self._minus_one = torch.tensor(-1.0, dtype=torch.float64, device=device)
        self._ends: tuple[Tensor, ...] | None = None
        if prices.waits is not None:
            days = first_days + torch.arange(1, trading.episode_bars + 1, device=device)[:, None]
            self._ends = (~prices.waits.index_select(0, days.flatten())).view(*days.shape, assets).unbind()

    def observed(self, step: int) -> Tensor:
        """Return the observed portfolios at a step, float16 `[E, A, 4]`; see `TradingEnvironment.portfolio`."""
        return self._observed[step % self._prices.rows].clone()

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the arguments `observed` and `later` of `open` for a step.

        `observed` is the step's row of the table, int64 `[E, A]`: the four float16 values of an asset, read as one
        number, 0 if it is not held. `later` has the flat indices of the first asset in the rows of the rows - 1 days
        after the step, int64 `[rows - 1, E, 1]`.
        """
        row = step % self._prices.rows
        return self._rows[row], self._cells_later[row]

    def open(
        self, days: Tensor, observed: Tensor, later: Tensor, asset: Tensor, coefficient: Tensor, target: Tensor
    ) -> Tensor:
        """Open the positions of a step's orders that can be filled and whose asset is not held.

        Args:
            days: int64 `[E, 1]`, each episode's day at the step.
            observed, later: results of `at` for the step.
            asset, coefficient, target: `[E, K]`, the orders, as in `Orders`.

        Returns:
            Whether the asset was held already, bool `[E, K]`.
        """
        trading = self._trading
        held = observed.gather(1, asset) != 0
        cell = days.add(asset, alpha=self._price_days)
        torch.take(self._prices.values, cell + self._prices.offsets, out=self._met)
        sale = target_price(trading, self._entry, target)
        sale.masked_fill_(held | (coefficient < trading.buy_threshold), -torch.inf)
        # 1 on the days before the first that reaches the target.
        remains = (self._compared < sale).cumprod(0)
        gain = torch.addcdiv(self._minus_one, self._close, self._entry)
        self._gain.copy_(gain.clamp_(-GAIN_LIMIT, GAIN_LIMIT))
        # Without the sign of a zero, so that observations are positive when read as integers.
        limit, coefficient = trading.max_coefficient, coefficient.abs()
        self._size.copy_(coefficient.clamp(max=_LARGEST_HALF) if limit is None else coefficient / limit)
        torch.add(later, asset, out=self._cells)
        torch.mul(self._position, remains, out=self._written)
        # Adding writes the values: an asset that is bought has zeros on all of the coming days.
        self._coming.scatter_add_(0, *self._flat)
        return held

    def end_day(self, step: int) -> None:
        """Keep positions that wait beyond the next day, and clear the row of a step, for a later one."""
        row = self._rows[step % self._prices.rows]
        if self._ends is not None:
            tomorrow = self._rows[(step + 1) % self._prices.rows]
            row.masked_fill_(self._ends[step], 0)
            # Two observations of a position differ in the days held alone: the later one is the greater number.
            torch.maximum(row, tomorrow, out=tomorrow)
        row.zero_()


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
    booked = torch.zeros_like(orders.value)
    for offset in range(fill_offset(trading), fills.before_wait + 1):
        worth = booked
        if trading.credit == "marked":
            close = prices.last_close.take((cell + offset * prices.assets).clamp_(max=last_cell))
            worth = trade_value(trading, orders.coefficient, OrderCosts.of(trading).gain_at_market(orders.entry, close))
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


class DecisionInputs(NamedTuple):
    """Inputs of `TradingEnvironment.decide` besides the actions, as tensors that a CUDA graph can read.

    Attributes:
        days: int64 `[E, 1]`, each episode's day of the decision.
        observed, later: results of `Positions.at` for the step.
    """

    days: Tensor
    observed: Tensor
    later: Tensor


class Decision(NamedTuple):
    """K assets, the highest rank first (int64), their actions (float64), and whether each was held (bool): `[E, K]`."""

    asset: Tensor
    coefficient: Tensor
    target: Tensor
    held: Tensor


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
    rewards, summary and orders are kept. `held_prices` defaults to `HeldPrices.of`.
    """

    def __init__(
        self,
        prices: Prices,
        trading: TradingConfig,
        held_prices: HeldPrices | None = None,
    ) -> None:
        self.prices, self.trading = prices, trading
        self.step_index = trading.episode_bars
        self._positions: Positions | None = None
        self._summary: EpisodeSummary | None = None
        self._held_prices = held_prices or HeldPrices.of(prices, trading)

    @torch.inference_mode()
    def reset(self, first_days: Tensor) -> None:
        """Start one episode on each of `first_days`, int64 `[E]`: days of the prices, on any device.

        On an episode's first day its agent decides for the first time. Errors: see `check_first_days`.
        """
        self._first_days = check_first_days(self.prices, self.trading, first_days)
        self.step_index = 0
        self._summary = None
        self._decisions: list[Decision] = []
        self._positions = Positions(self._held_prices, self.trading, self._first_days)

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
            return self._positions.observed(self.step_index)
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
        inputs = self.decision_inputs()
        check_actions((len(self._first_days), self.prices.assets), coefficients, targets, ranks)
        self.end_day(None if inputs is None else self.decide(inputs, coefficients, targets, ranks))

    @torch.inference_mode()
    def decision_inputs(self) -> DecisionInputs | None:
        """Return the inputs of the next decision; None after the last one: from step `trading.trading_bars` on.

        `step` calls this, `decide` and `end_day` in turn; a CUDA graph can capture `decide`.
        """
        if self._positions is None:
            raise RuntimeError("The episodes of this TradingEnvironment are over or not started: call reset first.")
        if self.step_index >= self.trading.trading_bars:
            return None
        return DecisionInputs(self._first_days.unsqueeze(1) + self.step_index, *self._positions.at(self.step_index))

    # In inference mode an operator costs a tenth less. Callers compute nothing with its tensors.
    @torch.inference_mode()
    def decide(
        self, inputs: DecisionInputs, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None
    ) -> Decision:
        """Choose K assets by the actions (see `step`), and open the positions of the orders that are filled."""
        assert self._positions is not None
        asset, coefficient = choose_assets(self.prices, self.trading, inputs.days, coefficients, ranks)
        target = targets.gather(-1, asset).to(torch.float64)
        return Decision(asset, coefficient, target, self._positions.open(*inputs, asset, coefficient, target))

    def end_day(self, decision: Decision | None) -> None:
        """Store the day's decision (None: there was none) and move to the next day; after the last, compute results."""
        assert self._positions is not None
        if decision is not None:
            self._decisions.append(decision)
        with torch.inference_mode():
            self._positions.end_day(self.step_index)
        self.step_index += 1
        if self.done:
            self._positions = None
            with torch.no_grad():
                booked = book_episodes(self.prices, self.trading, self._decided_days(), *self._orders())
            self._rewards, self._summary = booked

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
        return self._orders()

    def _orders(self) -> tuple[Orders, Tensor]:
        asset, coefficient, target, held = (torch.stack(parts, dim=1) for parts in zip(*self._decisions, strict=True))
        days = self._decided_days()
        orders = [
            orders_of(self.prices, self.trading, days[part], asset[part], coefficient[part], target[part])
            for part in batch_slices(len(days), asset[0].numel() * self.prices.fills(self.trading).before_wait)
        ]
        combined = concat_orders(orders)
        return combined, combined.placed & ~held

    def _decided_days(self) -> Tensor:
        return self._first_days.unsqueeze(1) + torch.arange(len(self._decisions), device=self._first_days.device)


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
