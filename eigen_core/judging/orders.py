"""Orders of an agent for the next day, with its account at the close of the day before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.market import Panel
from eigen_core.market.formats import weekdays_of
from eigen_core.trading.equity import Values
from eigen_core.trading.order_fills import OrderCosts
from eigen_core.trading.order_limits import OrderLimits
from eigen_core.trading.portfolio import WeightsAccounts, changes_to_weights
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import ROUNDING, TradedAccounts


@dataclass(frozen=True)
class Order:
    """An order; the `name` of a sale begins with a minus.

    Attributes:
        side: `buy` at the next fill (`Fills`); `sell` at the price `target` or on the date `latest_exit`, at the next
            fill if `latest_exit` is None.
        size: number of shares.
        money: paid or received at `price`, transaction costs included.
        price: the target of a sale; otherwise the last close with slippage, since the price of the fill is unknown.
        target: price of one share at which the position is sold; None: the sale does not wait for a price.
        latest_exit: date of the sale if the target is not reached. None: the sale is decided that day, or is due and
            waits for the symbol's next fill. Of shares of `account.start`, which have no target, always a date; if
            their sale waits, that of the orders.
    """

    symbol: str
    side: str
    size: float
    money: float
    price: float
    target: float | None
    latest_exit: str | None

    @property
    def name(self) -> str:
        return self.symbol if self.side == "buy" else f"-{self.symbol}"


@dataclass(frozen=True)
class Position:
    """An open position.

    Attributes:
        size: shares; below 0: sold short.
        entry: price paid for one share, slippage included; None for the task `portfolio`, where many orders make a
            position, and for shares of `account.start`.
        worth: value at the last known close (money).
        decided: date of the decision that bought it; None where `entry` is None.
    """

    symbol: str
    size: float
    entry: float | None
    worth: float
    decided: str | None


@dataclass(frozen=True)
class NextOrders:
    """Orders of an agent after a day, with the account at its close.

    Attributes:
        equity, cash: money.
        orders: those decided on `date`, then the standing sales of `positions` that were bought before.
        money: paid or received for each order since the agent's first decision, by date of decision and `Order.name`.
    """

    date: str
    equity: float
    cash: float
    orders: tuple[Order, ...]
    positions: tuple[Position, ...]
    money: Mapping[str, Mapping[str, float]]

    @property
    def decided(self) -> dict[str, str | None]:
        """The orders decided on each day since the agent's first decision, by date, written as by `decision_of`."""
        return {date: " ".join(orders) or None for date, orders in self.money.items()}


def decisions_among(orders: Iterable[Order]) -> list[Order]:
    """Return those of a day's orders that were decided that day: all but standing sales."""
    return [order for order in orders if order.side == "buy" or (order.target, order.latest_exit) == (None, None)]


def decision_of(orders: Iterable[Order]) -> str | None:
    """Return the names of the orders decided on a day, separated by spaces; None without orders."""
    return " ".join(order.name for order in decisions_among(orders)) or None


def orders_of_trades(accounts: TradedAccounts, known: Prices, panel: Panel, config: Config) -> NextOrders:
    """Return the orders of an agent after the last day of a panel, and what it decided after each earlier day.

    The account goes on for one day after the panel, on which `known`, as `prices_of_span` returns them, have each
    asset's last close: sizes assume a fill at it.
    """
    trades, dates, last = accounts.trades, accounts.dates, len(accounts.dates) - 2
    shares, costs = accounts.shares[0], known.costs(config.trading).numpy()
    limits, holding_bars = OrderLimits.of(known, config.trading, config.account), config.trading.holding_bars
    sessions, closes = (values[: last + 1].cpu().numpy() for values in (known.session, known.last_close))
    assets, targets, entries = trades.asset[0], trades.target[0], trades.entry[0]
    bought = [(int(decision), int(purchase)) for decision, purchase in np.argwhere(shares > 0.0)]
    day = trades.day[0].tolist()
    held = [made for made in bought if day[made[0]] < last < trades.exit_day[0][made]]
    orders = []
    for made in [*(made for made in bought if day[made[0]] == last), *held]:
        asset = int(assets[made])
        buys, begun, own = day[made[0]] == last, day[made[0]] < 0, costs.of_assets(asset)
        price = entries[made] if buys else own.sale_price(closes[last, asset]) if begun else targets[made]
        sold = own.received(shares[made] * price)
        if limits is not None:
            sold = limits.at(last, asset).received(shares[made], price, moves=begun)
        latest = _latest_exit(panel, sessions, max(day[made[0]], 0), asset, holding_bars)
        orders.append(
            Order(
                symbol=panel.symbols[asset],
                side="buy" if buys else "sell",
                size=float(shares[made]),
                money=float(accounts.paid[0][made] if buys else sold),
                price=float(price),
                target=None if begun else float(targets[made]),
                latest_exit=latest or str(dates[last]) if begun else latest,
            )
        )
    positions = [
        Position(
            symbol=panel.symbols[assets[made]],
            size=float(shares[made]),
            entry=None if day[made[0]] < 0 else float(entries[made]),
            worth=float(shares[made] * closes[last, assets[made]]),
            decided=None if day[made[0]] < 0 else str(dates[day[made[0]]]),
        )
        for made in held
    ]
    equity = float(accounts.equity[0, last])
    cash = equity * (1.0 - float(accounts.exposure[0, last]))
    money: dict[str, dict[str, float]] = {str(date): {} for date in dates[:-1]}
    for made in (made for made in bought if day[made[0]] >= 0):
        money[str(dates[day[made[0]]])][panel.symbols[assets[made]]] = float(accounts.paid[0][made])
    return NextOrders(str(dates[last]), equity, cash, tuple(orders), tuple(positions), money)


def _latest_exit(panel: Panel, sessions: NDArray[np.bool_], decided: int, asset: int, holding_bars: int) -> str | None:
    """Return the date on which a sale is due if the asset trades on all sessions of the calendar, or on all of its
    usual weekdays; None: already due."""
    left = holding_bars - int(sessions[decided + 1 :, asset].sum())
    if left <= 0:
        return None
    if panel.dates.dtype != "datetime64[D]":
        # As in the last week.
        week = np.timedelta64(7, "D")
        times = panel.dates[(panel.close[:, asset] > 0.0) & (panel.dates > panel.dates[-1] - week)]
        weeks, place = divmod(left - 1, len(times))
        return str(times[place] + (weeks + 1) * week)
    if panel.calendar is not None and left <= len(later := panel.calendar.after(panel.dates[-1])):
        return str(panel.calendar.sessions[later[left - 1]])
    weekdays = np.bincount(weekdays_of(panel.dates[panel.close[:, asset] > 0.0]), minlength=7)
    mask = (weekdays > weekdays.max() / 2).tolist()
    return str(np.busday_offset(panel.dates[-1], left, roll="backward", weekmask=mask))


def orders_of_days(
    weights: Values, accounts: WeightsAccounts, known: Prices, symbols: tuple[str, ...], config: Config
) -> NextOrders:
    """Return the orders of an agent after the last day of its account, and what it decided after each earlier day.

    Sizes assume a fill at the day's close; without a close there is no order on that day. `weights` are float64
    `[days, assets]`; `known` are prices of the days, as `prices_of_span` returns them.
    """
    equity, costs = accounts.equity[0], known.costs(config.trading).to(torch.device("cpu"))
    limits = OrderLimits.of(known, config.trading, config.account)
    limits = limits and limits.at(slice(len(equity)))
    closes = known.close[: len(equity)].cpu().numpy()
    cash = equity * (1.0 - accounts.exposure[0])
    stays = ~(closes > 0.0)
    changes, spent = changes_to_weights(
        weights, cash, accounts.shares[0], accounts.worth, stays, costs, config.account, limits
    )
    days = zip(changes, repeat(None) if limits is None else spent, closes, equity, strict=False)
    orders = [_orders(*of_day, symbols, costs.numpy()) for of_day in days]
    last, shares = len(equity) - 1, accounts.shares[0, -1]
    worth = shares * accounts.worth[-1]
    positions = [
        Position(symbols[asset], float(shares[asset]), None, float(worth[asset]), None)
        for asset in np.flatnonzero(shares)
    ]
    dates = [str(date) for date in accounts.dates]
    money = {date: {order.name: order.money for order in of_day} for date, of_day in zip(dates, orders, strict=True)}
    return NextOrders(dates[last], float(equity[last]), float(cash[last]), orders[last], tuple(positions), money)


def _orders(
    changes: Values, spent: Values | None, closes: Values, equity: float, symbols: tuple[str, ...], costs: OrderCosts
) -> tuple[Order, ...]:
    """Return the orders of a day, sales first; rounding differences make no order."""
    orders = []
    for asset in np.flatnonzero(np.abs(changes) * np.nan_to_num(closes) > ROUNDING * equity):
        size, buys = float(abs(changes[asset])), bool(changes[asset] > 0.0)
        own = costs.of_assets(int(asset))
        price = float(own.purchase_price(closes[asset]) if buys else own.sale_price(closes[asset]))
        money = float(own.paid(size * price) if buys else own.received(size * price))
        if spent is not None:
            money = float(abs(changes[asset] * closes[asset] + spent[asset]))
        orders.append(Order(symbols[asset], "buy" if buys else "sell", size, money, price, None, None))
    return tuple(sorted(orders, key=lambda order: order.side, reverse=True))
