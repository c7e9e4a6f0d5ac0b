"""Interface of a task's backtest: earnings in money over a span of days, and the next orders."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import pandas as pd
import torch
from torch import Tensor

from eigen_core.common.records import Excess
from eigen_core.config import Config, TradingConfig
from eigen_core.config.values import BACKTESTS, chosen, task_choice
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.trading import DecidedTrades, EquityCurve, Prices, episode_times
from eigen_core.trading.equity import Values
from eigen_core.trading.matched import MatchedTraders
from eigen_core.trading.trades import trade_day_by_day

DRAWS = 1_000
"""Matched random traders, unless another number is given."""


@dataclass(frozen=True)
class PlayedSpan:
    """Earnings of agents over a span of days.

    Attributes:
        curve: the account; that of several agents is the sum of their accounts.
        trades: all trades, one a row: columns of `TradedAccounts.table` or `WeightsAccounts.table`, and `agent`, its
            place among those played.
        interest: earned on cash (money).
        one_portfolio: all agents trade it together.
        baselines: other accounts on the same days, by name; `initial_population` is the mean of the agents that the run
            began with.
        matched: what matched random traders earned.
        excess: what was gained beyond the market; None with too little to tell.
        alpha: what of the excess the market's own gain does not explain; None with too little to tell.
        holding_days: longest time from a decision to its exit; 1 where what is judged are days.
        baskets: baselines that hold all assets; figures and alpha are against the first.
        weights: share of the equity in each asset at each close, a row a day, a column a symbol, and what is left is
            cash; None where agents make trades.
        active_share: share of a portfolio that equal weight has in other assets; None where agents make trades.
        periods_per_year: days of trading a year; see `eigen_core.trading.trades`.
        timing: what the same decisions earn at other times.
        by_timing: there is one asset, so that timing is all that can be judged: `matched`, `excess` and `alpha` are
            against other times, not against other assets.
    """

    curve: EquityCurve
    trades: pd.DataFrame
    interest: float
    one_portfolio: bool
    baselines: Mapping[str, EquityCurve]
    matched: MatchedTraders
    excess: Excess | None
    alpha: Excess | None
    holding_days: int
    periods_per_year: int
    timing: MatchedTraders
    baskets: tuple[str, ...] = ("equal_weight", "rebalanced")
    weights: pd.DataFrame | None = None
    active_share: float | None = None
    by_timing: bool = False


@dataclass(frozen=True)
class Order:
    """An order.

    Attributes:
        symbol: of the asset.
        side: buy, at the next fill; or sell, at the next fill, or where there is a target at that or else on the last
            day.
        size: shares.
        money: what it takes or gives at `price`, transaction costs included in a purchase.
        price: the target of a sale; else the last close with slippage, as the fill is not known yet.
        target: price of the sale of what is bought or held; None: none is decided yet.
        latest_exit: date of that sale where the target is not reached; None of a position: its sale is due and waits
            for the symbol's next fill.
    """

    symbol: str
    side: str
    size: float
    money: float
    price: float
    target: float | None
    latest_exit: str | None


@dataclass(frozen=True)
class Position:
    """An open position.

    Attributes:
        symbol: of the asset.
        size: shares; below 0: sold short.
        entry: price of one share, slippage included; None where it was bought by many orders.
        worth: at the last known close (money).
        decided: date of the decision that bought it; None where these are many.
    """

    symbol: str
    size: float
    entry: float | None
    worth: float
    decided: str | None


@dataclass(frozen=True)
class NextOrders:
    """Orders of an agent after a day.

    Attributes:
        date: of the day.
        equity, cash: at its close (money).
        orders: what the day's decision orders, then the standing sales of positions.
        positions: held at the day's close.
        decided: what the decision of each day of the span has ordered, by date, as `decision_of` names it.
        money: what each of these orders takes or gives, by date and symbol; of purchases that were filled, what was
            paid.
    """

    date: str
    equity: float
    cash: float
    orders: tuple[Order, ...]
    positions: tuple[Position, ...]
    decided: Mapping[str, str | None]
    money: Mapping[str, Mapping[str, float]]


def decisions_among(orders: Iterable[Order]) -> list[Order]:
    """Return the orders that a day's decision makes; standing sales, which have a target, were decided before."""
    return [order for order in orders if order.side == "buy" or order.target is None]


def decision_of(orders: Iterable[Order]) -> str | None:
    """Return what a day's decision orders: symbols bought, and with a minus sold at once; None: nothing."""
    decided = decisions_among(orders)
    return " ".join(order.symbol if order.side == "buy" else f"-{order.symbol}" for order in decided) or None


class TaskBacktest(Protocol):
    """Plays agents of a run over spans of a panel.

    Args:
        config: of the run.
        panel: the market that the run was trained on; for `next_orders` it ends with the day of the decision.
        device: where networks are computed.
    """

    def __init__(self, config: Config, panel: Panel, device: torch.device) -> None: ...

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return how many days after a decision the last price comes that its reward depends on."""

    def play(self, weights: Tensor, span: range, key: str, *, ensemble: bool = False, draws: int = DRAWS) -> PlayedSpan:
        """Play agents day after day over a span, each with an equal share of the capital.

        Args:
            weights: float32 `[agents, parameters]`.
            span: days of the panel; a whole window lies before the first decision.
            key: name of the agents, which the draws of matched traders belong to.
            ensemble: the agents trade one portfolio, by the means of their actions.
            draws: matched random traders.
        """

    def returns_of(self, weights: Tensor, span: range) -> Values:
        """Return what each agent's account with the whole capital returns a day over a span.

        Args:
            weights: float32 `[agents, parameters]`.
            span: days of the panel.

        Returns float64 `[days, agents]`.
        """

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the orders of an agent after the panel's last day, having traded since day `first`.

        Args:
            weights: float32 `[parameters]`.
            first: day of the first decision; a whole window lies before it.
        """


def task_backtest(config: Config, panel: Panel, device: torch.device) -> TaskBacktest:
    """Return the backtest of the task that a configuration names, which has prices (`has_prices`)."""
    return _class_of(config)(config, panel, device)


def outcome_days(config: Config) -> int:
    """Return how many days after a decision the last price comes that its reward depends on."""
    return _class_of(config).outcome_days(config.trading)


def _class_of(config: Config) -> "type[TaskBacktest]":
    return cast("type[TaskBacktest]", chosen(BACKTESTS, task_choice(config.task)))


@torch.no_grad()
def play_days(
    network: AgentNetwork, known: Prices, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> DecidedTrades:
    """Let agents trade a span of days.

    Args:
        network: forward passes.
        known: prices of the span, as `prices_of_span` returns them.
        config: of the run.
        weights: float32 `[agents, parameters]`.
        span: days of the panel; a whole window lies before the first decision.
        ensemble: the agents trade together, one portfolio by the means of their actions.

    The time in the episode that agents see begins again after every `trading.trading_days` days, so that they see
    nothing that they were not trained on.
    """
    trading, agents = config.trading, len(weights)
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    times = episode_times(trading, weights.device)
    prepared = torch.empty(0)

    def decide(step: int, portfolios: Tensor) -> tuple[Tensor, ...]:
        nonlocal prepared
        row = step % trading.trading_days
        if row == 0:
            days = min(trading.trading_days, len(span) - step)
            market = network.encode_block(critic, span.start + step, days)
            prepared = network.prepare_actor(actor, market, times[:days])
        seen = portfolios.float().unsqueeze(1).expand(agents, -1, -1, -1) if network.portfolio_values else None
        actions = network.policy(actor, prepared[:, row : row + 1], seen).play(None).actions[:, 0]
        if ensemble:
            actions = actions.mean(dim=0, keepdim=True)
        return actions.unbind(-1)

    return trade_day_by_day(known, trading, len(span), 1 if ensemble else agents, decide)
