"""A user's decisions about price changes that no row proves (`market.events`), and the refusal that asks for them."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eigen_core.common.errors import InputError
from eigen_core.config import MarketConfig, PriceEvent
from eigen_core.market.cleaning import SMALLEST_PRICE, CleanPrices, clean_prices
from eigen_core.market.report import SuspiciousKind, SuspiciousRow, describe_rows, distorting_rows
from eigen_core.market.trading_days import PriceRows

_MOST_EVENTS = 20
_LARGEST_REST = np.log(1.5)
_UNPROVED: frozenset[SuspiciousKind] = frozenset(("jump", "move", "last day", "adjusted late"))
_KINDS = (
    "`keep`: the price is right, and a last close of zero is a total loss; `drop`: leave out this row, after which the "
    "price comes back; `split 3:2`: three new shares for two old ones, so earlier prices are multiplied by 2/3; "
    "`ends`: the symbol ends on the day before; `renamed`: from this day on, another asset has the name"
)


def apply_events(rows: PriceRows, market: MarketConfig, where: str) -> PriceRows:
    """Apply `market.events` to the rows of all days; the earlier rows of a `renamed` symbol get another name.

    Decisions about days after `market.last_date` are left out, so that they do not change the prices of a run.

    Raises:
        InputError: an event names no symbol and day of the rows; it would remove a change that the data report does not
            list as unproved, or a lasting one; or the prices do not show the split. The message names the source,
            `where`.
    """
    if market.suspicious == "keep":
        rows = _with_total_losses(rows, rows.prices.get("volume", np.zeros(len(rows.days))) > 0.0)
    last = market.last_date or "9999-12-31"
    events = [event for event in market.price_events if event.day[: len(last)] <= last]
    if not events:
        return rows
    prices, report = clean_prices(rows, where, (), market.levels)
    comes_back = {(row.symbol, row.day) for row in report.suspicious if row.event == "drop"}
    unproved = {(row.symbol, row.day) for row in report.suspicious if row.kind in _UNPROVED}
    for event in sorted(events, key=lambda event: event.day):
        day, symbol = np.datetime64(event.day), event.symbol
        own = rows.codes == (rows.symbols.index(symbol) if symbol in rows.symbols else -1)
        earlier, column = own & (rows.days < day), prices.symbols.index(symbol) if symbol in prices.symbols else -1
        reason, change = "", _change(prices, column, day)
        if column < 0 or not (own & (rows.days == day)).any():
            reason = f"{where} has no row of this symbol and day"
        elif event.kind == "drop" and (symbol, event.day) not in comes_back:
            reason = "this row is no single one after which the price comes back"
        elif event.kind not in ("drop", "keep") and (symbol, event.day) not in unproved:
            reason = "the data report lists no unproved change on this day"
        elif event.kind == "renamed" and (symbol in market.context or event.name_before in rows.symbols):
            reason = f"'{event.name_before}' would be another tradable symbol"
        elif event.kind == "split":
            ratio = float(event.ratio)
            if not abs(np.log(change * ratio)) <= min(_LARGEST_REST, abs(np.log(ratio)) / 2.0):
                reason = f"the price changes by a factor of {change:.3g} then, and by {1.0 / ratio:.3g} in the split"
        if reason:
            raise InputError(f"market.events has '{event}', but {reason}: correct or remove it.")
        rows = _applied(rows, event, own, earlier)
    return rows


def _change(prices: CleanPrices, column: int, day: np.datetime64) -> float:
    """Return a symbol's open (or close) on a day as a fraction of its last close before; NaN if one is unknown."""
    known = ~np.isnan(prices.close[:, column])
    before, today = np.flatnonzero(known & (prices.days < day)), np.flatnonzero(known & (prices.days == day))
    if not before.size or not today.size:
        return np.nan
    opened, close = prices.open[today[0], column], prices.close[today[0], column]
    return float((close if np.isnan(opened) else opened) / prices.close[before[-1], column])


def _applied(rows: PriceRows, event: PriceEvent, own: np.ndarray, earlier: np.ndarray) -> PriceRows:
    if event.kind == "keep":
        return _with_total_losses(rows, own & (rows.days == np.datetime64(event.day)))
    if event.kind == "drop":
        return rows.filter(~own | (rows.days != np.datetime64(event.day)))
    if event.kind == "ends":
        return rows.filter(~own | earlier)
    if event.kind == "renamed":
        files = rows.files | {event.name_before: rows.files.get(event.symbol, ())}
        codes = np.where(earlier, len(rows.symbols), rows.codes)
        return replace(rows, symbols=(*rows.symbols, event.name_before), codes=codes, files=files)
    ratio = float(event.ratio)
    factors = {role: ratio if role == "volume" else 1.0 / ratio for role in rows.prices}
    scaled = {role: np.where(earlier, values * factors[role], values) for role, values in rows.prices.items()}
    return replace(rows, prices=scaled)


def _with_total_losses(rows: PriceRows, kept: np.ndarray) -> PriceRows:
    """Return the rows with the smallest price in place of zero, where a close of zero is `kept`, bool `[rows]`, and its
    symbol has no later price: a position is worth nothing then."""
    close = rows.prices["close"]
    if not (kept := kept & (close == 0.0)).any():
        return rows
    last = np.full(len(rows.symbols), np.datetime64("0001-01-01"), rows.days.dtype)
    np.maximum.at(last, rows.codes[close > 0.0], rows.days[close > 0.0])
    lost = kept & (rows.days > last[rows.codes])
    prices = {
        role: np.where(lost & (values == 0.0) & (role != "volume"), SMALLEST_PRICE, values)
        for role, values in rows.prices.items()
    }
    return replace(rows, prices=prices)


def undecided_rows(suspicious: Sequence[SuspiciousRow], market: MarketConfig) -> list[SuspiciousRow]:
    """Return the rows that distort metrics and about which `market.events` does not decide."""
    decided = {(event.symbol, event.day) for event in market.price_events}
    return [row for row in distorting_rows(suspicious) if (row.symbol, row.day) not in decided]


def refuse_suspicious(suspicious: Sequence[SuspiciousRow], market: MarketConfig) -> None:
    """Raise `InputError` if rows distort metrics, unless `market.suspicious` or `market.events` decides about them."""
    found = undecided_rows(suspicious, market)
    if market.suspicious == "keep" or not found:
        return
    each = {(row.symbol, row.day): f"{row.symbol} {row.day} {row.event}" for row in reversed(found)}
    events = [*market.events, *reversed(each.values())]
    advice = "Correct them, "
    if len(events) <= _MOST_EVENTS:
        setting = f"market.events={json.dumps(events, ensure_ascii=False)}"
        advice = f"Decide about each with `--set {shlex.quote(setting)}`, after a choice among {_KINDS}. Or "
    levels = {row.symbol: None for row in found if row.kind == "not positive" and row.symbol in market.context}
    flag = f"market.levels=[{','.join((*market.levels, *levels))}]"
    level = f"If {', '.join(levels)} is no price but a level, add `--set {shlex.quote(flag)}`. " if levels else ""
    drop = "leave out all rows after which the price comes back with `--set market.suspicious=drop`, or "
    raise InputError(
        f"{' '.join(describe_rows(found))} {level}The rows do not prove these prices, and they distort all metrics. "
        f"{advice}{drop if market.suspicious == 'refuse' else ''}keep all with `--set market.suspicious=keep`."
    )
