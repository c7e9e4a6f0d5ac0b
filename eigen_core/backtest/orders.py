"""What an agent orders after the last known day, and the account in money that its trades so far have led to."""

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from eigen_core.account import DecidedTrades, trade_accounts
from eigen_core.account.days import prices_of_span
from eigen_core.backtest.days import play_days
from eigen_core.backtest.interface import NextOrders, Order, Position
from eigen_core.config import Config
from eigen_core.learners import learner_class
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.trading import Prices

_WEEK = 7


def next_orders(config: Config, panel: Panel, weights: Tensor, first: int) -> NextOrders:
    """Return the orders of an agent after a panel's last day, having traded since day `first` with `config.account`.

    Args:
        config: of the run.
        panel: ends with the day of the decision.
        weights: float32 `[parameters]`, on the device that computes.
        first: day of the first decision; a whole window lies before it.

    The size of the purchase is that of a fill at the last close, which the next day's prices are taken to be.
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
    assets, targets, entries = decided.asset[0], decided.target[0], decided.entry[0]
    held = np.flatnonzero((shares[:last] > 0.0) & (decided.exit_day[0, :last] > last))
    orders = []
    for day in ([last] if shares[last] > 0.0 else []) + held.tolist():
        buys = day == last
        price = entries[day] if buys else targets[day]
        orders.append(
            Order(
                symbol=panel.symbols[assets[day]],
                side="buy" if buys else "sell",
                size=float(shares[day]),
                money=float(accounts.paid[0, day] if buys else shares[day] * price),
                price=float(price),
                target=float(targets[day]),
                latest_exit=_days_later(panel, day + config.trading.holding_days - last),
            )
        )
    positions = [
        Position(
            symbol=panel.symbols[assets[day]],
            size=float(shares[day]),
            entry=float(entries[day]),
            worth=float(shares[day] * closes[last, assets[day]]),
            decided=str(dates[day]),
        )
        for day in held
    ]
    equity = float(accounts.equity[0, last])
    bought = [panel.symbols[assets[day]] if shares[day] > 0.0 else None for day in range(len(span))]
    cash = equity * (1.0 - float(accounts.exposure[0, last]))
    by_date = dict(zip(map(str, dates[:-1]), bought, strict=True))
    money = {
        date: {} if symbol is None else {symbol: float(paid)}
        for (date, symbol), paid in zip(by_date.items(), accounts.paid[0], strict=False)
    }
    return NextOrders(str(dates[last]), equity, cash, tuple(orders), tuple(positions), by_date, money)


def _with_a_day_at_the_last_close(prices: Prices) -> Prices:
    """Add a day on which each asset that is tradable on the last day trades at its close."""
    close = torch.where(prices.tradable[-1:], prices.close[-1:], torch.nan)
    later = dict.fromkeys(("open", "high", "close"), close)
    later |= {name: getattr(prices, name)[-1:] for name in ("last_close", "tradable", "precedence")}
    later["missing"] = ~prices.tradable[-1:]
    return replace(prices, **{name: torch.cat([getattr(prices, name), row]) for name, row in later.items()})


def _with_a_day_without_decision(trades: DecidedTrades) -> DecidedTrades:
    nothing = DecidedTrades.none(len(trades.asset), 1)
    names = [field.name for field in fields(DecidedTrades)]
    return DecidedTrades(
        **{name: np.concatenate([getattr(trades, name), getattr(nothing, name)], axis=1) for name in names}
    )


def _days_later(panel: Panel, days: int) -> str:
    """Return the date that is so many days of trading after the last, by the weekdays of the panel; holidays count."""
    # 1970-01-01 was a Thursday.
    weekdays = np.bincount((panel.dates.astype("datetime64[D]").astype(np.int64) + 3) % _WEEK, minlength=_WEEK)
    mask = (weekdays > weekdays.max() / 2).tolist()
    return str(np.busday_offset(panel.dates[-1], days, roll="backward", weekmask=mask))
