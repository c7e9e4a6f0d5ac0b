"""Accounts of traders (agents or baselines) that buy assets, hold them for some days and sell them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.environment import Positions, joined, require_finite
from eigen_core.trading.equity import Accounts, Values, daily_rates, share_of
from eigen_core.trading.order_fills import Fills, fill_offset
from eigen_core.trading.order_limits import OrderLimits
from eigen_core.trading.orders import batch_slices, decides, decisions_of_holding, target_price
from eigen_core.trading.prices import Prices, start_of

# Cash below this share of the capital is a rounding error, and buys nothing.
ROUNDING = 1e-10

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class DecidedTrades:
    """The trades of each trader over a span (a range of days), without their sizes: `[traders, decisions, K]`.

    K is `trading.purchases_per_bar`; the cash pays for the trades of a day in their order. As orders do not move
    prices, the sale of a trade is computed together with its purchase; an account uses it on the day of the sale.

    Attributes:
        day: int64 `[traders, decisions]`, day of each decision, counted from the first day of the span, each once; -1
            for what an account holds from the start (`after_holdings`).
        asset: int64, number of the asset that is bought; -1: no trade.
        exit_day: int64, day of the sale, counted from the first day of the span; it may be after the last one.
        entry, exit: float64, prices of one share, slippage included.
        target: float64, price of one share at which it is sold before the holding time ends; NaN: no such price.
        coefficient: float64, the agent's coefficient for the asset.
        at_target: bool, the sale is at the target, which costs no slippage.
        delisted: bool, the sale is booked because the asset has ended (`Fills`).
        at_open: bool, the purchase is filled at the open, before the sales of its day.
    """

    day: Indices
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
        """Return arrays without any trade, with a decision a day, for the caller to fill."""
        shape = (traders, days, purchases)
        return cls(
            day=np.tile(np.arange(days), (traders, 1)),
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

    def with_a_trade(self) -> "DecidedTrades":
        """Return the decisions of which some trader made a trade."""
        some = (self.asset >= 0).any(axis=(0, 2))
        return DecidedTrades(**{name: values[:, some] for name, values in vars(self).items()})

    def after_holdings(self, known: Prices, trading: TradingConfig) -> "DecidedTrades":
        """Return the trades after those of `Prices.held`, a decision each: as if bought at the first close without
        costs and target, with sales due as of a decision on the first day."""
        held, fills = np.array(list(known.held.values()), dtype=np.int64), known.fills(trading)
        first = vars(DecidedTrades.none(len(self.asset), len(held), self.asset.shape[2]))
        columns = (known.close, fills.exit, fills.exit_offset, fills.exit_delisted)
        entry, sale, exit_day, delisted = (values[0].cpu().numpy()[held] for values in columns)
        price = known.costs(trading).numpy().of_assets(held).sale_price(sale)
        first["day"][:] = -1
        own = {"asset": held, "exit_day": exit_day, "entry": entry, "exit": price, "delisted": delisted}
        for name, values in own.items():
            first[name][:, :, 0] = values
        return DecidedTrades(**{name: np.concatenate([first[name], own], 1) for name, own in vars(self).items()})

    def due_day(self, fills: Fills) -> Indices:
        """Return the day on which each sale was due, counted like `exit_day`: earlier if the sale waited for a fill."""
        day, asset, exit_day = (
            torch.tensor(values, device=fills.due_offset.device)
            for values in (self.day[..., None], self.asset, self.exit_day)
        )
        return (day + fills.due_after(day, asset.clamp(min=0), exit_day - day)).cpu().numpy()


@dataclass(frozen=True)
class TradedAccounts(Accounts):
    """The accounts of traders over a span; K is `trading.purchases_per_bar`.

    Attributes:
        fill_offset: days from a decision to its fill.
        shares: float64 `[traders, decisions, K]`, number of shares bought; 0: no purchase.
        paid, received, trade_costs: float64 `[traders, decisions, K]`, money paid for them, and received for their
            sale, after costs; transaction costs and slippage of purchase and sale (money).
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
        """Gain of each trade, float64 `[traders, decisions, K]` (money); open positions count at `last_close`."""
        held = (self.shares > 0.0) & (self.trades.exit_day >= len(self.dates))
        worth = self.shares * self.last_close[np.maximum(self.trades.asset, 0)]
        return self.received - self.paid + np.where(held, worth, 0.0)

    def table(self, trader: int, symbols: tuple[str, ...]) -> pd.DataFrame:
        """Return the trades of one trader that were filled, one a row, sorted by day of decision.

        Columns: symbol, decision, fill, exit (dates), entry, exit_price (of one share, slippage included), shares,
        coefficient, paid, received, costs, gain (money), gain_percent (of the money paid), reason of the sale: target,
        time (the holding time ended), delisted, or held (not sold yet: exit and exit_price are missing).
        """
        decision, purchase = np.nonzero(self.shares[trader] > 0.0)
        made, trades = (trader, decision, purchase), self.trades
        day = trades.day[trader, decision]
        exit_day = trades.exit_day[made]
        closed = exit_day < len(self.dates)
        reasons = [~closed, trades.at_target[made], trades.delisted[made]]
        exits = self.dates[np.where(closed, exit_day, 0)].astype("datetime64[s]")
        gain, paid = self.gain[made], self.paid[made]
        return pd.DataFrame(
            {
                "symbol": np.array(symbols, dtype=object)[trades.asset[made]],
                "decision": self.dates[np.maximum(day, 0)].astype("datetime64[s]"),
                "fill": self.dates[np.maximum(day + self.fill_offset, 0)].astype("datetime64[s]"),
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
    trades: DecidedTrades, known: Prices, dates: NDArray[np.datetime64], trading: TradingConfig, settings: AccountConfig
) -> TradedAccounts:
    """Simulate the accounts of traders.

    On a day cash earns interest, then purchases at the open are filled, positions are sold, and purchases at the close
    are filled. `account.sizing` sets the size of a position from the equity after the sales of the decision's day; the
    cash at the fill limits it. Purchases that are filled together are paid in the order of the trades. Accounts begin
    with the shares of `start_of`, whose sales are in their `trades` (`DecidedTrades.after_holdings`). `known` are
    prices of the span, as `prices_of_span` returns them, and `dates` its dates, datetime64[D] `[days]`.
    """
    return _AccountKeeper(trades, known, dates, trading, settings).accounts()


def last_equity(
    trades: DecidedTrades, known: Prices, dates: NDArray[np.datetime64], trading: TradingConfig, settings: AccountConfig
) -> Values:
    """Return the equity of `trade_accounts` at the last close, float64 `[traders]`, without the days before it."""
    return _AccountKeeper(trades, known, dates, trading, settings).last_equity()


class _AccountKeeper:
    """Keeps accounts from one event to the next: purchases, sales, or a decision, whose equity sets the sizes.

    The first events of all traders are computed at once, on whatever days they are; then the second ones, and so on.
    So the bits of an account do not depend on those beside it. Arrays without another shape are `[trades]`.
    """

    def __init__(
        self,
        trades: DecidedTrades,
        known: Prices,
        dates: NDArray[np.datetime64],
        trading: TradingConfig,
        settings: AccountConfig,
    ) -> None:
        start, self._capital = start_of(known, settings)
        trades = trades.after_holdings(known, trading) if known.held else trades
        self._trades, self._settings, self._dates = trades, settings, dates
        self._fill_offset, self._closes = fill_offset(trading), known.last_close[: len(dates)].cpu().numpy()
        # Positions are never of assets without a close.
        self._worth = np.nan_to_num(self._closes)
        self._growth = np.cumprod(1.0 + daily_rates(settings.interest, dates))
        trader, decision, purchase = np.nonzero(trades.asset >= 0)
        order = np.lexsort((purchase, trades.day[trader, decision], trader))
        made = self._made = trader[order], decision[order], purchase[order]
        self._trader, decision, self._purchase = made
        self._asset, self._exit_day, self._at_open = trades.asset[made], trades.exit_day[made], trades.at_open[made]
        self._entry, self._exit, self._at_target = trades.entry[made], trades.exit[made], trades.at_target[made]
        self._costs = known.costs(trading).numpy().of_assets(self._asset)
        self._decided, self._at_market = trades.day[self._trader, decision], ~(self._at_target | trades.delisted[made])
        self._limits = OrderLimits.of(known, trading, settings)
        self._begun = self._decided < 0
        self._filled = np.where(self._begun, 0, self._decided + self._fill_offset)
        most = decisions_of_holding(known.panel_time, trading) * trading.purchases_per_bar
        self._share = np.full(len(self._trader), 1.0 / most)
        if settings.sizing == "coefficient" and trading.max_coefficient is not None:
            self._share *= trades.coefficient[self._made] / trading.max_coefficient
        self._shares, self._paid, self._received, self._spent, self._decision_equity = np.zeros((5, len(self._trader)))
        self._cash, self._interest = np.full(len(trades.asset), settings.capital), np.zeros(len(trades.asset))
        self._day = np.zeros(len(trades.asset), dtype=np.int64)
        self._held = np.tile(start, (len(trades.asset), 1))
        self._shares[self._begun] = start[self._asset[self._begun]]
        self._paid[self._begun] = (self._shares * self._entry)[self._begun]
        self._keep()

    def _keep(self) -> None:
        """Let all events happen, and note the cash after each, in the order of traders and days."""
        purchases, every = self._trades.asset.shape[2], np.arange(len(self._trader))
        # The order within a day: purchases at the open, sales, decisions, purchases at the close, sales of these.
        bought = np.where(self._at_open, self._purchase, purchases + 2 + self._purchase)
        sold = np.where((self._exit_day == self._filled) & ~self._at_open, 2 * purchases + 2, purchases)
        never = len(self._dates)
        bought_on, decided_on = (np.where(self._begun, never, day) for day in (self._filled, self._decided))
        days = bought_on, self._exit_day, decided_on
        places = bought, sold, np.full_like(every, purchases + 1)
        time = np.concatenate([day * (2 * purchases + 3) + place for day, place in zip(days, places, strict=True)])
        within = np.concatenate(days) < never
        trade, kind = np.tile(every, 3)[within], np.repeat(np.arange(3), len(every))[within]
        time, trader = time[within], self._trader[trade]
        order = np.lexsort((kind, time, trader))
        time, trader, trade, kind = time[order], trader[order], trade[order], kind[order]
        begins = np.diff(trader, prepend=-1) != 0
        number = np.cumsum(begins | (np.diff(time, prepend=-1) != 0))
        rounds = (number - np.maximum.accumulate(np.where(begins, number, 0))) * 3 + kind
        order = np.argsort(rounds, kind="stable")
        # The last of these values stands for the time before the first event.
        self._trader_after, self._day_after = trader, np.append(time // (2 * purchases + 3), 0)
        self._cash_after = np.full(len(time) + 1, self._settings.capital)
        for events in np.split(order, np.flatnonzero(np.diff(rounds[order])) + 1) if len(order) else ():
            traders = trader[events]
            self._pass_time(traders, self._day_after[events])
            (self._buy, self._sell, self._decide)[kind[events[0]]](trade[events], traders)
            self._cash_after[events] = self._cash[traders]

    def _pass_time(self, traders: Indices, days: Indices | int) -> None:
        if self._settings.interest:
            grown = self._cash[traders] * (self._growth[days] / self._growth[self._day[traders]])
            self._interest[traders] += grown - self._cash[traders]
            self._cash[traders], self._day[traders] = grown, days

    def _decide(self, trade: Indices, traders: Indices) -> None:
        worth = (self._held[traders] * self._worth[self._decided[trade]]).sum(axis=1)
        self._decision_equity[trade] = self._cash[traders] + worth

    def _buy(self, trade: Indices, traders: Indices) -> None:
        settings, cash, entry = self._settings, self._cash[traders], self._entry[trade]
        costs = self._costs.of_assets(trade)
        wanted = self._share[trade] * self._decision_equity[trade]
        if settings.sizing == "fixed":
            wanted = np.where(self._share[trade] > 0.0, settings.fixed_amount, 0.0)
        buys = (wanted > 0.0) & (cash > ROUNDING * self._capital)
        money = np.where(buys, np.minimum(wanted, cash), 0.0)
        if self._limits is None:
            shares = money / costs.paid(entry)
            shares = np.floor(shares) if settings.shares == "whole" else shares
            paid, spent = shares * costs.paid(entry), shares * costs.purchase_costs(entry)
        else:
            limits = self._limits.at(self._decided[trade], self._asset[trade])
            shares = limits.bought(money, entry)
            paid = limits.paid(shares, entry)
            spent = paid - shares * entry / (1.0 + costs.slippage)
        self._shares[trade], self._paid[trade], self._spent[trade] = shares, paid, spent
        self._cash[traders] = cash - paid
        self._held[traders, self._asset[trade]] += shares

    def _sell(self, trade: Indices, traders: Indices) -> None:
        shares, cells = self._shares[trade], (traders, self._asset[trade])
        if self._limits is None:
            self._received[trade] = self._costs.of_assets(trade).received(shares * self._exit[trade])
        else:
            limits = self._limits.at(self._exit_day[trade] - 1, self._asset[trade])
            self._received[trade] = limits.received(shares, self._exit[trade], self._at_market[trade])
        np.add.at(self._cash, traders, self._received[trade])
        np.subtract.at(self._held, cells, shares)
        self._held[cells] = np.where(self._held[cells] > ROUNDING * shares, self._held[cells], 0.0)

    def _worth_of(self, days: range) -> Values:
        """Return the worth of all positions at the closes of days, float64 `[traders, days]`; a sum trade by trade."""
        worth = np.zeros((len(self._held), len(days)))
        first, stop = (day.clip(days.start, days.stop) for day in (self._filled, self._exit_day))
        length = np.where(self._shares > 0.0, stop - first, 0)
        for some in batch_slices(len(length), max(int(length.max(initial=1)), 1)):
            trade = np.repeat(np.arange(len(length))[some], length[some])
            ends = np.cumsum(length[some])
            day = np.arange(len(trade)) - np.repeat(ends - length[some], length[some]) + first[trade]
            cells = self._trader[trade], day - days.start
            np.add.at(worth, cells, self._shares[trade] * self._worth[day, self._asset[trade]])
        return worth

    def last_equity(self) -> Values:
        last = len(self._dates) - 1
        self._pass_time(np.arange(len(self._cash)), last)
        return self._cash + self._worth_of(range(last, last + 1))[:, 0]

    def accounts(self) -> TradedAccounts:
        traders, days = len(self._trades.asset), range(len(self._dates))
        self._pass_time(np.arange(traders), days[-1])
        after = np.full((traders, len(days)), -1)
        after[self._trader_after, self._day_after[:-1]] = np.arange(len(self._trader_after))
        after = np.maximum.accumulate(after, axis=1)
        worth = self._worth_of(days)
        equity = self._cash_after[after] * (self._growth / self._growth[self._day_after[after]]) + worth
        sold = (self._shares > 0.0) & (self._exit_day < len(days))
        price = np.where(sold, self._exit, 0.0)
        spent = self._shares * self._costs.sale_costs(price, self._at_target)
        if self._limits is not None:
            spent += self._costs.received(self._shares * price) - self._received
        traded, costs = np.zeros((2, traders, len(days)))
        # What is decided on the last day is not filled.
        filled = self._filled.clip(max=days[-1])
        for day, value, cost in (
            (filled, np.where(self._begun, 0.0, self._shares * self._entry), self._spent),
            (np.where(sold, self._exit_day, 0), self._shares * price, spent),
        ):
            np.add.at(traded, (self._trader, day), value)
            np.add.at(costs, (self._trader, day), cost)

        def of_trades(values: Values) -> Values:
            every = np.zeros(self._trades.asset.shape)
            every[self._made] = values
            return every

        return TradedAccounts(
            dates=self._dates,
            capital=self._capital,
            equity=equity,
            exposure=share_of(worth, equity),
            traded=traded,
            costs=costs,
            interest=self._interest,
            trades=self._trades,
            fill_offset=self._fill_offset,
            shares=of_trades(self._shares),
            paid=of_trades(self._paid),
            received=of_trades(self._received),
            trade_costs=of_trades(self._spent + spent),
            last_close=self._closes[-1],
        )


Decide = Callable[[int, Tensor], tuple[Tensor, ...]]
"""From a day of the span and portfolios, float16 `[traders, assets, 4]`, to the arguments of `choose_assets` and sale
targets: coefficients, targets and perhaps ranks, `[traders, assets]`."""


@torch.no_grad()
def trade_day_by_day(known: Prices, trading: TradingConfig, days: int, traders: int, decide: Decide) -> DecidedTrades:
    """Let traders decide after the close of each day of a span, as in one long episode of `TradingEnvironment`.

    `known` are the prices of the span's `days` days and of `trading.holding_bars` more days, without decisions, as
    `prices_of_span` returns them; `decide` is called for each day with decisions (`decides`), in their order, with the
    portfolios of all `traders`.
    """
    every = torch.arange(days, device=known.close.device)
    decided = every[decides(known, trading, every)]
    positions = Positions(known, trading, traders)
    decisions = []
    for day, rows in zip(decided.tolist(), decided.expand(traders, -1).T.unsqueeze(-1), strict=True):
        coefficients, targets, *ranks = decide(day, positions.observed(rows))
        decisions.append(positions.decide(rows, coefficients, targets, *ranks))
    if not decisions:
        return DecidedTrades.none(traders, 0, trading.purchases_per_bar)
    orders, bought = joined(decisions)
    require_finite(orders, torch.where(bought, orders.value, 0.0))
    # The trades of a day come first, by rank.
    order = (~bought).to(torch.uint8).argsort(dim=-1, stable=True)
    found = {name: values.gather(-1, order).cpu().numpy() for name, values in {**vars(orders), "made": bought}.items()}
    made, asset, day = found["made"], found["asset"], np.tile(decided.cpu().numpy(), (traders, 1))
    target, at_target = target_price(trading, orders.entry, orders.target).gather(-1, order), found["at_target"]
    delisted = known.fills(trading).exit_delisted.cpu().numpy()[day[..., None], asset] & ~at_target
    opened = ~torch.isnan(known.open).cpu().numpy()[day[..., None] + fill_offset(trading), asset]
    columns = {name: found[name] for name in ("asset", "entry", "exit", "coefficient", "at_target")} | {
        "exit_day": day[..., None] + found["exit_offset"],
        "target": target.cpu().numpy(),
        "delisted": delisted & (trading.bookkeeping == "exact"),
        "at_open": opened & (trading.fill == "next_open"),
    }
    none = vars(DecidedTrades.none(traders, len(decided), made.shape[2]))
    return DecidedTrades(day=day, **{name: np.where(made, values, none[name]) for name, values in columns.items()})
