"""Backtests of agents of the market, in money, beside baselines and matched random traders."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config, TradingConfig
from eigen_core.judging.backtest import DRAWS, NextOrders, Order, PlayedSpan, Position, play_days
from eigen_core.learning import learner_class
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.networks.population import agent_groups, initial_weights
from eigen_core.trading import DecidedTrades, Prices, trade_accounts
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.excess import alpha_of_days, excess_of_trades
from eigen_core.trading.matched import has_choice, play_matched_traders, play_shifted_trades, share_of_capital
from eigen_core.trading.trades import prices_of_span

_WEEK = 7


def next_orders(config: Config, panel: Panel, weights: Tensor, first: int) -> NextOrders:
    """Return the orders of an agent after a panel's last day, having traded since day `first` with `config.account`.

    Args:
        config: of the run.
        panel: ends with the day of the decision.
        weights: float32 `[parameters]`, on the device that computes.
        first: day of the first decision; a whole window lies before it.

    The size of a purchase is that of a fill at the last close, which the next day's prices are taken to be.
    """
    network = AgentNetwork(panel, config, weights.device, learner_class(config.learner).heads(config))
    span, known_days = range(first, panel.days), range(first, panel.days + 1)
    prices = _with_a_day_at_the_last_close(Prices.of_panel(panel, weights.device))
    known = prices_of_span(prices, known_days, config.trading.holding_days)
    decided = _with_a_day_without_decision(play_days(network, known, config, weights[None], span))
    dates = np.append(panel.dates[first:], panel.dates[-1] + np.timedelta64(1, "D"))
    closes = known.last_close[: len(known_days)].cpu().numpy()
    accounts = trade_accounts(decided, closes, dates, config.trading, config.account)

    last, shares = len(span) - 1, accounts.shares[0]
    sessions = known.session[: len(span)].cpu().numpy()
    assets, targets, entries = decided.asset[0], decided.target[0], decided.entry[0]
    bought = [(int(day), int(purchase)) for day, purchase in np.argwhere(shares > 0.0)]
    held = [made for made in bought if made[0] < last < decided.exit_day[0][made]]
    orders = []
    for made in [*(made for made in bought if made[0] == last), *held]:
        buys = made[0] == last
        price = entries[made] if buys else targets[made]
        orders.append(
            Order(
                symbol=panel.symbols[assets[made]],
                side="buy" if buys else "sell",
                size=float(shares[made]),
                money=float(accounts.paid[0][made] if buys else shares[made] * price),
                price=float(price),
                target=float(targets[made]),
                latest_exit=_latest_exit(panel, sessions, made[0], int(assets[made]), config.trading.holding_days),
            )
        )
    positions = [
        Position(
            symbol=panel.symbols[assets[made]],
            size=float(shares[made]),
            entry=float(entries[made]),
            worth=float(shares[made] * closes[last, assets[made]]),
            decided=str(dates[made[0]]),
        )
        for made in held
    ]
    equity = float(accounts.equity[0, last])
    cash = equity * (1.0 - float(accounts.exposure[0, last]))
    money: dict[str, dict[str, float]] = {str(date): {} for date in dates[:-1]}
    for made in bought:
        money[str(dates[made[0]])][panel.symbols[assets[made]]] = float(accounts.paid[0][made])
    by_date = {date: " ".join(paid) or None for date, paid in money.items()}
    return NextOrders(str(dates[last]), equity, cash, tuple(orders), tuple(positions), by_date, money)


def _with_a_day_at_the_last_close(prices: Prices) -> Prices:
    """Add a day on which each asset that is tradable on the last day trades at its close."""
    close = torch.where(prices.tradable[-1:], prices.close[-1:], torch.nan)
    later = dict.fromkeys(("open", "high", "close"), close)
    later |= {name: getattr(prices, name)[-1:] for name in ("last_close", "tradable", "precedence", "last_day")}
    later |= {"missing": ~prices.tradable[-1:], "session": torch.ones_like(prices.tradable[-1:])}
    extended: dict[str, Any] = {name: torch.cat([getattr(prices, name), row]) for name, row in later.items()}
    return replace(prices, **extended)


def _with_a_day_without_decision(trades: DecidedTrades) -> DecidedTrades:
    traders, _, purchases = trades.asset.shape
    nothing = DecidedTrades.none(traders, 1, purchases)
    names = [field.name for field in fields(DecidedTrades)]
    return DecidedTrades(
        **{name: np.concatenate([getattr(trades, name), getattr(nothing, name)], axis=1) for name in names}
    )


def _latest_exit(panel: Panel, sessions: NDArray[np.bool_], decided: int, asset: int, holding_days: int) -> str | None:
    """Return the date on which a sale is due, by the weekdays of the asset; holidays count. None: it waits for a fill.

    Args:
        panel: ends with the last of the days.
        sessions: bool `[days, assets]`, the market of the asset is open.
        decided: day of the decision that bought it.
        asset: its column.
        holding_days: sessions after the decision.
    """
    left = holding_days - int(sessions[decided + 1 :, asset].sum())
    if left <= 0:
        return None
    # 1970-01-01 was a Thursday.
    dates = panel.dates[panel.valid[:, asset]]
    weekdays = np.bincount((dates.astype("datetime64[D]").astype(np.int64) + 3) % _WEEK, minlength=_WEEK)
    mask = (weekdays > weekdays.max() / 2).tolist()
    return str(np.busday_offset(panel.dates[-1], left, roll="backward", weekmask=mask))


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
