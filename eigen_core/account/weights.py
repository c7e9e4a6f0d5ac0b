"""Accounts that hold shares of their equity in assets, and bring them back to these shares on some days."""

import numpy as np
from numpy.typing import NDArray

from eigen_core.account.equity import EquityCurve
from eigen_core.account.fees import Fees, daily_rate
from eigen_core.account.trades import ROUNDING
from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.orders import fill_offset

Values = NDArray[np.float64]


def weights_account(
    weights: Values,
    entries: Values,
    last_close: Values,
    dates: NDArray[np.datetime64],
    trading: TradingConfig,
    settings: AccountConfig,
) -> EquityCurve:
    """Keep an account whose positions are brought to target weights.

    Args:
        weights: float64 `[days, assets]`, shares of the equity decided on after the close of each day, at most 1
            together; a row of NaN: nothing is traded.
        entries: float64 `[days, assets]`, prices at which the orders of each day's decision buy, slippage included;
            NaN: none is filled. Sales are filled at the same time, with slippage to the other side.
        last_close: float64 `[days, assets]`, the last known close at the end of each day.
        dates: datetime64[D] `[days]`.
        trading: costs, and when an order is filled.
        settings: capital, shares, interest; sizes are the weights.

    A target is a share of the equity at the decision's close, costs included. Sales come before purchases, which are
    made smaller together where they would take more than the cash. An asset without a fill stays as it is.
    """
    fees, offset = Fees.of(trading), fill_offset(trading)
    rate = daily_rate(settings.interest, settings.periods_per_year)
    days, assets = weights.shape
    cash, shares = settings.capital, np.zeros(assets)
    equity, exposure, traded, costs = (np.zeros(days) for _ in range(4))
    for day in range(days):
        cash += cash * rate
        decided = day - offset
        if decided >= 0 and not np.isnan(weights[decided]).any():
            # Where a fill is at the decision's own close, its equity is not known yet.
            known = equity[decided] if offset else cash + _worth(shares, last_close[day])
            change = _changes(shares, cash, weights[decided] * known, entries[decided], fees, settings)
            buys, sells = np.maximum(change, 0.0), np.maximum(-change, 0.0)
            entry = np.where(change == 0.0, 0.0, entries[decided])
            exit_price = _sale_price(entry, fees)
            cash += float((sells * exit_price * (1.0 - fees.cost) - buys * entry * (1.0 + fees.cost)).sum())
            shares = shares + change
            traded[day] = float((buys * entry + sells * exit_price).sum())
            costs[day] = float((buys * fees.of_purchase(entry) + sells * fees.of_sale(exit_price, False)).sum())
        worth = _worth(shares, last_close[day])
        equity[day] = cash + worth
        exposure[day] = worth / equity[day]
    return EquityCurve(dates, settings.capital, equity, exposure, traded, costs)


def _worth(shares: Values, last_close: Values) -> float:
    return float((shares * np.where(shares > 0.0, last_close, 0.0)).sum())


def _sale_price(entry: Values, fees: Fees) -> Values:
    """Return what one share is sold for at the time at which one is bought for `entry`."""
    return entry / (1.0 + fees.slippage) * (1.0 - fees.slippage)


def _changes(shares: Values, cash: float, wanted: Values, entry: Values, fees: Fees, settings: AccountConfig) -> Values:
    """Return how many shares to buy of each asset, negative: to sell, so that each is worth what is wanted (money)."""
    filled = ~np.isnan(entry)
    price = np.where(filled, entry, 1.0) * (1.0 + fees.cost)
    target = np.where(filled, wanted / price, shares)
    if settings.shares == "whole":
        target = np.floor(target)
    change = target - shares
    sold = np.maximum(-change, 0.0) * np.where(filled, _sale_price(entry, fees), 0.0) * (1.0 - fees.cost)
    buys = np.maximum(change, 0.0)
    needed, available = float((buys * price).sum()), cash + float(sold.sum())
    if needed > available * (1.0 + ROUNDING):
        buys = buys * (max(available, 0.0) / needed)
        if settings.shares == "whole":
            buys = np.floor(buys)
    bought: Values = np.where(change > 0.0, buys, change)
    return bought
