"""From rows as they were read to prices that can be relied on, one day at a time.

Every decision about a day uses that day and earlier ones of the same symbol, never later ones: a cleaned price would
have been the same on the evening of its day.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.bars import Repeats
from eigen_core.market.days import PriceRows, refuse_longer_bars
from eigen_core.market.report import DataReport, SymbolHistory, UniverseAudit
from eigen_core.market.stamps import Days
from eigen_core.market.suspicious import SuspiciousRow, suspicious_prices
from eigen_core.market.vendors import PRICE_ROLES, Role

# Numbers outside of these are errors of the source; inside, no indicator overflows.
SMALLEST_PRICE, LARGEST_PRICE = 1e-12, 1e15
_LARGE_MOVE = 2.0

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class CleanPrices:
    """Daily prices of all symbols.

    Attributes:
        days: datetime64[D] `[days]`, increasing.
        symbols: names; the `assets` tradable ones first.
        assets: number of tradable symbols.
        open: float64 `[days, symbols]`, NaN where unknown.
        high, low, close: float64 `[days, symbols]`, positive, NaN where the symbol has no price on the day; low is at
            most, high at least open and close.
        volume: float64 `[days, symbols]`, not negative, on the scale of the prices, NaN where unknown.
        has_range, has_volume: the source has highs and lows, has volumes.
        own: float64 `[days, symbols]` of each numeric column beside prices, by heading, NaN where unknown.
    """

    days: Days
    symbols: tuple[str, ...]
    assets: int
    open: Grid
    high: Grid
    low: Grid
    close: Grid
    volume: Grid
    has_range: bool
    has_volume: bool
    own: Mapping[str, Grid]

    @property
    def suspended(self) -> NDArray[np.bool_]:
        """Days on which nothing is traded although there is a price, bool `[days, symbols]`.

        Their volume is zero. A symbol whose volume is never above zero has none (currencies, many indices).
        """
        has_volume = (self.volume > 0.0).any(axis=0)
        suspended: NDArray[np.bool_] = (self.volume == 0.0) & has_volume & ~np.isnan(self.close)
        return suspended


@dataclass(frozen=True)
class _Raw:
    """Cells on a grid of days and symbols as they were read, and what was counted on the way."""

    days: Days
    symbols: tuple[str, ...]
    cells: dict[Role, Grid]
    own: dict[str, Grid]
    counts: dict[str, int]
    twice: tuple[SuspiciousRow, ...]


def clean_prices(
    rows: PriceRows,
    source: str,
    context: Sequence[str],
    first_date: str | None = None,
    last_date: str | None = None,
) -> tuple[CleanPrices, DataReport]:
    """Clean prices and report what was found and done.

    Args:
        rows: of all files.
        source: name of the source, for messages.
        context: symbols that are not tradable; they come last, in this order.
        first_date, last_date: days before, after them are left out, as if the source did not hold them; None: none.

    Raises:
        InputError: no symbol has a usable price, a context symbol is not there, none is left to trade, or the bars are
            weekly or longer.
    """
    raw = _on_grid(_between(rows, first_date, last_date, source), source)
    counts = dict(raw.counts)
    cells = _usable(raw.cells, counts)
    volume = cells["volume"]
    cells, factor = _adjusted(cells, counts)
    cells = _repaired(cells, counts)
    unpriced = np.isnan(cells["close"]).all(axis=0)
    dropped = tuple(raw.symbols[position] for position in np.flatnonzero(unpriced))
    if len(dropped) == len(raw.symbols):
        raise InputError(
            f"{source} holds no usable price of any symbol ({', '.join(dropped[:6])}): give closes above zero."
        )
    order = _column_order(raw.symbols, dropped, tuple(dict.fromkeys(context)), source)
    symbols = tuple(raw.symbols[position] for position in order)
    assets = len(symbols) - len(set(context))
    refuse_longer_bars(raw.days, ~np.isnan(cells["close"][:, order[:assets]]), symbols[:assets], source)
    prices = CleanPrices(
        days=raw.days,
        symbols=symbols,
        assets=assets,
        open=cells["open"][:, order],
        high=cells["high"][:, order],
        low=cells["low"][:, order],
        close=cells["close"][:, order],
        volume=(volume / factor)[:, order],
        has_range=_is_known(raw.cells["high"]) and _is_known(raw.cells["low"]),
        has_volume=bool((volume > 0.0).any()),
        own={name: grid[:, order] for name, grid in raw.own.items()},
    )
    if not _is_known(raw.cells["open"]):
        counts["missing_opens"] = 0
    if not prices.has_range:
        counts["derived_highs"] = counts["derived_lows"] = 0
    report = DataReport(
        source=source,
        layout=rows.layout,
        days=len(raw.days),
        first_day=str(raw.days[0]),
        last_day=str(raw.days[-1]),
        symbols=_histories(prices),
        universe=UniverseAudit.of(raw.days, assets, prices.close, factor[:, order]),
        suspicious=(*rows.found, *raw.twice, *suspicious_prices(raw.days, raw.symbols, raw.cells, cells)),
        large_moves=_large_moves(prices.close),
        suspended_days=int(prices.suspended.sum()),
        dropped_symbols=dropped,
        ignored_columns=rows.ignored,
        ignored_files=(),
        own_features=(),
        look_ahead=(),
        time_zone="",
        **counts,
    )
    return prices, report


def _between(rows: PriceRows, first: str | None, last: str | None, source: str) -> PriceRows:
    """Return the rows of the days from `first` to `last`."""
    if first is None and last is None:
        return rows
    kept = rows.between(first, last)
    if len(rows.days) and not len(kept.days):
        raise InputError(
            f"{source} holds no day from {first or 'its first'} to {last or 'its last'}, but days from "
            f"{rows.days.min()} to {rows.days.max()}: change market.first_date or market.last_date."
        )
    return kept


def _on_grid(rows: PriceRows, source: str) -> _Raw:
    if not len(rows.codes):
        raise InputError(f"{source} has no row with a date and a symbol: give dates as YYYY-MM-DD, and a symbol.")
    present = np.flatnonzero(np.bincount(rows.codes, minlength=len(rows.symbols)))
    symbols = tuple(rows.symbols[code] for code in present)
    codes = np.searchsorted(present, rows.codes)
    values = [*rows.prices.items(), *rows.own.items()]
    # A row without a price says nothing against another one.
    priced = np.logical_or.reduce([~np.isnan(column) for column in rows.prices.values()])
    repeated, twice = _repeated(codes, rows.days, values, priced, symbols)
    days, day_codes = np.unique(rows.days, return_inverse=True)
    cells = {role: np.full((len(days), len(symbols)), np.nan) for role in PRICE_ROLES}
    cell = (day_codes * len(symbols) + codes)[priced]
    for role, column in rows.prices.items():
        cells[role].ravel()[cell] = column[priced]
    own = {name: np.full((len(days), len(symbols)), np.nan) for name in rows.own}
    for name, column in rows.own.items():
        own[name].ravel()[cell] = np.where(np.abs(column) <= LARGEST_PRICE, column, np.nan)[priced]
    informed = np.zeros(len(days), dtype=np.bool_)
    for role in ("open", "high", "low", "close"):
        informed |= ~np.isnan(cells[role]).all(axis=1)
    if not informed.any():
        raise InputError(f"{source} holds no usable price of any symbol: give closes above zero.")
    repeated = repeated // len(symbols) if rows.layout == "wide" else repeated
    return _Raw(
        days=days[informed],
        symbols=symbols,
        cells={role: grid[informed] for role, grid in cells.items()},
        own={name: grid[informed] for name, grid in own.items()},
        counts={
            "files": 1,
            "rows": len(rows.codes),
            **rows.counts,
            "duplicate_rows": repeated + rows.counts.get("duplicate_rows", 0),
            "empty_days": int((~informed).sum()),
        },
        twice=twice,
    )


def _repeated(
    codes: NDArray[np.intp],
    days: Days,
    rows: Sequence[tuple[str, NDArray[np.float64]]],
    priced: NDArray[np.bool_],
    symbols: tuple[str, ...],
) -> tuple[int, tuple[SuspiciousRow, ...]]:
    """Count rows whose symbol and day come again with the same prices, and name those that say something else."""
    repeats = Repeats.of(codes, days)
    if not repeats.rows.size:
        return 0, ()
    with_price = Repeats.of(codes[priced], days[priced])
    found: dict[tuple[int, str], str] = {}
    for name, column in rows:
        values = column[priced]
        for position in np.flatnonzero(with_price.differing(values)):
            before, row = with_price.rows[position - 1], with_price.rows[position]
            detail = f"{name} {values[before]:g} and {values[row]:g}"
            found.setdefault((int(codes[priced][row]), str(days[priced][row])), detail)
    twice = tuple(SuspiciousRow("twice", symbols[code], day, detail) for (code, day), detail in sorted(found.items()))
    return int((~repeats.starts).sum()) - len(twice), twice


def _usable(cells: dict[Role, Grid], counts: dict[str, int]) -> dict[Role, Grid]:
    """Take prices that cannot be right as missing."""
    usable: dict[Role, Grid] = {}
    unusable = 0
    for role, grid in cells.items():
        given = ~np.isnan(grid)
        lowest = 0.0 if role == "volume" else SMALLEST_PRICE
        right = given & (grid >= lowest) & (grid <= LARGEST_PRICE)
        usable[role] = np.where(right, grid, np.nan)
        unusable += int((given & ~right).sum())
    counts["unusable_prices"] = unusable
    return usable


def _adjusted(cells: dict[Role, Grid], counts: dict[str, int]) -> tuple[dict[Role, Grid], Grid]:
    """Bring prices to the scale of the adjusted close, where there is one; return them and the factors.

    A day without an adjusted close takes the factor of the symbol's last day that has one, before the first of them 1.
    A vendor rescales the whole past at each split and dividend: ratios of prices do not change by it, levels do.
    """
    close = cells["close"]
    own = cells["adjusted_close"] / close
    known = ~np.isnan(own)
    last = np.where(known, np.arange(len(own))[:, None], -1)
    np.maximum.accumulate(last, axis=0, out=last)
    factor = np.where(last >= 0, np.take_along_axis(own, np.maximum(last, 0), axis=0), 1.0)
    priced = ~np.isnan(close)
    counts["adjusted_prices"] = int((priced & (last >= 0)).sum())
    counts["carried_adjustments"] = int((priced & ~known & (last >= 0)).sum())
    scaled: dict[Role, Grid] = {role: cells[role] * factor for role in ("open", "high", "low")}
    scaled["close"] = np.where(np.isnan(cells["adjusted_close"]), close * factor, cells["adjusted_close"])
    return scaled, factor


def _repaired(cells: dict[Role, Grid], counts: dict[str, int]) -> dict[Role, Grid]:
    """Keep prices of days with a close alone, and highs and lows that hold open and close between them."""
    close = cells["close"]
    priced = ~np.isnan(close)
    opened, high, low = (np.where(priced, cells[role], np.nan) for role in ("open", "high", "low"))
    larger, smaller = np.fmax(opened, close), np.fmin(opened, close)
    counts["missing_opens"] = int((priced & np.isnan(opened)).sum())
    counts["derived_highs"] = int((priced & np.isnan(high)).sum())
    counts["derived_lows"] = int((priced & np.isnan(low)).sum())
    # Scaling rounds: a high at the close may come out a hair below it, which is no error of the source.
    counts["repaired_highs"] = int((high < larger * (1.0 - 1e-12)).sum())
    counts["repaired_lows"] = int((low > smaller * (1.0 + 1e-12)).sum())
    return {"open": opened, "high": np.fmax(high, larger), "low": np.fmin(low, smaller), "close": close}


def _column_order(
    symbols: tuple[str, ...], dropped: tuple[str, ...], context: tuple[str, ...], source: str
) -> list[int]:
    """Return the positions of the columns of the panel: tradable ones, then context."""
    kept = [symbol for symbol in symbols if symbol not in set(dropped)]
    for symbol in context:
        if symbol in dropped:
            raise InputError(f"The context symbol '{symbol}' has no usable price in {source}: correct it or drop it.")
        if symbol not in kept:
            near = difflib.get_close_matches(symbol, kept, n=1, cutoff=0.5) or kept[:5]
            raise InputError(
                f"market.context names '{symbol}', which is not in {source}: did you mean {' or '.join(near)}?"
            )
    tradable = [symbol for symbol in kept if symbol not in set(context)]
    if not tradable:
        raise InputError(
            f"market.context names every symbol of {source} that has a price: leave at least one to be traded."
        )
    position = {symbol: index for index, symbol in enumerate(symbols)}
    return [position[symbol] for symbol in (*tradable, *context)]


def _histories(prices: CleanPrices) -> tuple[SymbolHistory, ...]:
    priced = ~np.isnan(prices.close)
    first = priced.argmax(axis=0)
    last = len(priced) - 1 - priced[::-1].argmax(axis=0)
    valid = priced.sum(axis=0)
    return tuple(
        SymbolHistory(
            symbol=symbol,
            first_day=str(prices.days[first[column]]),
            last_day=str(prices.days[last[column]]),
            valid_days=int(valid[column]),
            gap_days=int(last[column] - first[column] + 1 - valid[column]),
            tradable=column < prices.assets,
        )
        for column, symbol in enumerate(prices.symbols)
    )


def _large_moves(close: Grid) -> int:
    moves = 0
    for column in close.T:
        known = column[~np.isnan(column)]
        ratio = known[1:] / known[:-1]
        moves += int(((ratio > _LARGE_MOVE) | (ratio < 1.0 / _LARGE_MOVE)).sum())
    return moves


def _is_known(grid: Grid) -> bool:
    return bool((~np.isnan(grid)).any())
