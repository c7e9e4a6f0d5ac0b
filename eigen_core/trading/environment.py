"""The trading environment: many episodes at once, as tensors."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.machine.gpu import on_device
from eigen_core.trading.episodes import EpisodeSummary, book_episodes
from eigen_core.trading.observed_positions import PORTFOLIO_VALUES, HeldPrices, Positions
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.orders import Orders, batch_slices, choose_assets, concat_orders, orders_of, target_price
from eigen_core.trading.prices import Prices

EPISODE_TIME_VALUES = 2
"""Length of the vector of a step in `episode_times`."""


def episode_times(trading: TradingConfig, device: torch.device) -> Tensor:
    """Return the time that agents observe at each step and after the last: float32 `[episode days + 1, 2]`.

    The first value is the elapsed share of the episode; the second is 1 while positions may be opened, else 0. Both are
    0 if `trading.observe_portfolio` is false.
    """
    days = trading.episode_days
    times = [(step / days, 1.0 if step < trading.trading_days else 0.0) for step in range(days + 1)]
    return torch.tensor(times, dtype=torch.float32, device=device) * trading.observe_portfolio


def check_first_days(prices: Prices, trading: TradingConfig, first_days: Tensor) -> Tensor:
    """Check the first days of episodes, and return them on the prices' device: int64 `[episodes]`.

    Days on the host are checked without waiting for a GPU.

    Raises:
        InputError: an episode has days before the first or after the last price.
        ValueError: `first_days` is not a vector of at least one day.
    """
    if first_days.dim() != 1 or first_days.numel() == 0 or first_days.dtype.is_floating_point:
        raise ValueError(
            f"first_days must be an integer vector with one day per episode, not {first_days.dtype} "
            f"of shape {tuple(first_days.shape)}."
        )
    first_days = first_days.to(torch.int64, copy=True)
    earliest, latest = int(first_days.min()), int(first_days.max())
    last_start = prices.days - trading.episode_days
    if earliest < 0 or latest > last_start:
        wrong = earliest if earliest < 0 else latest
        raise InputError(
            f"an episode of {trading.episode_days} days from day {wrong} does not fit into the {prices.days:,} days of "
            f"prices: choose a first day from 0 to {last_start}."
        )
    device = prices.close.device
    return on_device(first_days.numpy(), device) if first_days.device.type == "cpu" else first_days.to(device)


def check_actions(shape: tuple[int, ...], coefficients: Tensor, targets: Tensor, ranks: Tensor | None) -> None:
    """Raise `ValueError` if coefficients, targets or ranks have another shape."""
    for name, values in (("coefficients", coefficients), ("targets", targets), ("ranks", ranks)):
        if values is not None and values.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, not {list(values.shape)}.")


class DecisionInputs(NamedTuple):
    """Inputs of a decision besides the actions, as tensors that a CUDA graph can read.

    Attributes:
        days: int64 `[E, 1]`, the day of the decision.
        observed, later: results of `Positions.at`.
    """

    days: Tensor
    observed: Tensor
    later: Tensor


class Decision(NamedTuple):
    """The K assets of highest rank on a day (int64), their actions, and whether each is held already: all `[E, K]`."""

    asset: Tensor
    coefficient: Tensor
    target: Tensor
    held: Tensor


class TradingEnvironment:
    """E episodes that advance together, each with its own portfolio of A assets.

    Episode e starts at day f; at step s = 0 .. T - 1 (T = `trading.episode_days`) the agent decides after the close of
    day t = f + s. On steps before `trading.trading_days` each of the `trading.purchases_per_day` tradable assets with
    the highest ranks (`choose_assets`) is ordered if its coefficient reaches `trading.buy_threshold` and it is not
    held; no other asset takes the place of a held one. `resolve_orders` has the rules of fills and exits. An asset may
    be bought again on the day its position closed.

    Reward: a trade is worth its coefficient times its net gain in percent, losses times `trading.loss_multiplier`,
    booked by `trading.credit`: `decision` at the step of the decision, `realized` at the step whose day is the exit's,
    `marked` day by day from the fill to the exit, as the change of its value if it closed at the last known close.
    Each of the T days that ends without an open position (after the exits, the fills and a purchase at the close of
    that day) costs `trading.idle_penalty`, with classic bookkeeping unless a position closed on it; an episode without
    a trade costs `trading.no_trade_penalty` at `trading.no_trade_step`. The sum over an episode does not depend on
    `trading.credit`, up to rounding.

    The host waits for a GPU only at the last step, and in `reset` if the first days are on the GPU. After the last step
    only rewards and summary are kept; with `record_trades` also the trades. `held_prices` defaults to
    `HeldPrices.of(prices, trading)`.
    """

    def __init__(
        self,
        prices: Prices,
        trading: TradingConfig,
        record_trades: bool = False,
        held_prices: HeldPrices | None = None,
    ) -> None:
        self.prices = prices
        self.trading = trading
        self._record_trades = record_trades
        self._step_index = trading.episode_days
        self._positions: Positions | None = None
        self._summary: EpisodeSummary | None = None
        self._held_prices = held_prices or HeldPrices.of(prices, trading)

    @torch.inference_mode()
    def reset(self, first_days: Tensor) -> None:
        """Start episodes at `first_days`, int64 `[E]` on any device; see `check_first_days`."""
        self._first_days = check_first_days(self.prices, self.trading, first_days)
        self._step_index = 0
        self._summary = None
        self._decisions: list[Decision] = []
        self._positions = Positions(self._held_prices, self.trading, len(first_days))

    @property
    def days(self) -> Tensor:
        """Day of the next decision, int64 `[E]`; after the last step, the day after the episode."""
        return self._first_days + self._step_index

    @property
    def step_index(self) -> int:
        return self._step_index

    @property
    def done(self) -> bool:
        """Whether the episodes are over, or `reset` was not called yet."""
        return self._step_index >= self.trading.episode_days

    def portfolio(self) -> Tensor:
        """Return the observed portfolios after the close of `days`, before the decision: float16 `[E, A, 4]`.

        Held (0 or 1), days since the decision / `holding_days` (at most 1), unrealised gain (last known close / entry
        price - 1, a fraction within plus or minus 5), coefficient / `max_coefficient` (the coefficient itself if
        unbounded). Zero for an asset that is not held, for all of them when the episodes are over, and always if
        `trading.observe_portfolio` is false. A position that closes on day t is no longer held on it.
        """
        if self._positions is not None and self.trading.observe_portfolio:
            return self._positions.observed(self._step_index)
        shape = (len(self._first_days), self.prices.assets, PORTFOLIO_VALUES)
        return torch.zeros(shape, dtype=torch.float16, device=self._first_days.device)

    def step(self, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None) -> None:
        """Order on the day `days` and move to the next day.

        Args:
            coefficients: any float dtype `[E, A]`, clipped to [0, `trading.max_coefficient`].
            targets: any float dtype `[E, A]`, sale targets as fractions, clipped to [`trading.min_target`,
                `trading.max_target`].
            ranks: any float dtype `[E, A]`, clipped to [0, 1]; the assets of the highest ranks are bought. None: the
                coefficients serve as ranks.

        Raises:
            RuntimeError: the episodes are over.
            FloatingPointError: at the last step, if an action for a chosen asset or a reward is not finite.
        """
        inputs = self.decision_inputs()
        check_actions((len(self._first_days), self.prices.assets), coefficients, targets, ranks)
        self.end_day(None if inputs is None else self.decide(inputs, coefficients, targets, ranks))

    @torch.inference_mode()
    def decision_inputs(self) -> DecisionInputs | None:
        """Return the inputs of the next decision; None on the days after `trading.trading_days`.

        `step` calls this, `decide` and `end_day` in turn; a CUDA graph can capture `decide`.
        """
        if self._positions is None:
            raise RuntimeError("The episodes are over or not started: call reset before the next step.")
        if self._step_index >= self.trading.trading_days:
            return None
        return DecisionInputs(self._first_days.unsqueeze(1) + self._step_index, *self._positions.at(self._step_index))

    # In inference mode an operator costs a tenth less. Its tensors are not used outside of the environment.
    @torch.inference_mode()
    def decide(
        self, inputs: DecisionInputs, coefficients: Tensor, targets: Tensor, ranks: Tensor | None = None
    ) -> Decision:
        """Choose assets by the actions (see `step`), and open their positions."""
        assert self._positions is not None
        asset, coefficient = choose_assets(self.prices, self.trading, inputs.days, coefficients, ranks)
        target = targets.gather(-1, asset).to(torch.float64)
        return Decision(asset, coefficient, target, self._positions.open(*inputs, asset, coefficient, target))

    def end_day(self, decision: Decision | None) -> None:
        """Store the decision of the day, if there was one, and move to the next day."""
        assert self._positions is not None
        if decision is not None:
            self._decisions.append(decision)
        with torch.inference_mode():
            self._positions.end_day(self._step_index)
        self._step_index += 1
        if self.done:
            self._finish()

    def rewards(self) -> Tensor:
        """Return the rewards of the episodes, float64 `[E, T]`; raise RuntimeError before their end."""
        self.summary()  # raises before their end
        return self._rewards

    def summary(self) -> EpisodeSummary:
        """Return the results of the episodes; raise RuntimeError before their end."""
        if self._summary is None:
            raise RuntimeError("The episodes are not over: their rewards and trades are known after the last step.")
        return self._summary

    def trades(self) -> pd.DataFrame:
        """Return all trades of the episodes, one a row, by episode, decision and rank.

        Columns: episode, asset (its column), decision_day, fill_day, exit_day (days of the panel), entry, exit (prices,
        slippage included), target (price of a sale before the last day), coefficient, gain (net, a fraction), value
        (reward), reason (`target`; `time`: the end of the holding time; `delisted`: see `Fills.ended`).

        Raises:
            RuntimeError: the episodes are not over, or trades were not recorded.
        """
        if not self._record_trades:
            raise RuntimeError("Trades were not recorded: create the environment with record_trades=True.")
        self.summary()  # raises before their end
        orders, bought = self._orders()
        episode, step, _ = (index.cpu() for index in bought.nonzero(as_tuple=True))
        # Rows of a boolean selection come in the order of nonzero: episode by episode, each by its decisions.
        trade = {name: values[bought].cpu() for name, values in vars(orders).items()}
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
        if self.trading.bookkeeping == "exact":
            delisted = self.prices.fills(self.trading).exit_delisted.cpu()[decision_day, trade["asset"]]
            table.loc[(delisted & ~trade["at_target"]).numpy(), "reason"] = "delisted"
        return table

    def _orders(self) -> tuple[Orders, Tensor]:
        """Return the orders of all decisions, and which were bought: each `[E, decisions, K]`."""
        asset, coefficient, target, held = (torch.stack(parts, dim=1) for parts in zip(*self._decisions, strict=True))
        days = self._decided_days()
        orders = [
            orders_of(self.prices, self.trading, days[part], asset[part], coefficient[part], target[part])
            for part in batch_slices(len(days), asset[0].numel() * self.prices.fills(self.trading).longest)
        ]
        combined = concat_orders(orders)
        return combined, combined.placed & ~held

    def _decided_days(self) -> Tensor:
        return self._first_days.unsqueeze(1) + torch.arange(len(self._decisions), device=self._first_days.device)

    @torch.no_grad()
    def _finish(self) -> None:
        self._positions = None
        self._rewards, self._summary = book_episodes(self.prices, self.trading, self._decided_days(), *self._orders())
        if not self._record_trades:
            self._decisions = []


@torch.no_grad()
def trade_whole_episodes(
    prices: Prices,
    trading: TradingConfig,
    first_days: Tensor,
    coefficients: Tensor,
    targets: Tensor,
    ranks: Tensor | None = None,
) -> tuple[Tensor, EpisodeSummary]:
    """Trade E episodes of T = `trading.episode_days` days whose actions do not depend on the portfolio.

    The rules are those of `TradingEnvironment`. As orders do not move prices, all are resolved at once; only which
    assets are held is computed step by step.

    Args:
        first_days: int64 `[E]`, on any device; see `check_first_days`.
        coefficients: any float dtype `[E, D, A]`, D at least `trading.trading_days`; later days are ignored.
        targets, ranks: of the same shape, as in `TradingEnvironment.step`.

    Returns:
        Rewards, float64 `[E, T]`, and the results of the episodes.

    Raises:
        FloatingPointError: an action for a chosen asset or a reward is not finite.
    """
    first_days = check_first_days(prices, trading, first_days)
    decisions = trading.trading_days
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
    """Return which placed orders become trades, bool `[E, decisions, K]`: those whose asset is not held."""
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
