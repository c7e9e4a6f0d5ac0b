"""Backtests of portfolios of weights."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.judging.backtest import NextOrders, Order, Position, TaskBacktest, decision_of
from eigen_core.market.panel import Panel
from eigen_core.networks import AgentNetwork, portfolio_actions
from eigen_core.task.portfolio import decide_scores
from eigen_core.trading import episode_times, excess_of_days
from eigen_core.trading.equity import EquityCurve, Values
from eigen_core.trading.excess import alpha_of_days
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.matched_traders import (
    active_share,
    play_permuted_weights,
    play_shifted_weights,
    share_of_capital,
)
from eigen_core.trading.portfolio import equal_weights_like, target_weights
from eigen_core.trading.trades import ROUNDING, Fees
from eigen_core.trading.weights import WeightsAccounts, changes_to_weights, weights_accounts


class PortfolioBacktest(TaskBacktest[Values, WeightsAccounts]):
    """Agents decide on target weights, float64 `[agents, days, assets]`.

    A position stays as it is while its orders are not filled, and is paid out once its asset has ended: see `Fills` and
    `rebalance`.
    """

    _actions = staticmethod(portfolio_actions)
    _concatenated = staticmethod(np.concatenate)
    _play_shifted = staticmethod(play_shifted_weights)
    _play_matched = staticmethod(play_permuted_weights)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the days to the fill of the next day's decision."""
        return fill_offset(trading) + 1

    def accounts(self, decided: Values, span: range, settings: AccountConfig | None = None) -> WeightsAccounts:
        """Return the accounts of agents with these target weights."""
        account = settings or self.config.account
        return weights_accounts(decided, self._known(span), self._dates(span), self.config.trading, account)

    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> Values:
        return decide_weights(self._network, self.panel, self.config, weights, span, ensemble=ensemble)

    def _compared(
        self, decided: Values, span: range, accounts: WeightsAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        tradable = self._known(span).tradable[: len(span)].cpu()
        own = share_of_capital(self.config.account, len(decided))
        # The same exposure in all assets; of a single asset, on all days.
        even = np.broadcast_to(decided.mean(axis=1, keepdims=True), decided.shape)
        matched = even if by_timing else equal_weights_like(torch.tensor(decided), tradable).numpy()
        market, year = self.accounts(matched, span, own).together().returns, self._year(span)
        returns, held = accounts.together().returns, accounts.held_weights()
        return {
            "excess": excess_of_days(returns, market, year),
            "alpha": alpha_of_days(returns, equal.returns if by_timing else market, year),
            "holding_days": 1,
            "baskets": ("rebalanced", "equal_weight"),
            "weights": pd.DataFrame(held, index=self._dates(span), columns=self.panel.symbols[: decided.shape[2]]),
            "active_share": None if by_timing else active_share(decided, tradable.numpy()),
        }

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the changes of shares to the target weights."""
        span = range(first, self.panel.days)
        decided = self._decided(weights[None], span)
        closes = np.asarray(self.panel.close[first:])
        return orders_of_days(decided[0], self.accounts(decided, span), closes, self.panel.symbols, self.config)


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
        float64 `[agents, days, assets]`, shares of the equity; the rest is cash. An ensemble is one agent.
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
            played = decide_scores(network, actor, prepared[:, day : day + 1], scores, None, ensemble=ensemble)
            scores = played.scores
            decided.append(scores)
    tradable = torch.tensor(panel.close[span.start : span.stop] > 0.0, device=weights.device)
    targets = target_weights(torch.cat(decided, dim=1).double(), tradable, config.portfolio.short)
    values: NDArray[np.float64] = targets.cpu().numpy()
    return values


def orders_of_days(
    weights: Values, accounts: WeightsAccounts, closes: Values, symbols: tuple[str, ...], config: Config
) -> NextOrders:
    """Return the orders of an agent after the last day of its account, and its decision after each day before.

    Sizes are those of a fill at the day's close.

    Args:
        weights: its target weights, float64 `[days, assets]`.
        accounts: its account, alone.
        closes: float64 `[days, assets]`, of each day; NaN: no order.
        symbols: of the assets.
        config: trading rules, account.
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
    """Return the orders of a day, sales first; rounding alone makes no order."""
    orders = []
    for asset in np.flatnonzero(np.abs(changes) * np.nan_to_num(closes) > ROUNDING * equity):
        size, buys = float(abs(changes[asset])), bool(changes[asset] > 0.0)
        price = float(closes[asset] * (1.0 + fees.slippage if buys else 1.0 - fees.slippage))
        money = size * price * (1.0 + fees.cost if buys else 1.0 - fees.cost)
        orders.append(Order(symbols[asset], "buy" if buys else "sell", size, money, price, None, None))
    return tuple(sorted(orders, key=lambda order: order.side, reverse=True))
