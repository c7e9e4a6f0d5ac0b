"""Accounts of traders (agents or baselines) that buy assets, hold them for some days and sell them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.environment import TradingEnvironment
from eigen_core.trading.equity import Accounts, Values, daily_rates, share_of
from eigen_core.trading.order_fills import Fills, OrderCosts, fill_offset
from eigen_core.trading.orders import target_price
from eigen_core.trading.prices import Prices

# Cash below this share of the capital is a rounding error, and buys nothing.
ROUNDING = 1e-10

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class DecidedTrades:
    """The trades of each trader over a span (a range of days), without their sizes: `[traders, days of decisions, K]`.

    K is `trading.purchases_per_bar`; the cash pays for the trades of a day in their order. As orders do not move
    prices, the sale of a trade is computed together with its purchase; an account uses it on the day of the sale.

    Attributes:
        asset: int64, number of the asset that is bought; -1: no trade.
        exit_day: int64, day of the sale, counted from the first day of the span; it may be after the last one.
        entry, exit: float64, prices of one share, slippage included.
        target: float64, price of one share at which it is sold before the holding time ends; NaN: no such price.
        coefficient: float64, the agent's coefficient for the asset.
        at_target: bool, the sale is at the target, which costs no slippage.
        delisted: bool, the sale is booked because the asset has ended (`Fills`).
        at_open: bool, the purchase is filled at the open, before the sales of its day.
    """

    asset: Indices
    exit_day: Indices
    entry: Values
    exit: Values
    target: Values
    coefficient: Values
    at_target: NDArray[np.bool_]
    delisted: NDArray[np.bool_]
    at_open: NDArray[np.bool_]

    @classmethod
    def none(cls, traders: int, days: int, purchases: int = 1) -> "DecidedTrades":
        """Return arrays without any trade, for the caller to fill."""
        shape = (traders, days, purchases)
        return cls(
            asset=np.full(shape, -1),
            exit_day=np.full(shape, -1),
            entry=np.full(shape, np.nan),
            exit=np.full(shape, np.nan),
            target=np.full(shape, np.nan),
            coefficient=np.zeros(shape),
            at_target=np.zeros(shape, dtype=np.bool_),
            delisted=np.zeros(shape, dtype=np.bool_),
            at_open=np.zeros(shape, dtype=np.bool_),
        )

    def due_day(self, fills: Fills) -> Indices:
        """Return the day on which each sale was due, counted like `exit_day`: earlier if the sale waited for a fill."""
        day = torch.arange(self.asset.shape[1], device=fills.due_offset.device)[:, None]
        asset, exit_day = (torch.tensor(values, device=day.device) for values in (self.asset, self.exit_day))
        return (day + fills.due_after(day, asset.clamp(min=0), exit_day - day)).cpu().numpy()


@dataclass(frozen=True)
class TradedAccounts(Accounts):
    """The accounts of traders over a span. Days are those of the decisions; K is `trading.purchases_per_bar`.

    Attributes:
        fill_offset: days from a decision to its fill.
        shares: float64 `[traders, days, K]`, number of shares bought; 0: no purchase.
        paid, received: float64 `[traders, days, K]`, money paid for them, and received for their sale, after costs.
        trade_costs: float64 `[traders, days, K]`, transaction costs and slippage of purchase and sale (money).
        last_close: float64 `[assets]`, last known close on the last day.
    """

    trades: DecidedTrades
    fill_offset: int
    shares: Values
    paid: Values
    received: Values
    trade_costs: Values
    last_close: Values

    @property
    def gain(self) -> Values:
        """Gain of each trade, float64 `[traders, days, K]` (money); open positions count at `last_close`."""
        held = (self.shares > 0.0) & (self.trades.exit_day >= len(self.dates))
        worth = self.shares * self.last_close[np.maximum(self.trades.asset, 0)]
        return self.received - self.paid + np.where(held, worth, 0.0)

    def table(self, trader: int, symbols: tuple[str, ...]) -> pd.DataFrame:
        """Return the trades of one trader that were filled, one a row, sorted by day of decision.

        Columns: symbol, decision, fill, exit (dates), entry, exit_price (of one share, slippage included), shares,
        coefficient, paid, received, costs, gain (money), gain_percent (of the money paid), reason of the sale: target,
        time (the holding time ended), delisted, or held (not sold yet: exit and exit_price are missing).
        """
        day, purchase = np.nonzero(self.shares[trader] > 0.0)
        made = (trader, day, purchase)
        trades = self.trades
        exit_day = trades.exit_day[made]
        closed = exit_day < len(self.dates)
        reasons = [~closed, trades.at_target[made], trades.delisted[made]]
        exits = self.dates[np.where(closed, exit_day, 0)].astype("datetime64[s]")
        gain, paid = self.gain[made], self.paid[made]
        return pd.DataFrame(
            {
                "symbol": np.array(symbols, dtype=object)[trades.asset[made]],
                "decision": self.dates[day].astype("datetime64[s]"),
                "fill": self.dates[day + self.fill_offset].astype("datetime64[s]"),
                "exit": np.where(closed, exits, np.datetime64("NaT", "s")),
                "entry": trades.entry[made],
                "exit_price": np.where(closed, trades.exit[made], np.nan),
                "shares": self.shares[made],
                "coefficient": trades.coefficient[made],
                "paid": paid,
                "received": self.received[made],
                "costs": self.trade_costs[made],
                "gain": gain,
                "gain_percent": gain / paid * 100.0,
                "reason": np.select(reasons, ["held", "target", "delisted"], "time"),
            }
        )


def trade_accounts(
    trades: DecidedTrades,
    known: Prices,
    dates: NDArray[np.datetime64],
    trading: TradingConfig,
    settings: AccountConfig,
) -> TradedAccounts:
    """Simulate the accounts of traders day by day, all traders at once.

    On a day cash earns interest, then purchases at the open are filled, positions are sold, and purchases at the close
    are filled. `account.sizing` sets the size of a position from the equity after the sales of the decision's day; the
    cash at the fill limits it. Purchases that are filled together are paid in the order of the trades. `known` are
    prices of the span, as `prices_of_span` returns them, and `dates` its dates, datetime64[D] `[days]`.
    """
    shape, last_close = trades.asset.shape, known.last_close[: len(dates)].cpu().numpy()
    accounts = TradedAccounts(
        dates=dates,
        capital=settings.capital,
        interest=np.zeros(shape[0]),
        trades=trades,
        fill_offset=fill_offset(trading),
        last_close=last_close[-1],
        **{name: np.zeros(shape[:2]) for name in ("equity", "exposure", "traded", "costs")},
        **{name: np.zeros(shape) for name in ("shares", "paid", "received", "trade_costs")},
    )
    keeper = _AccountKeeper(accounts, last_close, trading, settings)
    for day in range(len(dates)):
        keeper.keep_day(day)
    return accounts


class _AccountKeeper:
    def __init__(
        self, accounts: TradedAccounts, last_close: Values, trading: TradingConfig, settings: AccountConfig
    ) -> None:
        self._accounts, self._trades = accounts, accounts.trades
        self._last_close, self._settings, self._costs = last_close, settings, OrderCosts.of(trading)
        self._rates = daily_rates(settings.interest, accounts.dates)
        self._cash = np.full(len(accounts.equity), settings.capital)
        self._decision_equity = np.zeros_like(accounts.equity)
        self._holding_days = trading.holding_bars
        asset, decided = self._trades.asset, np.arange(self._trades.asset.shape[1])[:, None]
        self._longest = int(np.where(asset >= 0, self._trades.exit_day - decided, 0).max(initial=0))
        share = np.full(asset.shape, 1.0 / (trading.holding_bars * trading.purchases_per_bar))
        if settings.sizing == "coefficient" and trading.max_coefficient is not None:
            share *= self._trades.coefficient / trading.max_coefficient
        self._share_of_equity = np.where(asset >= 0, share, 0.0)

    def keep_day(self, day: int) -> None:
        earned = self._cash * self._rates[day]
        self._accounts.interest[:] += earned
        self._cash = self._cash + earned
        self._buy(day, at_open=True)
        self._sell(day)
        self._decision_equity[:, day] = self._cash + self._worth(day)
        self._buy(day, at_open=False)
        # A position that is bought at the close of its last day is sold at that close.
        self._sell(day)
        worth = self._worth(day)
        equity = self._cash + worth
        self._accounts.equity[:, day] = equity
        self._accounts.exposure[:, day] = share_of(worth, equity)

    def _buy(self, day: int, *, at_open: bool) -> None:
        accounts, settings, decided = self._accounts, self._settings, day - self._accounts.fill_offset
        if decided < 0:
            return
        for purchase in range(self._trades.asset.shape[2]):
            order = (slice(None), decided, purchase)
            wanted = self._share_of_equity[order] * self._decision_equity[order[:2]]
            if settings.sizing == "fixed":
                wanted = np.where(self._share_of_equity[order] > 0.0, settings.fixed_amount, 0.0)
            entry = self._trades.entry[order]
            price = self._costs.paid(entry)
            at_this_time = self._trades.at_open[order] == at_open
            buys = at_this_time & (wanted > 0.0) & (self._cash > ROUNDING * settings.capital)
            shares = np.zeros_like(wanted)
            np.divide(np.minimum(wanted, self._cash), price, out=shares, where=buys)
            if settings.shares == "whole":
                shares = np.floor(shares)
            bought = shares > 0.0
            shares, entry, price = (np.where(bought, values, 0.0) for values in (shares, entry, price))
            paid = shares * price
            costs = shares * self._costs.purchase_costs(entry)
            self._cash = self._cash - paid
            accounts.shares[order] += shares
            accounts.paid[order] += paid
            accounts.trade_costs[order] += costs
            accounts.traded[:, day] += shares * entry
            accounts.costs[:, day] += costs

    def _open(self, day: int) -> slice:
        return slice(max(0, day - self._longest), day + 1)

    def _sell(self, day: int) -> None:
        accounts, decided = self._accounts, self._open(day)
        shares, received = accounts.shares[:, decided], accounts.received[:, decided]
        sold = (self._trades.exit_day[:, decided] == day) & (shares > 0.0) & (received == 0.0)
        exit_price = np.where(sold, self._trades.exit[:, decided], 0.0)
        value = np.where(sold, shares, 0.0) * exit_price
        costs = shares * self._costs.sale_costs(exit_price, self._trades.at_target[:, decided])
        gained = self._costs.received(value)
        received += gained
        accounts.trade_costs[:, decided] += costs
        self._cash = self._cash + self._of_trader(gained)
        accounts.traded[:, day] += self._of_trader(value)
        accounts.costs[:, day] += self._of_trader(costs)

    def _worth(self, day: int) -> Values:
        decided = self._open(day)
        asset, shares = self._trades.asset[:, decided], self._accounts.shares[:, decided]
        held = (shares > 0.0) & (self._trades.exit_day[:, decided] > day)
        return self._of_trader(np.where(held, shares * self._last_close[day][np.maximum(asset, 0)], 0.0))

    def _of_trader(self, values: Values) -> Values:
        """Sum `[traders, days, K]` for each trader; the bits do not depend on how long any sale waits for a price."""
        # Decisions older than the holding time, whose sales wait, are added one by one.
        recent = min(self._longest, self._holding_days) + 1
        before, newest = np.split(values.reshape(len(values), -1), [-recent * values.shape[2]], axis=1)
        total: Values = newest.sum(axis=1)
        return total + before.cumsum(axis=1)[:, -1] if before.shape[1] else total


Decide = Callable[[int, Tensor], tuple[Tensor, ...]]
"""From a day of the span and portfolios, float16 `[traders, assets, 4]`, to arguments of `TradingEnvironment.step`."""


def trade_day_by_day(known: Prices, trading: TradingConfig, days: int, traders: int, decide: Decide) -> DecidedTrades:
    """Let traders decide after the close of each day of a span, as in one long episode of `TradingEnvironment`.

    `known` are the prices of the span's `days` days and of `trading.holding_bars` more days, without decisions, as
    `prices_of_span` returns them; `decide` is called once for each day with the portfolios of all `traders`.
    """
    as_one = {"trading_bars": days, "settlement_bars": trading.holding_bars, "credit": "decision"}
    environment = TradingEnvironment(known, trading.model_copy(update=as_one))
    environment.reset(torch.zeros(traders, dtype=torch.int64))
    nothing = torch.zeros((traders, known.assets))
    while not environment.done:
        step = environment.step_index
        environment.step(*(decide(step, environment.portfolio()) if step < days else (nothing, nothing)))
    orders, bought = environment.orders()
    # The trades of a day come first, by rank.
    order = (~bought).to(torch.uint8).argsort(dim=-1, stable=True)
    found = {name: values.gather(-1, order).cpu().numpy() for name, values in {**vars(orders), "made": bought}.items()}
    made, asset, decided = found["made"], found["asset"], np.arange(days)[:, None]
    target, at_target = target_price(trading, orders.entry, orders.target).gather(-1, order), found["at_target"]
    delisted = known.fills(trading).exit_delisted.cpu().numpy()[decided, asset] & ~at_target
    opened = ~torch.isnan(known.open).cpu().numpy()[decided + fill_offset(trading), asset]
    columns = {name: found[name] for name in ("asset", "entry", "exit", "coefficient", "at_target")} | {
        "exit_day": decided + found["exit_offset"],
        "target": target.cpu().numpy(),
        "delisted": delisted & (trading.bookkeeping == "exact"),
        "at_open": opened & (trading.fill == "next_open"),
    }
    none = vars(DecidedTrades.none(traders, days, made.shape[2]))
    return DecidedTrades(**{name: np.where(made, values, none[name]) for name, values in columns.items()})
