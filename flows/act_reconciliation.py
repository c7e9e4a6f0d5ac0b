"""Orders that were issued beside those of a replay, and prices that were corrected since. No Prefect in here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigen_core.backtest.interface import NextOrders, decision_of, decisions_among
from eigen_core.market import Panel
from flows.act_ledger import ActLedger, KnownPrices

_NAMES = ("open", "high", "close")
_CLOSE = 2
# Prices and money as they are written may be rounded.
_SAME_PRICE, _SAME_MONEY = 1e-9, 1e-6
_SAME_FACTOR = 1e-4


@dataclass(frozen=True)
class Difference:
    """A day on which other orders were issued than the replay makes.

    Attributes:
        date: of the day.
        issued, replayed: what was ordered, as `decision_of` names it; None: nothing.
        missed: no orders were asked for on the day.
    """

    date: str
    issued: str | None
    replayed: str | None
    missed: bool


@dataclass(frozen=True)
class SizeDifference:
    """An order that the replay makes, too, but of another size.

    Attributes:
        date: of the day.
        symbol: of the asset.
        issued, replayed: what it takes or gives (money).
    """

    date: str
    symbol: str
    issued: float
    replayed: float


@dataclass(frozen=True)
class Correction:
    """Prices of a symbol that are not those that were there when orders were issued.

    Attributes:
        symbol: whose prices.
        dates: of the days, in order.
        price: open, high or close: which of them differs on the first of these days; the close where it does.
        then, now: that price; None: there is none.
        factor: of all closes of these days alike, as of a split; None: there is no such factor.
    """

    symbol: str
    dates: tuple[str, ...]
    price: str
    then: float | None
    now: float | None
    factor: float | None


@dataclass(frozen=True)
class Reconciliation:
    """What was issued beside what the replay orders, on all days before the last.

    Attributes:
        agreeing: days on which the orders are the same, sizes included.
        differences: days with other orders.
        sizes: orders of other sizes on the days that are left.
        corrections: prices that were corrected since orders were issued, one a symbol.
    """

    agreeing: int
    differences: tuple[Difference, ...]
    sizes: tuple[SizeDifference, ...]
    corrections: tuple[Correction, ...]


def reconciled(kept: ActLedger, found: NextOrders, panel: Panel) -> Reconciliation:
    """Compare what a ledger keeps with what a replay on a panel orders."""
    differences, sizes, agreeing = [], [], 0
    earlier = sorted({day for day in (*kept.days, *found.decided) if day < found.date})
    for day in earlier:
        issued = decision_of(kept.days.get(day, ()))
        compared = Difference(day, issued, found.decided.get(day), missed=day not in kept.days)
        if compared.missed or compared.issued != compared.replayed:
            differences.append(compared)
            continue
        other = list(_other_sizes(kept, found, day))
        sizes += other
        agreeing += not other
    return Reconciliation(agreeing, tuple(differences), tuple(sizes), _corrections(kept.prices, panel))


def _other_sizes(kept: ActLedger, found: NextOrders, day: str) -> Iterator[SizeDifference]:
    for order in decisions_among(kept.days[day]):
        replayed = found.money[day][order.symbol]
        # The fill may be at another price than the close: by one share more or less.
        tolerance = _SAME_MONEY * order.money + (order.price if kept.account.shares == "whole" else 0.0)
        if abs(replayed - order.money) > tolerance:
            yield SizeDifference(day, order.symbol, order.money, replayed)


def prices_of(panel: Panel, first: int) -> dict[str, dict[str, KnownPrices]]:
    """Return the open, high and close of each asset, by date and symbol, from day `first` of a panel on."""
    grid = np.stack([panel.open[first:], panel.high[first:], panel.close[first:]], axis=-1)
    return {
        str(date): {
            symbol: _known(own)
            for symbol, own in zip(panel.symbols, prices.tolist(), strict=False)
            if not np.isnan(own).all()
        }
        for date, prices in zip(panel.dates[first:], grid, strict=True)
    }


def _known(prices: Sequence[float]) -> KnownPrices:
    first, high, close = (None if np.isnan(price) else price for price in prices)
    return first, high, close


def _corrections(then: Mapping[str, Mapping[str, KnownPrices]], panel: Panel) -> tuple[Correction, ...]:
    now = prices_of(panel, 0)
    nothing = (None, None, None)
    changed: dict[str, list[tuple[str, KnownPrices, KnownPrices]]] = {}
    for date in sorted(then):
        of_day = now.get(date, {})
        for symbol in sorted({*then[date], *of_day}):
            one, other = then[date].get(symbol, nothing), of_day.get(symbol, nothing)
            if not all(map(_is_same, one, other)):
                changed.setdefault(symbol, []).append((date, one, other))
    return tuple(_correction(symbol, days) for symbol, days in changed.items())


def _ratio(before: float | None, after: float | None) -> float:
    return after / before if before and after else float("nan")


def _correction(symbol: str, days: Sequence[tuple[str, KnownPrices, KnownPrices]]) -> Correction:
    _, one, other = days[0]
    place = next(place for place in (_CLOSE, 0, 1) if not _is_same(one[place], other[place]))
    ratios = [_ratio(then[_CLOSE], now[_CLOSE]) for _, then, now in days]
    alike = bool(np.allclose(ratios, ratios[0], rtol=_SAME_FACTOR, atol=0.0)) and not _is_same(ratios[0], 1.0)
    factor = float(np.median(ratios)) if alike and len(days) > 1 else None
    return Correction(symbol, tuple(date for date, _, _ in days), _NAMES[place], one[place], other[place], factor)


def _is_same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _SAME_PRICE * abs(one)
