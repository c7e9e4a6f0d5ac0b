"""What agents earn in money over a span of days, beside baselines and matched random traders."""

from dataclasses import fields

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.account import DecidedTrades, trade_accounts
from eigen_core.account.baselines import baseline_curves
from eigen_core.account.calendar import periods_per_year
from eigen_core.account.days import prices_of_span
from eigen_core.account.excess import alpha_of_days, excess_of_trades
from eigen_core.account.matched import play_matched_traders, share_of_capital
from eigen_core.account.shifted import has_choice, play_shifted_trades
from eigen_core.backtest.days import play_days
from eigen_core.backtest.interface import DRAWS, NextOrders, PlayedSpan
from eigen_core.backtest.orders import next_orders
from eigen_core.config import Config, TradingConfig
from eigen_core.learners import learner_class
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.population import agent_groups, initial_weights
from eigen_core.trading import Prices


class MarketBacktest:
    """Implements `TaskBacktest`: agents make trades."""

    def __init__(self, config: Config, panel: Panel, device: torch.device) -> None:
        self._config = config
        self._panel = panel
        self._device = device
        self._prices = Prices.of_panel(panel, device)
        self._dates = np.asarray(panel.dates)
        self._network = AgentNetwork(panel, config, device, learner_class(config.learner).heads(config))

    def play(self, weights: Tensor, span: range, key: str, *, ensemble: bool = False, draws: int = DRAWS) -> PlayedSpan:
        """Play agents day after day over a span; see `TaskBacktest.play`."""
        config = self._config
        known = prices_of_span(self._prices, span, config.trading.holding_days)
        dates = self._dates[span.start : span.stop]
        closes = known.last_close[: len(span)].cpu().numpy()
        weights = weights.to(self._device)
        if ensemble:
            decided = play_days(self._network, known, config, weights, span, ensemble=True)
        else:
            decided = self._decided(weights, known, span)
        own = share_of_capital(config.account, len(decided.asset))
        accounts = trade_accounts(decided, closes, dates, config.trading, own)
        tables = [accounts.table(agent, self._panel.symbols) for agent in range(len(decided.asset))]
        trades = pd.concat([table.assign(agent=agent) for agent, table in enumerate(tables)], ignore_index=True)
        size = config.population.size
        initial = initial_weights(self._network.layouts, size, config.seed, self._device)
        began = trade_accounts(self._decided(initial, known, span), closes, dates, config.trading, config.account)
        rules = baseline_curves(self._prices, self._dates, config, span)
        curve, year = accounts.together(), periods_per_year(self._dates, config.account, span)
        timing = play_shifted_trades(decided, known, dates, config, draws)
        by_timing = not has_choice(known.tradable[: len(span)].cpu().numpy())
        excess, alpha = excess_of_trades(decided, known, config.trading, any_day=by_timing)
        if by_timing:
            alpha = alpha_of_days(curve.returns, rules["equal_weight"].returns, year)
        return PlayedSpan(
            curve=curve,
            trades=trades.sort_values("decision", kind="stable", ignore_index=True),
            interest=float(accounts.interest.sum()),
            one_portfolio=ensemble,
            baselines={**rules, "initial_population": began.together(1.0 / size)},
            matched=timing if by_timing else play_matched_traders(decided, known, dates, config, draws, key),
            excess=excess,
            alpha=alpha,
            holding_days=config.trading.holding_days,
            periods_per_year=year,
            timing=timing,
            by_timing=by_timing,
        )

    def returns_of(self, weights: Tensor, span: range) -> NDArray[np.float64]:
        """Return what each agent's account with the whole capital returns a day: float64 `[days, agents]`."""
        config, dates = self._config, self._dates[span.start : span.stop]
        known = prices_of_span(self._prices, span, config.trading.holding_days)
        closes = known.last_close[: len(span)].cpu().numpy()
        decided = self._decided(weights.to(self._device), known, span)
        accounts = trade_accounts(decided, closes, dates, config.trading, config.account)
        return np.stack([accounts.curve(agent).returns for agent in range(len(weights))], axis=1)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the longest time that a position is held; see `TaskBacktest.outcome_days`."""
        return trading.holding_days

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the purchases, and the standing sale of each position; see `TaskBacktest.next_orders`."""
        return next_orders(self._config, self._panel, weights.to(self._device), first)

    def _decided(self, weights: Tensor, known: Prices, span: range) -> DecidedTrades:
        groups = agent_groups(len(weights), self._config.population.group_size)
        parts = [play_days(self._network, known, self._config, weights[group], span) for group in groups]
        names = [field.name for field in fields(DecidedTrades)]
        return DecidedTrades(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
