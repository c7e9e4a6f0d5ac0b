"""Backtests: earnings in money of a task's agents over a span of days, and their next orders."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import Excess
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.config.registry import BACKTESTS, load_class, task_choice
from eigen_core.learning import learner_class
from eigen_core.machine.arithmetic import set_cpu_mode
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.networks.actions import AssetActions
from eigen_core.networks.population import agent_groups, initial_weights
from eigen_core.trading import EquityCurve, Prices
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.matched_traders import MatchedTraders, has_choice, share_of_capital
from eigen_core.trading.metrics import Metrics, compute_metrics, gain_by_asset, gain_by_month
from eigen_core.trading.prices import prices_of_span
from eigen_core.trading.trades import TradedAccounts
from eigen_core.trading.weights import WeightsAccounts

Decided = TypeVar("Decided")
"""Decisions of agents: `DecidedTrades`, or target weights, float64 `[agents, days, assets]`."""

AnyAccounts = TypeVar("AnyAccounts", TradedAccounts, WeightsAccounts)
"""The accounts of agents that decide so."""

DRAWS = 1_000
"""Matched random traders, unless another number is given."""


@dataclass(frozen=True, kw_only=True)
class SpanResult:
    """Earnings of agents over a span of days.

    Attributes:
        curve: the account; that of several agents is the sum of their accounts.
        trades: a row each: columns of `TradedAccounts.table` or `WeightsAccounts.table`, and `agent`, its place.
        interest: earned on cash (money).
        one_portfolio: all agents trade it together.
        baselines: other accounts on the same days, by name; `initial_population` is the mean of the first agents.
        matched: earnings of matched random traders.
        excess: gain beyond the market; None with too little to tell.
        alpha: part of the excess that the market's own gain does not explain; None with too little to tell.
        holding_days: longest time from a decision to its exit; 1 where days are judged.
        periods_per_year: days of trading a year; see `eigen_core.trading.equity`.
        risk_free: rate a year.
        timing: earnings of the same decisions at other times.
        baskets: baselines that hold all assets; metrics and alpha are against the first.
        weights: share of the equity in each asset at each close, a row a day, a column a symbol; the rest is cash. None
            where agents make trades.
        active_share: share of a portfolio that equal weight has in other assets; None where agents make trades.
        by_timing: there is one asset, so that only timing can be judged: `matched`, `excess` and `alpha` are against
            other times, not against other assets.
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
    risk_free: float
    timing: MatchedTraders
    baskets: tuple[str, ...] = ("equal_weight", "rebalanced")
    weights: pd.DataFrame | None = None
    active_share: float | None = None
    by_timing: bool = False

    @property
    def benchmark(self) -> str:
        """The baseline that beta, alpha and information ratio are against."""
        return self.baskets[0]

    @property
    def total_return(self) -> float:
        """Return over the whole span, as a fraction of the capital."""
        return float(self.curve.equity[-1] / self.curve.capital - 1.0)

    @cached_property
    def figures(self) -> Metrics:
        """Metrics of the account, against the benchmark."""
        return self.compute_metrics(self.curve, self.baselines[self.benchmark])

    @cached_property
    def figures_of_baselines(self) -> Mapping[str, Metrics]:
        """Metrics of the baselines against the benchmark, by name."""
        benchmark = self.baselines[self.benchmark]
        return {name: self.compute_metrics(curve, benchmark) for name, curve in self.baselines.items()}

    @cached_property
    def by_asset(self) -> pd.DataFrame:
        """Gain of each asset; see `gain_by_asset`."""
        return gain_by_asset(self.trades)

    @cached_property
    def by_month(self) -> pd.DataFrame:
        """Gain and trades of each month; see `gain_by_month`."""
        return gain_by_month(self.curve, self.trades)

    def compute_metrics(self, curve: EquityCurve, benchmark: EquityCurve | None = None) -> Metrics:
        """Return the metrics of an account on these days."""
        return compute_metrics(curve, benchmark, periods_per_year=self.periods_per_year, risk_free=self.risk_free)


@dataclass(frozen=True)
class Order:
    """An order.

    Attributes:
        side: buy, at the next fill; or sell, at the target or else on the last day, without a target at the next fill.
        size: shares.
        money: paid or received at `price`, transaction costs included in a purchase.
        price: the target of a sale; else the last close with slippage, as the fill is not known yet.
        target: price of the sale of the position; None: none is decided yet.
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
        equity, cash: at its close (money).
        orders: of the day's decision, then the standing sales of positions.
        positions: held at the day's close.
        decided: decisions of each day of the span, by date, as `decision_of` names them.
        money: paid or received for each of these orders, by date and symbol.
    """

    date: str
    equity: float
    cash: float
    orders: tuple[Order, ...]
    positions: tuple[Position, ...]
    decided: Mapping[str, str | None]
    money: Mapping[str, Mapping[str, float]]


def decisions_among(orders: Iterable[Order]) -> list[Order]:
    """Return the orders of a day's decision; standing sales, which have a target, were decided before."""
    return [order for order in orders if order.side == "buy" or order.target is None]


def decision_of(orders: Iterable[Order]) -> str | None:
    """Name a day's decision: symbols bought, and with a minus sold at once; None: nothing."""
    decided = decisions_among(orders)
    return " ".join(order.symbol if order.side == "buy" else f"-{order.symbol}" for order in decided) or None


class TaskBacktest(ABC, Generic[Decided, AnyAccounts]):
    """Plays agents of a run over spans of a panel. A task with prices implements it.

    Args:
        config: of the run.
        panel: the market that the run was trained on; for `next_orders` it ends with the day of the decision.
        device: where networks are computed.
    """

    # Functions of the task: actions of its agents, decisions of groups of agents as those of all, earnings of the same
    # decisions at other times (decisions, prices, dates, config, draws), and of matched random traders (and a name).
    _actions: Callable[[Config, torch.device], AssetActions]
    _concatenated: Callable[..., Decided]
    _play_shifted: Callable[..., MatchedTraders]
    _play_matched: Callable[..., MatchedTraders]

    def __init__(self, config: Config, panel: Panel, device: torch.device) -> None:
        # Here, because it must come before the first computation.
        set_cpu_mode(config.instructions, device)
        self.config, self.panel, self.device = config, panel, device
        self._prices = Prices.of_panel(panel, device)

    @cached_property
    def _network(self) -> AgentNetwork:
        heads = learner_class(self.config.learner).heads(self.config)
        return AgentNetwork(self.panel, self.config, self.device, heads, self._actions(self.config, self.device))

    @staticmethod
    @abstractmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the days from a decision to the last price that its reward depends on."""

    @abstractmethod
    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the orders of an agent after the panel's last day, having traded since day `first`.

        Sizes are those of a fill at the last close, which the next day's prices are taken to be.

        Args:
            weights: float32 `[parameters]`.
            first: day of the first decision; a whole window lies before it.
        """

    @abstractmethod
    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> Decided:
        """Return the decisions of agents, computed at once; an ensemble is one agent, by the means of its actions."""

    @abstractmethod
    def accounts(self, decided: Decided, span: range, settings: AccountConfig | None = None) -> AnyAccounts:
        """Return the accounts of agents that decide so over a span; `settings` replaces those of the run."""

    @abstractmethod
    def _compared(
        self, decided: Decided, span: range, accounts: AnyAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        """Return attributes of a `SpanResult`: excess, alpha, holding days, and those of portfolios."""

    def _known(self, span: range) -> Prices:
        return prices_of_span(self._prices, span, self.outcome_days(self.config.trading))

    def _dates(self, span: range) -> NDArray[np.datetime64]:
        return np.asarray(self.panel.dates)[span.start : span.stop]

    def _decided(self, weights: Tensor, span: range, *, ensemble: bool = False) -> Decided:
        own = weights.to(self.device)
        if ensemble:
            return self._decide(own, span, ensemble=True)
        groups = agent_groups(len(own), self.config.population.group_size)
        return self._concatenated([self._decide(own[group], span, ensemble=False) for group in groups])

    def play(self, weights: Tensor, span: range, key: str, *, ensemble: bool = False, draws: int = DRAWS) -> SpanResult:
        """Play agents day after day over a span, each with an equal share of the capital.

        Args:
            weights: float32 `[agents, parameters]`.
            span: days of the panel; a whole window lies before the first decision.
            key: name of the agents, by which matched traders are drawn.
            ensemble: the agents trade one portfolio, by the means of their actions.
            draws: matched random traders.
        """
        size = self.config.population.size
        initial = initial_weights(self._network.layouts, size, self.config.seed, self.device)
        began = self.accounts(self._decided(initial, span), span).together(1.0 / size)
        agents = 1 if ensemble else len(weights)
        decided = self._decided(weights, span, ensemble=ensemble)
        return self.played(decided, agents, span, began, key, one_portfolio=ensemble, draws=draws)

    def played(
        self,
        decided: Decided,
        agents: int,
        span: range,
        initial: EquityCurve,
        key: str,
        *,
        one_portfolio: bool = False,
        draws: int = DRAWS,
    ) -> SpanResult:
        """Return earnings of `agents` that decide so; `initial`: the account of the baseline `initial_population`."""
        config, panel, dates = self.config, self.panel, np.asarray(self.panel.dates)
        accounts = self.accounts(decided, span, share_of_capital(config.account, agents))
        tables = [accounts.table(agent, panel.symbols).assign(agent=agent) for agent in range(agents)]
        trades = pd.concat(tables, ignore_index=True)
        rules = baseline_curves(self._prices, dates, config, span)
        known = self._known(span), self._dates(span)
        by_timing = not has_choice(known[0].tradable[: len(span)].cpu().numpy())
        timing = self._play_shifted(decided, *known, config, draws)
        return SpanResult(
            curve=accounts.together(),
            trades=trades.sort_values("decision", kind="stable", ignore_index=True),
            interest=float(accounts.interest.sum()),
            one_portfolio=one_portfolio,
            baselines={**rules, "initial_population": initial},
            matched=timing if by_timing else self._play_matched(decided, *known, config, draws, key),
            periods_per_year=self._year(span),
            risk_free=config.account.risk_free,
            timing=timing,
            by_timing=by_timing,
            **self._compared(decided, span, accounts, rules["equal_weight"], by_timing=by_timing),
        )

    def _year(self, span: range) -> int:
        return periods_per_year(self.panel.dates, self.config.account, span)


def task_backtest(config: Config, panel: Panel, device: torch.device) -> TaskBacktest[Any, Any]:
    """Return the backtest of the task that a configuration names, which has prices (`has_prices`)."""
    return _class_of(config)(config, panel, device)


def outcome_days(config: Config) -> int:
    """Return the days from a decision to the last price that its reward depends on."""
    return _class_of(config).outcome_days(config.trading)


def _class_of(config: Config) -> "type[TaskBacktest[Any, Any]]":
    return cast("type[TaskBacktest[Any, Any]]", load_class(BACKTESTS, task_choice(config.task)))
