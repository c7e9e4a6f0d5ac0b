"""Backtests of portfolios of weights, in money, beside baselines and permuted portfolios."""

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.judging.backtest import DRAWS, NextOrders, Order, PlayedSpan, Position, decision_of
from eigen_core.learning import learner_class
from eigen_core.market.panel import Panel
from eigen_core.networks import AgentNetwork, portfolio_actions
from eigen_core.networks.population import agent_groups, initial_weights
from eigen_core.task.portfolio import decided_scores
from eigen_core.trading import Prices, episode_times, excess_of_days
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.equity import EquityCurve, Values, periods_per_year
from eigen_core.trading.excess import alpha_of_days
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.matched import (
    active_share,
    has_choice,
    play_permuted_weights,
    play_shifted_weights,
    share_of_capital,
)
from eigen_core.trading.portfolio import equal_weights_like, target_weights
from eigen_core.trading.trades import ROUNDING, Fees, prices_of_span
from eigen_core.trading.weights import WeightsAccounts, changes_to_weights, weights_accounts


@torch.no_grad()
def decide_weights(
    network: AgentNetwork, panel: Panel, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> NDArray[np.float64]:
    """Return the target weights that agents decide on after the close of each day of a span.

    Args:
        network: forward passes, with the actions of the task `portfolio` (`portfolio_actions`).
        panel: the market.
        config: of the run.
        weights: float32 `[agents, parameters]`.
        span: days of the panel; a whole window lies before the first decision.
        ensemble: the agents decide together, by the means of their scores and speeds.

    Returns:
        float64 `[agents, days, assets]`, shares of the equity; cash is what they leave of 1. An ensemble is one agent.
    """
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    time = episode_times(config.trading, weights.device)[:1]
    at_once = config.trading.trading_days
    decided, scores = [], None
    for first in range(span.start, span.stop, at_once):
        days = min(at_once, span.stop - first)
        prepared = network.prepare_actor(actor, network.encode_block(critic, first, days), time)
        for day in range(days):
            played = decided_scores(network, actor, prepared[:, day : day + 1], scores, None, ensemble=ensemble)
            scores = played.scores
            decided.append(scores)
    tradable = torch.tensor(panel.close[span.start : span.stop] > 0.0, device=weights.device)
    targets = target_weights(torch.cat(decided, dim=1).double(), tradable, config.portfolio.short)
    values: NDArray[np.float64] = targets.cpu().numpy()
    return values


def orders_of_days(
    weights: Values, accounts: WeightsAccounts, closes: Values, symbols: tuple[str, ...], config: Config
) -> NextOrders:
    """Return the orders of an agent after the last day of its account, and what it has decided after each day before.

    Args:
        weights: its target weights, float64 `[days, assets]`.
        accounts: its account, alone.
        closes: float64 `[days, assets]`, of each day; NaN: no order.
        symbols: of the assets.
        config: trading rules, account.

    Sizes are those of a fill at the day's close, which the next day's prices are taken to be.
    """
    equity, fees = accounts.equity[0], Fees.of(config.trading)
    cash = equity * (1.0 - accounts.exposure[0])
    stays = ~(closes > 0.0)
    changes, _ = changes_to_weights(
        weights, cash, accounts.shares[0], accounts.worth, stays, config.trading, config.account
    )
    days = zip(changes, closes, equity, strict=True)
    orders = [_orders(change, close, float(known), symbols, fees) for change, close, known in days]
    last, shares = len(equity) - 1, accounts.shares[0, -1]
    worth = shares * accounts.worth[-1]
    positions = [
        Position(symbols[asset], float(shares[asset]), None, float(worth[asset]), None)
        for asset in np.flatnonzero(shares)
    ]
    dates = [str(date) for date in accounts.dates]
    return NextOrders(
        date=dates[last],
        equity=float(equity[last]),
        cash=float(cash[last]),
        orders=orders[last],
        positions=tuple(positions),
        decided={date: decision_of(of_day) for date, of_day in zip(dates, orders, strict=True)},
        money={
            date: {order.symbol: order.money for order in of_day} for date, of_day in zip(dates, orders, strict=True)
        },
    )


def _orders(changes: Values, closes: Values, equity: float, symbols: tuple[str, ...], fees: Fees) -> tuple[Order, ...]:
    """Return the orders of a day, sales first; what rounding alone makes is left out."""
    orders = []
    for asset in np.flatnonzero(np.abs(changes) * np.nan_to_num(closes) > ROUNDING * equity):
        size, buys = float(abs(changes[asset])), bool(changes[asset] > 0.0)
        price = float(closes[asset] * (1.0 + fees.slippage if buys else 1.0 - fees.slippage))
        money = size * price * (1.0 + fees.cost if buys else 1.0 - fees.cost)
        orders.append(Order(symbols[asset], "buy" if buys else "sell", size, money, price, None, None))
    return tuple(sorted(orders, key=lambda order: order.side, reverse=True))


class PortfolioBacktest:
    """Implements `TaskBacktest`: agents decide on target weights."""

    def __init__(self, config: Config, panel: Panel, device: torch.device) -> None:
        heads, actions = learner_class(config.learner).heads(config), portfolio_actions(config, device)
        self._config = config
        self._panel = panel
        self._device = device
        self._network = AgentNetwork(panel, config, device, heads, actions)

    def play(self, weights: Tensor, span: range, key: str, *, ensemble: bool = False, draws: int = DRAWS) -> PlayedSpan:
        """Play agents day after day over a span; see `TaskBacktest.play`."""
        config, panel = self._config, self._panel
        decided = self._together(weights, span, ensemble=True) if ensemble else self._decided(weights, span)
        initial = initial_weights(self._network.layouts, config.population.size, config.seed, self._device)
        market = PortfolioMarket(panel, config, span)
        began = market.accounts(self._decided(initial, span)).together(1.0 / config.population.size)
        return market.played(decided, began, key, one_portfolio=ensemble, draws=draws)

    def returns_of(self, weights: Tensor, span: range) -> Values:
        """Return what each agent's account with the whole capital returns a day: float64 `[days, agents]`."""
        accounts = PortfolioMarket(self._panel, self._config, span).accounts(self._decided(weights, span))
        return np.stack([accounts.curve(agent).returns for agent in range(len(weights))], axis=1)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the days to the fill of the next day's decision; see `TaskBacktest.outcome_days`."""
        return fill_offset(trading) + 1

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the changes of shares to the target weights; see `TaskBacktest.next_orders`."""
        span = range(first, self._panel.days)
        market, decided = PortfolioMarket(self._panel, self._config, span), self._decided(weights[None], span)
        closes = np.asarray(self._panel.close[first:])
        return orders_of_days(decided[0], market.accounts(decided), closes, self._panel.symbols, self._config)

    def _decided(self, weights: Tensor, span: range) -> Values:
        groups = agent_groups(len(weights), self._config.population.group_size)
        return np.concatenate([self._together(weights[group], span) for group in groups])

    def _together(self, weights: Tensor, span: range, *, ensemble: bool = False) -> Values:
        own = weights.to(self._device)
        return decide_weights(self._network, self._panel, self._config, own, span, ensemble=ensemble)


class PortfolioMarket:
    """Keeps accounts of target weights over a span of a panel.

    Args:
        panel: the market.
        config: trading rules, account, seed.
        span: the days.

    A position stays as it is while its orders are not filled, and is paid out once its asset has ended: see `Fills` and
    `rebalanced`.
    """

    def __init__(self, panel: Panel, config: Config, span: range) -> None:
        self._panel = panel
        self._config = config
        self._span = span
        self._prices = Prices.of_panel(panel, torch.device("cpu"))
        self.dates = np.asarray(panel.dates)[span.start : span.stop]
        self._known = prices_of_span(self._prices, span, fill_offset(config.trading))
        self._tradable = self._known.tradable[: len(span)].numpy()

    def accounts(self, weights: Values, settings: AccountConfig | None = None) -> WeightsAccounts:
        """Return the accounts of target weights, float64 `[agents, days, assets]`."""
        config = self._config
        return weights_accounts(weights, self._known, self.dates, config.trading, settings or config.account)

    def played(
        self, weights: Values, initial: EquityCurve, key: str, *, one_portfolio: bool = False, draws: int = DRAWS
    ) -> PlayedSpan:
        """Return what agents earn, each with an equal share of the capital.

        Args:
            weights: their target weights, float64 `[agents, days, assets]`.
            initial: the mean account of the agents that the run began with.
            key: name of the agents, which the draws of permuted portfolios belong to.
            one_portfolio: see `PlayedSpan`.
            draws: permuted portfolios.
        """
        config, symbols = self._config, self._panel.symbols
        own = share_of_capital(config.account, len(weights))
        accounts = self.accounts(weights, own)
        curve = accounts.together()
        equal_weights = equal_weights_like(torch.tensor(weights), torch.tensor(self._tradable)).numpy()
        equal = self.accounts(equal_weights, own).together()
        trades = pd.concat(
            [accounts.table(agent, symbols).assign(agent=agent) for agent in range(len(weights))], ignore_index=True
        )
        known = (self._known, self.dates)
        rules = baseline_curves(self._prices, np.asarray(self._panel.dates), config, self._span)
        returns, market = (torch.tensor(one.returns) for one in (curve, equal))
        year = periods_per_year(self._panel.dates, config.account, self._span)
        timing = play_shifted_weights(weights, *known, config, draws)
        by_timing = not has_choice(self._tradable)
        if by_timing:
            # The same exposure on all days, which is the mean of the agents'.
            even = np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)
            market = torch.tensor(self.accounts(even, own).together().returns)
        held = pd.DataFrame(accounts.held_weights(), index=self.dates, columns=symbols[: weights.shape[2]])
        return PlayedSpan(
            curve=curve,
            trades=trades.sort_values("decision", kind="stable", ignore_index=True),
            interest=float(accounts.interest.sum()),
            one_portfolio=one_portfolio,
            baselines={**rules, "initial_population": initial},
            matched=timing if by_timing else play_permuted_weights(weights, *known, config, draws, key),
            excess=excess_of_days(returns, market, year),
            alpha=alpha_of_days(curve.returns, (rules["equal_weight"] if by_timing else equal).returns, year),
            holding_days=1,
            periods_per_year=year,
            baskets=("rebalanced", "equal_weight"),
            weights=held,
            active_share=None if by_timing else active_share(weights, self._tradable),
            timing=timing,
            by_timing=by_timing,
        )
