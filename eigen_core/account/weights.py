"""Accounts that hold shares of their equity in assets, and bring them back to these shares on some days."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from eigen_core.account.equity import Accounts, Values, share_of
from eigen_core.account.fees import Fees, daily_rates
from eigen_core.account.trades import ROUNDING
from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading import Fills
from eigen_core.trading.fills import fill_offset


@dataclass(frozen=True)
class WeightsAccounts(Accounts):
    """The accounts of traders that hold target weights.

    Attributes:
        fill_offset: days from a decision to its fill.
        prices: float64 `[days, assets]`, of one share at the fill of each day's decision, slippage left out.
        last_close: float64 `[days, assets]`, as `weights_accounts` was given it.
        shares: float64 `[traders, days, assets]`, held at the close; below 0: sold short.
        paid: float64 `[traders, days, assets]`, money out for each order that is filled on the day, below 0: in; costs
            included.
        order_costs: float64 `[traders, days, assets]`, transaction costs and slippage of each order (money).
    """

    fill_offset: int
    prices: Values
    last_close: Values
    shares: Values
    paid: Values
    order_costs: Values

    def held_weights(self) -> Values:
        """Return the share of the equity that is in each asset at each close, all accounts together: `[days, assets]`.

        What is left to 1 is cash.
        """
        worth = np.where(self.shares != 0.0, self.shares * self.last_close, 0.0).sum(axis=0)
        return share_of(worth, self.equity.sum(axis=0)[:, None])

    def table(self, trader: int, symbols: tuple[str, ...]) -> pd.DataFrame:
        """Return the orders of one trader that were filled, one a row, by day and asset.

        Columns: symbol, decision, fill (dates), shares (below 0: sold), price (of one share, slippage included), paid,
        received, costs (money), gain (money: what the shares are worth at the last known close less what was paid for
        them), so that the gains and the interest add up to the account's gain.
        """
        changes = np.diff(self.shares[trader], axis=0, prepend=0.0)
        paid, costs = self.paid[trader], self.order_costs[trader]
        day, asset = np.nonzero(changes)
        shares, money = changes[day, asset], paid[day, asset]
        decided = day - self.fill_offset
        return pd.DataFrame(
            {
                "symbol": np.array(symbols, dtype=object)[asset],
                "decision": self.dates[decided].astype("datetime64[s]"),
                "fill": self.dates[day].astype("datetime64[s]"),
                "shares": shares,
                "price": self.prices[decided, asset],
                "paid": np.maximum(money, 0.0),
                "received": np.maximum(-money, 0.0),
                "costs": costs[day, asset],
                "gain": shares * self.last_close[-1, asset] - money,
            }
        )


def weights_accounts(
    weights: Values,
    entries: Values,
    last_close: Values,
    dates: NDArray[np.datetime64],
    trading: TradingConfig,
    settings: AccountConfig,
    payouts: Values | None = None,
) -> WeightsAccounts:
    """Keep accounts whose positions are brought to target weights, all of them at once.

    Args:
        weights: float64 `[traders, days, assets]`, shares of the equity decided on after the close of each day; below
            0: sold short; what is left to 1 is cash. A row with a NaN: nothing is traded.
        entries: float64 `[days, assets]`, prices at which the orders of each day's decision buy, slippage included;
            NaN: none is filled. Sales are filled at the same time, with slippage to the other side.
        last_close: float64 `[days, assets]`, the last known close at the end of each day.
        dates: datetime64[D] `[days]`.
        trading: costs, and when an order is filled.
        settings: capital, shares, interest; sizes are the weights.
        payouts: float64 `[days, assets]`, what a share of an asset that counts as ended is sold for on the day,
            slippage left out; NaN: the asset has not ended. See `payouts_of`; None: none ends. The money is there for
            the decision of the day.

    A target is a share of the equity at the decision's close, costs included. Sales come before purchases, which are
    made smaller together where they would take more than the cash. An asset without a fill stays as it is. An account
    whose equity is not above 0 at a close has lost all: it ends there with nothing.
    """
    keeper = _Keeper(entries, Fees.of(trading), settings, len(weights))
    payouts = np.full_like(entries, np.nan) if payouts is None else payouts
    offset, rates = fill_offset(trading), daily_rates(settings.interest, dates)
    traders, days, assets = weights.shape
    daily = {name: np.zeros((traders, days)) for name in ("equity", "exposure", "traded", "costs")}
    held = {name: np.zeros((traders, days, assets)) for name in ("shares", "paid", "order_costs")}
    interest = np.zeros(traders)
    for day in range(days):
        earned = keeper.cash * rates[day]
        interest += earned
        keeper.cash = keeper.cash + earned
        decided = day - offset
        if decided >= 0:
            # An end is known at the close, before the decision of the day.
            pays = keeper.pay_out(payouts[day]) if offset == 0 else None
            # Where a fill is at the decision's own close, its equity is not known yet.
            known = daily["equity"][:, decided] if offset else keeper.cash + keeper.worth(last_close[day])
            paid, costs, traded = keeper.trade(decided, weights[:, decided], known)
            pays = pays if offset == 0 else keeper.pay_out(payouts[day])
            if pays is not None:
                paid, costs, traded = (one + other for one, other in zip((paid, costs, traded), pays, strict=True))
            held["paid"][:, day], held["order_costs"][:, day] = paid, costs
            daily["traded"][:, day], daily["costs"][:, day] = traded, costs.sum(axis=1)
        worth = keeper.worth(last_close[day])
        equity = keeper.cash + worth
        lost = equity <= 0.0
        if lost.any():
            equity, worth = (np.where(lost, 0.0, values) for values in (equity, worth))
            keeper.end(lost)
        daily["equity"][:, day] = equity
        daily["exposure"][:, day] = share_of(worth, equity)
        held["shares"][:, day] = keeper.shares
    prices, ended = entries / (1.0 + keeper.fees.slippage), ~np.isnan(payouts[offset:])
    prices[: days - offset][ended] = payouts[offset:][ended]
    return WeightsAccounts(
        dates=dates,
        capital=settings.capital,
        interest=interest,
        fill_offset=offset,
        prices=prices,
        last_close=last_close,
        **daily,
        **held,
    )


class _Keeper:
    """Cash and shares of the accounts so far: float64 `[traders]` and `[traders, assets]`."""

    def __init__(self, entries: Values, fees: Fees, settings: AccountConfig, traders: int) -> None:
        self.fees = fees
        self.cash = np.full(traders, settings.capital)
        self.shares = np.zeros((traders, entries.shape[1]))
        self._entries = entries
        self._settings = settings

    def worth(self, last_close: Values) -> Values:
        total: Values = np.where(self.shares != 0.0, self.shares * last_close, 0.0).sum(axis=1)
        return total

    def end(self, lost: NDArray[np.bool_]) -> None:
        self.cash = np.where(lost, 0.0, self.cash)
        self.shares = np.where(lost[:, None], 0.0, self.shares)

    def trade(self, decided: int, weights: Values, equity: Values) -> tuple[Values, Values, Values]:
        """Bring the positions to weights; return paid and costs of each order, and what each account traded."""
        entry, fees = self._entries[decided], self.fees
        change = changes_to_weights(weights, equity, self.cash, self.shares, entry, fees, self._settings)
        entry = np.nan_to_num(entry)
        exit_price = sale_price(entry, fees)
        buys, sells = np.maximum(change, 0.0), np.maximum(-change, 0.0)
        paid = buys * entry * (1.0 + fees.cost) - sells * exit_price * (1.0 - fees.cost)
        costs = buys * fees.of_purchase(entry) + sells * fees.of_sale(exit_price, False)
        self.cash = self.cash - paid.sum(axis=1)
        self.shares = self.shares + change
        return paid, costs, (buys * entry + sells * exit_price).sum(axis=1)

    def pay_out(self, price: Values) -> tuple[Values, Values, Values] | None:
        """Close the positions in assets that have ended; return as `trade` does, None where there are none."""
        closed = np.where(np.isnan(price), 0.0, self.shares)
        if not closed.any():
            return None
        size, known = np.abs(closed), np.nan_to_num(price)
        worth = size * known * (1.0 - np.sign(closed) * self.fees.slippage)
        paid = worth * self.fees.cost - np.sign(closed) * worth
        self.cash = self.cash - paid.sum(axis=1)
        self.shares = self.shares - closed
        return paid, worth * self.fees.cost + size * known * self.fees.slippage, worth.sum(axis=1)


def payouts_of(fills: Fills, days: int) -> Values:
    """Return what `weights_accounts` pays out on each of so many days: float64 `[days, assets]`."""
    return torch.where(fills.ended, fills.end_price, torch.nan)[:days].cpu().numpy()


def sale_price(entry: Values, fees: Fees) -> Values:
    """Return what one share is sold for at the time at which one is bought for `entry`, slippage included in both."""
    return entry / (1.0 + fees.slippage) * (1.0 - fees.slippage)


def changes_to_weights(
    weights: Values, equity: Values, cash: Values, shares: Values, entries: Values, fees: Fees, settings: AccountConfig
) -> Values:
    """Return how many shares to buy of each asset, below 0: to sell, to bring accounts to target weights.

    Args:
        weights, shares: float64 `[traders, assets]`, targets and what is held; a row of weights with a NaN: nothing.
        equity, cash: float64 `[traders]`, what the weights are shares of, and what purchases are paid with.
        entries: float64 `[assets]` or `[traders, assets]`, prices of purchases, slippage included; NaN: no order.
        fees: costs and slippage.
        settings: whether parts of a share can be bought.
    """
    filled, whole = ~np.isnan(entries) & ~np.isnan(weights).any(axis=1, keepdims=True), settings.shares == "whole"
    price = np.where(filled, entries, 1.0) * (1.0 + fees.cost)
    target = np.where(filled, weights, 0.0) * equity[:, None] / price
    change = np.where(filled, (np.trunc(target) if whole else target) - shares, 0.0)
    sold = np.maximum(-change, 0.0) * np.where(filled, sale_price(entries, fees), 0.0) * (1.0 - fees.cost)
    buys = np.maximum(change, 0.0)
    needed, available = (buys * price).sum(axis=1), cash + sold.sum(axis=1)
    short_of_cash = (needed > 0.0) & (needed > available * (1.0 + ROUNDING))
    share = np.where(short_of_cash, np.maximum(available, 0.0) / np.where(short_of_cash, needed, 1.0), 1.0)
    buys = buys * share[:, None]
    if whole:
        buys = np.where(short_of_cash[:, None], np.floor(buys), buys)
    changes: Values = np.where(change > 0.0, buys, change)
    return changes
