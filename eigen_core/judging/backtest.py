"""Backtests: what agents earn in money over a span (consecutive days of a panel), and their next orders."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.common.text import listed, quoted
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.config.registry import BACKTESTS, load_class, task_choice
from eigen_core.judging.orders import NextOrders, orders_of_days, orders_of_trades
from eigen_core.judging.ridge import BuyingRule, HoldingRule, tuned_buying, tuned_holding
from eigen_core.learning import learner_class
from eigen_core.machine.reproducibility import compute_reproducibly
from eigen_core.market import Panel
from eigen_core.networks.actions import AssetActions, market_actions, portfolio_actions
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.layout import ParameterLayout, Parameters
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import agent_groups, initial_weights
from eigen_core.task import task_class
from eigen_core.task.panel import day_runs
from eigen_core.task.portfolio import decide_scores
from eigen_core.trading.baselines import (
    MatchedTraders,
    active_share,
    baseline_curves,
    play_matched_traders,
    play_shifted,
    share_of_capital,
    trades_by_score,
)
from eigen_core.trading.environment import episode_times
from eigen_core.trading.equity import EquityCurve, Values, periods_per_year
from eigen_core.trading.excess import alpha_of_days, excess_of_days, excess_of_trades
from eigen_core.trading.metrics import Metrics, compute_metrics, gain_by_asset
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.order_limits import liquidity_of
from eigen_core.trading.orders import decides
from eigen_core.trading.portfolio import WeightsAccounts, equal_weights_like, target_weights, weights_accounts
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.ridge import fit_ridge
from eigen_core.trading.trades import DecidedTrades, TradedAccounts, trade_accounts, trade_day_by_day

Decided = TypeVar("Decided", DecidedTrades, Values)
"""Decisions of agents: trades, or target weights, float64 `[agents, days, assets]`."""

AnyAccounts = TypeVar("AnyAccounts", TradedAccounts, WeightsAccounts)

DRAWS = 1_000
"""Default number of random traders with which agents are compared (`SpanResult.matched`)."""


@dataclass(frozen=True, kw_only=True)
class SpanResult:
    """Earnings of agents over a span of days.

    Attributes:
        curve: their account day by day; for several agents, the sum of their accounts.
        trades: a row each, columns of `TradedAccounts.table` or `WeightsAccounts.table`, and `agent`, an index.
        interest: earned on cash (money).
        one_portfolio: all agents trade one common portfolio.
        baselines: accounts on the same days by name: simple rules (`baseline_curves`), `ridge` (`fit_ridge`), and
            `initial_population`, the mean of agents with initial weights.
        matched: earnings of random traders that trade as much and as long as the agents (`play_matched_traders`).
        excess: gain beyond the market (`Excess`); None with fewer than two trades, or days of a portfolio.
        alpha: part of the excess that the market's own gain does not explain; None where `alpha_of` returns None.
        holding_bars: `trading.holding_bars`, the longest time of a trade; 1 for the task `portfolio`.
        periods_per_year, risk_free: trading days of a year; annual rate of interest without risk (a fraction).
        timing: earnings of the same decisions shifted to other times (`play_shifted`).
        baskets: names of the baselines that hold all assets; metrics and alpha compare with the first one.
        weights: share of the equity in each asset at each close, a row a day, a column a symbol; the rest is cash. None
            for the task `market`.
        active_share: share of a portfolio that differs from equal weights; None for the task `market`, and `by_timing`.
        by_timing: no day has two tradable assets, so that only timing can be judged: `matched`, `excess` and `alpha`
            compare with other times, not with other assets.
        capacity: total return with 1, 10 and 100 times the capital; empty unless orders are compared with volumes.
    """

    curve: EquityCurve
    trades: pd.DataFrame
    interest: float
    one_portfolio: bool
    baselines: Mapping[str, EquityCurve]
    matched: MatchedTraders
    excess: Excess | None
    alpha: Excess | None
    holding_bars: int
    periods_per_year: int
    risk_free: float
    timing: MatchedTraders
    baskets: tuple[str, ...] = ("equal_weight", "rebalanced")
    weights: pd.DataFrame | None = None
    active_share: float | None = None
    by_timing: bool = False
    capacity: Mapping[int, float] = field(default_factory=dict)

    @property
    def benchmark(self) -> str:
        """Name of the baseline with which beta, alpha and information ratio compare."""
        return self.baskets[0]

    @cached_property
    def metrics(self) -> Metrics:
        return self.compute_metrics(self.curve, self.baselines[self.benchmark])

    @cached_property
    def baseline_metrics(self) -> Mapping[str, Metrics]:
        benchmark = self.baselines[self.benchmark]
        return {name: self.compute_metrics(curve, benchmark) for name, curve in self.baselines.items()}

    @cached_property
    def by_asset(self) -> pd.DataFrame:
        return gain_by_asset(self.trades)

    def compute_metrics(self, curve: EquityCurve, benchmark: EquityCurve | None = None) -> Metrics:
        return compute_metrics(curve, benchmark, periods_per_year=self.periods_per_year, risk_free=self.risk_free)


class TaskBacktest(ABC, Generic[Decided, AnyAccounts]):
    """Lets agents of a run trade over spans (consecutive days) of a panel; each task with prices has a subclass.

    `panel` has the prices and features that the run was trained on; for `next_orders` it ends with the day of the
    decision.
    """

    # Functions of the task: the agents' actions; concatenation of the decisions of groups of agents; the accounts of
    # decisions (decisions, prices, dates, trading rules, account settings).
    _actions: Callable[[Config, torch.device], AssetActions]
    _concatenated: Callable[..., Decided]
    _accounts: Callable[..., AnyAccounts]

    def __init__(self, config: Config, panel: Panel, device: torch.device) -> None:
        # Must precede the first computation.
        compute_reproducibly(config.instructions, device)
        self.config, self.panel, self.device = config, panel, device
        self._prices = Prices.of_panel(panel, device)
        held, symbols = config.account.holdings, panel.symbols[: panel.assets]
        if unknown := [symbol for symbol in held if symbol not in symbols]:
            raise InputError(
                f"account.start: {quoted(unknown[0])} cannot be traded here: leave it out, or correct it to one of "
                f"{listed(symbols, 5)}."
            )
        self._prices = replace(self._prices, held={symbol: symbols.index(symbol) for symbol in held})
        if config.account.participation is not None or config.account.impact:
            self._prices = replace(self._prices, liquidity=tuple(map(torch.tensor, liquidity_of(panel))))

    @cached_property
    def _heads(self) -> Heads:
        return learner_class(self.config.learner).heads(self.config)

    @cached_property
    def _network(self) -> AgentNetwork:
        return AgentNetwork(self.panel, self.config, self.device, self._heads, self._actions(self.config, self.device))

    @cached_property
    def _initial_layouts(self) -> tuple[ParameterLayout, ParameterLayout]:
        if not self.config.network.linear_scales:
            return self._network.layouts
        # The task knows where the linear part began: with a regression on the training days.
        task = task_class(self.config)(self.config, self.panel, self.device, self._heads)
        return task.critic_layout, task.actor_layout

    @property
    def parameters(self) -> int:
        """Number of weights of an agent."""
        return sum(layout.size for layout in self._network.layouts)

    @staticmethod
    @abstractmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the number of days from a decision to the last price that its reward depends on."""

    @abstractmethod
    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the orders that an agent decides on after the panel's last day, if it has traded since day `first`.

        Their sizes assume that they are filled at the last close. `weights` are float32 `[parameters]`; `first` is an
        index of at least `market.window` - 1, since agents observe a window.
        """

    @abstractmethod
    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> Decided:
        """Let agents decide in one batch on each day of a span; an ensemble decides as one, by the mean actions."""

    @abstractmethod
    def decided_by_ridge(self, span: range) -> Decided:
        """Return the decisions of the baseline `ridge`, as of one agent."""

    @cached_property
    def _ridge_scores(self) -> Values:
        return fit_ridge(self.panel, self.config).of(self.panel)

    @abstractmethod
    def _compared(
        self, decided: Decided, span: range, accounts: AnyAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        """Return the attributes of a `SpanResult` that depend on the task; `equal`: the baseline `equal_weight`."""

    def accounts(self, decided: Decided, span: range, settings: AccountConfig | None = None) -> AnyAccounts:
        """Return the accounts that decisions over a span lead to; `settings` replaces the run's account settings."""
        rules = self.config.trading, settings or self.config.account
        return self._accounts(decided, self._known(span), self._dates(span), *rules)

    def _known(self, span: range) -> Prices:
        return prices_of_span(self._prices, span, self.outcome_days(self.config.trading))

    def _dates(self, span: range) -> NDArray[np.datetime64]:
        return np.asarray(self.panel.dates)[span.start : span.stop]

    def _decided(self, weights: Tensor, span: range, *, ensemble: bool = False) -> Decided:
        own = weights.to(self.device)
        groups = agent_groups(len(own), 0 if ensemble else self.config.population.group_size)
        return self._concatenated([self._decide(own[group], span, ensemble=ensemble) for group in groups])

    def play(self, weights: Tensor, span: range, key: str, *, ensemble: bool = False, draws: int = DRAWS) -> SpanResult:
        """Let agents trade day after day over a span, each with an equal share of the capital.

        Args:
            weights: of the agents' networks, float32 `[agents, parameters]`.
            span: indices of consecutive days of the panel, from `market.window` - 1 on.
            key: text that, with the run's seed, seeds the matched random traders, such as the name of the agents.
            ensemble: the agents trade one portfolio, by the means of their actions.
            draws: number of matched random traders.
        """
        size = self.config.population.size
        initial = initial_weights(self._initial_layouts, size, self.config.seed, self.device)
        began = self.accounts(self._decided(initial, span), span).combined_curve(1.0 / size)
        agents = 1 if ensemble else len(weights)
        decided = self._decided(weights, span, ensemble=ensemble)
        return self.played(decided, agents, span, began, key, one_portfolio=ensemble, draws=draws)

    def curves(self, weights: Tensor, span: range) -> tuple[EquityCurve, EquityCurve]:
        """Return the accounts of one agent (`weights`: float32 `[1, parameters]`) and of `equal_weight` over a span."""
        rules = baseline_curves(self._prices, np.asarray(self.panel.dates), self.config, span)
        account = self.accounts(self._decided(weights, span), span)
        return account.curve(0), rules["equal_weight"]

    def play_ridge(self, span: range, draws: int = DRAWS) -> SpanResult:
        """Return what the baseline `ridge` earns, in the place of an agent and of the baseline `initial_population`."""
        decided = self.decided_by_ridge(span)
        return self.played(decided, 1, span, self.accounts(decided, span).curve(0), "ridge", draws=draws)

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
        """Return what decisions of `agents` agents earn; `initial`: the account of baseline `initial_population`."""
        config, panel, dates = self.config, self.panel, np.asarray(self.panel.dates)
        accounts = self.accounts(decided, span, share_of_capital(config.account, agents))
        tables = [accounts.table(agent, panel.symbols).assign(agent=agent) for agent in range(agents)]
        trades = pd.concat(tables, ignore_index=True)
        rules = baseline_curves(self._prices, dates, config, span)
        known = self._known(span), self._dates(span)
        # Agents have a choice on days with two or more tradable assets.
        by_timing = not bool((known[0].tradable[: len(span)].sum(dim=1) > 1).any())
        timing = play_shifted(decided, *known, config, draws)
        return SpanResult(
            curve=accounts.combined_curve(),
            trades=trades.sort_values("decision", kind="stable", ignore_index=True),
            interest=float(accounts.interest.sum()),
            one_portfolio=one_portfolio,
            baselines={
                **rules,
                "ridge": self.accounts(self.decided_by_ridge(span), span).curve(0),
                "initial_population": initial,
            },
            matched=timing if by_timing else play_matched_traders(decided, *known, config, draws, key),
            periods_per_year=self._year(span),
            risk_free=config.account.risk_free,
            timing=timing,
            by_timing=by_timing,
            capacity=self._capacity(decided, agents, span, accounts.combined_curve()),
            **self._compared(decided, span, accounts, rules["equal_weight"], by_timing=by_timing),
        )

    def _capacity(self, decided: Decided, agents: int, span: range, own: EquityCurve) -> dict[int, float]:
        if self._prices.liquidity is None:
            return {}
        curves, shared = {1: own}, share_of_capital(self.config.account, agents)
        for times in (10, 100):
            curves[times] = self.accounts(decided, span, share_of_capital(shared, 1, times)).combined_curve()
        return {times: float(curve.equity[-1]) / curve.capital - 1.0 for times, curve in curves.items()}

    def _year(self, span: range) -> int:
        return periods_per_year(self.panel.dates, self.config.account, span)


def _prepared_days(
    network: AgentNetwork, weights: Tensor, first_day: int, decided: NDArray[np.int64], times: Tensor, at_once: int
) -> Iterator[tuple[Parameters, Tensor]]:
    """Yield the actors' parameters and the result of `AgentNetwork.prepare_actor` for days of a span.

    The days `decided`, which increase, are counted from `first_day`. Days in a row are computed together, at most
    `at_once`. `times` has the observed time in the episode (`episode_times`) of the span's first days, after which it
    begins anew.
    """
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    observed = network.observed_rows(torch.from_numpy(decided + first_day)).numpy()
    for run in day_runs(observed, network.days_before):
        for first in range(run.start, run.stop, at_once):
            rows = np.arange(first, min(first + at_once, run.stop))
            encoded = network.encode_block(critic, first, len(rows))
            prepared = network.prepare_actor(actor, encoded, times[(rows - first_day) % len(times)])
            for index in np.flatnonzero(np.isin(rows, observed)):
                yield actor, prepared[:, index : index + 1]


def _concat_trades(parts: Sequence[DecidedTrades]) -> DecidedTrades:
    names = [field.name for field in fields(DecidedTrades)]
    return DecidedTrades(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


class MarketBacktest(TaskBacktest[DecidedTrades, TradedAccounts]):
    _actions = staticmethod(market_actions)
    _concatenated = staticmethod(_concat_trades)
    _accounts = staticmethod(trade_accounts)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        return trading.holding_bars

    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> DecidedTrades:
        return decide_trades(self._network, self._known(span), self.config, weights, span, ensemble=ensemble)

    @cached_property
    def _buying(self) -> BuyingRule:
        return tuned_buying(self._ridge_scores, self.panel, self.config)

    def decided_by_ridge(self, span: range) -> DecidedTrades:
        scores, rule = self._ridge_scores[span.start : span.stop], self._buying
        wanted = np.where(scores >= rule.threshold, scores, np.nan)
        return trades_by_score(self._known(span), self.config.trading, wanted, rule.target)

    def _compared(
        self, decided: DecidedTrades, span: range, accounts: TradedAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        trading = self.config.trading
        excess, alpha = excess_of_trades(decided, self._known(span), trading, any_day=by_timing)
        if by_timing:
            alpha = alpha_of_days(accounts.combined_curve().returns, equal.returns, self._year(span))
        return {"excess": excess, "alpha": alpha, "holding_bars": trading.holding_bars}

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        config, panel, span = self.config, self.panel, range(first, self.panel.days)
        days = range(first, panel.days + 1)
        known = prices_of_span(_with_a_day_at_the_last_close(self._prices), days, config.trading.holding_bars)
        decided = decide_trades(self._network, known, config, weights.to(self.device)[None], span)
        dates = np.append(self._dates(span), panel.dates[-1] + np.diff(panel.dates).min())
        accounts = trade_accounts(decided, known, dates, config.trading, config.account)
        return orders_of_trades(accounts, known, panel, config)


@torch.no_grad()
def decide_trades(
    network: AgentNetwork, known: Prices, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> DecidedTrades:
    """Return the trades that agents decide on over a span of days; for the arguments see `TaskBacktest.play`.

    `known` are the prices that `prices_of_span` returns. The time in the episode, which agents observe, restarts after
    every `trading.trading_bars` days, as in training.
    """
    trading, agents = config.trading, len(weights)
    days = torch.arange(len(span), device=known.time.device)
    decided = days[decides(known, trading, days)].cpu().numpy()
    at_once, times = trading.trading_bars, episode_times(trading, weights.device)
    every_day = _prepared_days(network, weights, span.start, decided, times[:at_once], at_once)

    def decide(_: int, portfolios: Tensor) -> tuple[Tensor, ...]:
        actor, prepared = next(every_day)
        seen = portfolios.float().unsqueeze(1).expand(agents, -1, -1, -1) if network.portfolio_values else None
        actions = network.policy(actor, prepared, seen).play(None).actions[:, 0]
        if ensemble:
            actions = actions.mean(dim=0, keepdim=True)
        return actions.unbind(-1)

    return trade_day_by_day(known, trading, len(span), 1 if ensemble else agents, decide)


def _with_a_day_at_the_last_close(prices: Prices) -> Prices:
    close = torch.where(prices.tradable[-1:], prices.close[-1:], torch.nan)
    later = dict.fromkeys(("open", "high", "close"), close)
    later |= {name: getattr(prices, name)[-1:] for name in ("last_close", "tradable", "precedence", "last_day")}
    later["time"] = 2 * prices.time[-1:] - prices.time[-2:-1]
    if prices.liquidity is not None:
        prices = replace(prices, liquidity=tuple(torch.cat([values, values[-1:]]) for values in prices.liquidity))
    later |= {"missing": ~prices.tradable[-1:], "session": torch.ones_like(prices.tradable[-1:])}
    extended: dict[str, Any] = {name: torch.cat([getattr(prices, name), row]) for name, row in later.items()}
    return replace(prices, **extended)


class PortfolioBacktest(TaskBacktest[Values, WeightsAccounts]):
    """Backtests of the task `portfolio`: agents decide on target weights, float64 `[agents, days, assets]`.

    A position stays unchanged while its orders are not filled (`rebalance`), until its asset is delisted (`Fills`).
    """

    _actions = staticmethod(portfolio_actions)
    _concatenated = staticmethod(np.concatenate)
    _accounts = staticmethod(weights_accounts)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        return fill_offset(trading) + 1

    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> Values:
        return decide_weights(self._network, self.panel, self.config, weights, span, ensemble=ensemble)

    @cached_property
    def _holding(self) -> HoldingRule:
        return tuned_holding(self._ridge_scores, self.panel, self.config)

    def decided_by_ridge(self, span: range) -> Values:
        days, short = slice(span.start, span.stop), self.config.portfolio.short
        closes = np.asarray(self.panel.close[days])
        return self._holding.weights(self._ridge_scores[days], closes, short).numpy()[None]

    def _compared(
        self, decided: Values, span: range, accounts: WeightsAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        tradable = self._known(span).tradable[: len(span)].cpu()
        own = share_of_capital(self.config.account, len(decided))
        # The market: equal weights of the same exposure each day; for a single asset, the mean exposure on all days.
        even = np.broadcast_to(decided.mean(axis=1, keepdims=True), decided.shape)
        matched = even if by_timing else equal_weights_like(torch.tensor(decided), tradable).numpy()
        market, year = self.accounts(matched, span, own).combined_curve().returns, self._year(span)
        returns, held = accounts.combined_curve().returns, accounts.held_weights()
        return {
            "excess": excess_of_days(returns, market, year),
            "alpha": alpha_of_days(returns, equal.returns if by_timing else market, year),
            "holding_bars": 1,
            "baskets": ("rebalanced", "equal_weight"),
            "weights": pd.DataFrame(held, index=self._dates(span), columns=self.panel.symbols[: decided.shape[2]]),
            "active_share": None if by_timing else active_share(decided, tradable.numpy()),
        }

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        span = range(first, self.panel.days)
        decided = self._decided(weights[None], span)
        known, accounts = self._known(span), self.accounts(decided, span)
        return orders_of_days(decided[0], accounts, known, self.panel.symbols, self.config)


@torch.no_grad()
def decide_weights(
    network: AgentNetwork, panel: Panel, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> NDArray[np.float64]:
    """Return the target weights that agents decide on after the close of each day of a span.

    They are float64 `[agents, days, assets]`, shares of the equity; the rest is cash. An `ensemble` decides as one
    agent, by the means of actions, scores and speeds (`move_scores`). For the arguments see `TaskBacktest.play`.
    """
    time, at_once = episode_times(config.trading, weights.device)[:1], config.trading.trading_bars
    decided, scores = [], None
    for actor, prepared in _prepared_days(network, weights, span.start, np.arange(len(span)), time, at_once):
        scores = decide_scores(network, actor, prepared, scores, None, ensemble=ensemble).scores
        decided.append(scores)
    tradable = torch.tensor(panel.close[span.start : span.stop] > 0.0, device=weights.device)
    targets = target_weights(torch.cat(decided, dim=1).double(), tradable, config.portfolio.short)
    return targets.cpu().numpy()


def backtest_class(config: Config) -> "type[TaskBacktest[Any, Any]]":
    """Return the backtest of a configuration's task, which must have prices (`has_prices`)."""
    return cast("type[TaskBacktest[Any, Any]]", load_class(BACKTESTS, task_choice(config.task)))
