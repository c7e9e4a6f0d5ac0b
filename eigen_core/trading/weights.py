"""Accounts of traders that hold target weights (shares of the equity in assets) and rebalance on some days."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.equity import Accounts, Values, daily_rates, share_of
from eigen_core.trading.order_costs import OrderCosts
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.portfolio import rebalance, worth_at_fills
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import ROUNDING


@dataclass(frozen=True)
class WeightsAccounts(Accounts):
    """The accounts of traders that hold target weights.

    Attributes:
        fill_offset: days from a decision to its fill.
        prices: float64 `[decisions, assets]`, of one share at the fill of each day's decision, without slippage.
        worth: float64 `[days, assets]`, of one share at the close: the last known close, less
            `trading.delisting_loss` once the asset counts as ended.
        shares: float64 `[traders, days, assets]`, held at the close; below 0: sold short.
        paid: float64 `[traders, days, assets]`, money out for each order that is filled on the day, below 0: in; costs
            included.
        order_costs: float64 `[traders, days, assets]`, transaction costs and slippage of each order (money).
    """

    fill_offset: int
    prices: Values
    worth: Values
    shares: Values
    paid: Values
    order_costs: Values

    def held_weights(self) -> Values:
        """Return the share of the equity of all accounts in each asset at each close: `[days, assets]`."""
        worth = values_of(self.shares, self.worth).sum(axis=0)
        return share_of(worth, self.equity.sum(axis=0)[:, None])

    def table(self, trader: int, symbols: tuple[str, ...]) -> pd.DataFrame:
        """Return the orders of one trader that were filled, one a row, by day and asset.

        Columns: symbol, decision, fill (dates), shares (below 0: sold), price (of one share, without slippage), paid,
        received, costs (money), gain (money: worth of the shares at the end less the money paid for them). The gains
        and the interest add up to the account's gain.
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
                "gain": shares * self.worth[-1, asset] - money,
            }
        )


def weights_accounts(
    weights: Values, known: Prices, dates: NDArray[np.datetime64], trading: TradingConfig, settings: AccountConfig
) -> WeightsAccounts:
    """Simulate accounts that rebalance to target weights, all accounts at once.

    Args:
        weights: float64 `[traders, days, assets]`, decided on after the close of each day; below 0: sold short; the
            rest to 1 is cash. NaN: the position stays as it is.
        known: prices of the span, as `prices_of_span` returns them.
        dates: datetime64[D] `[days]`.
        trading, settings: trading rules, and settings of the account, whose `sizing` does not apply.

    Orders are filled as `rebalance` says, so that with fractional shares and without interest an account grows as the
    rewards of training say. An asset that counts as ended is paid out at the next fill. An account whose equity is not
    above 0 at a close ends there with nothing.
    """
    offset, rates, fills = fill_offset(trading), daily_rates(settings.interest, dates), known.fills(trading)
    traders, days, assets = weights.shape
    decisions = days - offset
    prices, ended, unfilled = (
        values[:decisions].cpu().numpy()
        for values in (worth_at_fills(known, trading), fills.ended, fills.entry.isnan())
    )
    at_close = torch.where(fills.ended, fills.end_price, known.last_close)[:days].cpu().numpy()
    slippage = OrderCosts.of(trading).slippage
    cash, shares, interest = np.full(traders, settings.capital), np.zeros((traders, assets)), np.zeros(traders)
    daily = {name: np.zeros((traders, days)) for name in ("equity", "exposure", "traded", "costs")}
    held = {name: np.zeros((traders, days, assets)) for name in ("shares", "paid", "order_costs")}
    for day in range(days):
        earned = cash * rates[day]
        interest += earned
        cash = cash + earned
        decided = day - offset
        if decided >= 0:
            wanted = np.where(ended[decided], 0.0, weights[:, decided])
            stays = np.where(ended[decided], False, unfilled[decided] | np.isnan(wanted))
            changes, costs = changes_to_weights(wanted, cash, shares, prices[decided], stays, trading, settings)
            value = values_of(changes, prices[decided])
            paid = value + costs
            cash, shares = cash - paid.sum(axis=1), shares + changes
            held["paid"][:, day], held["order_costs"][:, day] = paid, costs
            daily["traded"][:, day] = (np.abs(value) + value * slippage).sum(axis=1)
            daily["costs"][:, day] = costs.sum(axis=1)
        worth = values_of(shares, at_close[day]).sum(axis=1)
        equity = cash + worth
        lost = equity <= 0.0
        if lost.any():
            equity, worth, cash = (np.where(lost, 0.0, values) for values in (equity, worth, cash))
            shares = np.where(lost[:, None], 0.0, shares)
        daily["equity"][:, day] = equity
        daily["exposure"][:, day] = share_of(worth, equity)
        held["shares"][:, day] = shares
    return WeightsAccounts(
        dates=dates,
        capital=settings.capital,
        interest=interest,
        fill_offset=offset,
        prices=prices,
        worth=at_close,
        **daily,
        **held,
    )


def values_of(shares: Values, price: Values) -> Values:
    """Return the value of shares; 0 for no shares also without a price."""
    values: Values = np.where(shares != 0.0, shares * price, 0.0)
    return values


def changes_to_weights(
    weights: Values,
    cash: Values,
    shares: Values,
    price: Values,
    stays: NDArray[np.bool_],
    trading: TradingConfig,
    settings: AccountConfig,
) -> tuple[Values, Values]:
    """Return the shares to buy of each asset, below 0: to sell, to bring accounts to weights, and the costs.

    Args:
        weights, shares: float64 `[traders, assets]`, targets and holdings.
        cash: float64 `[traders]`.
        price: float64 `[assets]` or `[traders, assets]`, of one share at the fill, without slippage.
        stays: bool `[traders, assets]`, the position stays as it is; all do where the equity is not above 0.
        trading, settings: trading rules, and settings of the account.

    Returns:
        Both float64 `[traders, assets]`; costs are money.
    """
    values = values_of(shares, price)
    equity = cash[:, None] + values.sum(axis=1, keepdims=True)
    stays = stays | (equity <= 0.0)
    equity = np.where(equity > 0.0, equity, 1.0)
    order = OrderCosts.of(trading)
    held, wanted, unfilled = map(torch.tensor, (values / equity, np.nan_to_num(weights), stays))
    after, _, paid = (part.numpy() for part in rebalance(held, wanted, unfilled, order))
    costs = paid * equity
    left = equity - costs.sum(axis=1, keepdims=True)
    price = np.where(stays | ~(price > 0.0), 1.0, price)
    target = np.where(stays, shares, after * left / price)
    if settings.shares == "fractional":
        return target - shares, costs
    changes = np.where(stays, 0.0, np.trunc(target) - shares)
    bought, sold = np.maximum(changes, 0.0) * price, np.maximum(-changes, 0.0) * price
    # Whole shares may need more sales than planned, which cost more.
    borrowed = np.maximum((left * (after.sum(axis=1, keepdims=True) - 1.0))[:, 0], 0.0)
    needed = bought.sum(axis=1) * (1.0 + order.buying)
    available = cash + borrowed + sold.sum(axis=1) * (1.0 - order.selling)
    short_of_cash = ((needed > 0.0) & (needed > available * (1.0 + ROUNDING)))[:, None]
    smaller = np.maximum(available, 0.0) / np.where(needed > 0.0, needed, 1.0)
    changes = np.where(short_of_cash & (changes > 0.0), np.floor(changes * smaller[:, None]), changes)
    return changes, np.where(changes > 0.0, changes * order.buying, changes * -order.selling) * price
