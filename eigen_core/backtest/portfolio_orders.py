"""What a portfolio of target weights orders after each day: the changes of its shares."""

import numpy as np

from eigen_core.account.equity import Values
from eigen_core.account.fees import Fees
from eigen_core.account.trades import ROUNDING
from eigen_core.account.weights import WeightsAccounts, changes_to_weights
from eigen_core.backtest.interface import NextOrders, Order, Position, decision_of
from eigen_core.config import Config


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
