"""Clean rows to daily prices of all symbols. Decisions about a day never use later days."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.market.dates import Days
from eigen_core.market.layouts import BAR, Role
from eigen_core.market.report import DataReport, SymbolHistory, UniverseAudit
from eigen_core.market.suspicious import LARGEST_PRICE, SMALLEST_PRICE, SuspiciousRow, suspicious_prices
from eigen_core.market.trading_days import PriceRows, refuse_longer_bars

_LARGE_MOVE = 2.0

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class CleanPrices:
    """Daily prices of all symbols, float64 `[days, symbols]`, NaN if unknown.

    Attributes:
        days: datetime64[D] `[days]`, increasing.
        symbols: names; the first `assets` symbols are tradable.
        high, low, close: known on the same days; low is at most, high at least open and close.
        volume: not negative, divided by the adjustment factor of the prices.
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
        """Days with a price and zero volume, bool `[days, symbols]`; none of symbols without volumes (currencies)."""
        has_volume = (self.volume > 0.0).any(axis=0)
        return np.asarray((self.volume == 0.0) & has_volume & ~np.isnan(self.close))


def clean_prices(rows: PriceRows, source: str, context: Sequence[str]) -> tuple[CleanPrices, DataReport]:
    """Clean the rows of all files; return prices, with `context` last and not tradable, and a report.

    Raises:
        InputError: no symbol has a usable price, a context symbol is missing, none is left to trade, or the bars are
            weekly or longer. The message names the `source`.
    """
    present = np.flatnonzero(np.bincount(rows.codes))
    symbols = tuple(rows.symbols[code] for code in present)
    rows = replace(rows, symbols=symbols, codes=np.searchsorted(present, rows.codes))
    # A row without prices does not conflict with another row of its day.
    priced_rows = np.logical_or.reduce([~np.isnan(column) for column in rows.prices.values()])
    repeated, conflicts = _repeated_rows(rows, priced_rows)
    days, raw, own = _grids(rows, priced_rows)
    # Keep days with any price in the source, even an invalid one.
    given = np.logical_or.reduce([(~np.isnan(raw[role])).any(axis=1) for role in BAR if role in raw])
    days, raw = days[given], {role: grid[given] for role, grid in raw.items()}
    usable = {
        role: np.where((grid >= (0.0 if role == "volume" else SMALLEST_PRICE)) & (grid <= LARGEST_PRICE), grid, np.nan)
        for role, grid in raw.items()
    }
    counts: dict[str, Any] = {"files": 1, "rows": len(rows.codes), "duplicate_rows": 0, **rows.counts}
    counts["duplicate_rows"] += repeated // len(rows.symbols) if rows.layout == "wide" else repeated
    counts["empty_days"] = int((~given).sum())
    counts["unusable_prices"] = sum(int((np.isnan(usable[role]) & ~np.isnan(raw[role])).sum()) for role in raw)
    has = {role for role, grid in raw.items() if not np.isnan(grid).all()}
    bars, volume, factor = _clean_bars(usable, counts)
    suspicious = (*rows.found, *conflicts, *suspicious_prices(days, rows.symbols, raw, bars))
    del raw
    priced = ~np.isnan(bars["close"])
    has_price = np.asarray(priced.any(axis=0))
    order, assets = _column_order(rows.symbols, has_price, dict.fromkeys(context), source)
    symbols = tuple(rows.symbols[position] for position in order)
    refuse_longer_bars(days, priced[:, order[:assets]], symbols[:assets], source)
    prices = CleanPrices(
        days=days,
        symbols=symbols,
        assets=assets,
        **{role: grid[:, order] for role, grid in bars.items()},
        volume=volume[:, order],
        has_range={"high", "low"} <= has,
        has_volume=bool((volume > 0.0).any()),
        own={name: grid[given][:, order] for name, grid in own.items()},
    )
    if "open" not in has:
        counts["missing_opens"] = 0
    if not prices.has_range:
        counts["derived_highs"] = counts["derived_lows"] = 0
    histories, large_moves = _histories(prices)
    report = DataReport(
        source=source,
        layout=rows.layout,
        days=len(days),
        first_day=str(days[0]),
        last_day=str(days[-1]),
        symbols=histories,
        universe=UniverseAudit.of(days, assets, prices.close, factor[:, order]),
        suspicious=suspicious,
        large_moves=large_moves,
        suspended_days=int(prices.suspended.sum()),
        dropped_symbols=tuple(rows.symbols[position] for position in np.flatnonzero(~has_price)),
        ignored_columns=rows.ignored,
        **counts,
    )
    return prices, report


def _grids(rows: PriceRows, priced: NDArray[np.bool_]) -> tuple[Days, dict[Role, Grid], dict[str, Grid]]:
    """Return all days, and grids `[days, symbols]` of the prices and of the other columns of the `priced` rows."""
    days, day_codes = np.unique(rows.days, return_inverse=True)
    shape = len(days), len(rows.symbols)
    cell = (day_codes * shape[1] + rows.codes)[priced]

    def grid(column: Grid) -> Grid:
        values = np.full(shape, np.nan)
        values.ravel()[cell] = column[priced]
        return values

    own = {name: np.where(np.abs(column) <= LARGEST_PRICE, column, np.nan) for name, column in rows.own.items()}
    prices = {role: grid(column) for role, column in rows.prices.items()}
    return days, prices, {name: grid(column) for name, column in own.items()}


def _repeated_rows(rows: PriceRows, priced: NDArray[np.bool_]) -> tuple[int, tuple[SuspiciousRow, ...]]:
    """Count the duplicate rows with the same prices, and return the first difference of each symbol and day."""
    keys = pd.DataFrame({"code": rows.codes, "day": rows.days})
    again = keys.duplicated()
    if not again.any():
        return 0, ()
    keys = keys[priced]
    keys = keys[keys.duplicated(keep=False)].sort_values(["code", "day"], kind="stable")
    later = np.flatnonzero(keys.duplicated())
    found: dict[tuple[int, str], str] = {}
    for name, column in (*rows.prices.items(), *rows.own.items()):
        before, values = column[keys.index[later - 1]], column[keys.index[later]]
        for place in np.flatnonzero((before != values) & ~(np.isnan(before) & np.isnan(values))):
            code, day = keys.iloc[later[place]]
            found.setdefault((code, str(day.date())), f"{name} {before[place]:g} and {values[place]:g}")
    twice = [SuspiciousRow("twice", rows.symbols[code], day, words) for (code, day), words in sorted(found.items())]
    return int(again.sum()) - len(found), tuple(twice)


def _clean_bars(cells: dict[Role, Grid], counts: dict[str, int]) -> tuple[dict[Role, Grid], Grid, Grid]:
    """Scale prices to the adjusted close, if there is one; return bars, volumes and adjustment factors.

    A day without an adjusted close takes the symbol's last factor, 1 before the first. Prices of days without a close
    are dropped, and highs and lows are widened to open and close.
    """
    # Pop one after the other to free their memory.
    close = cells.pop("close")
    unknown = np.full(close.shape, np.nan)
    adjusted = cells.pop("adjusted_close", unknown)
    factor = pd.DataFrame(adjusted / close).ffill().to_numpy()
    scaled = ~np.isnan(close) & ~np.isnan(factor)
    counts["adjusted_prices"] = int(scaled.sum())
    counts["carried_adjustments"] = int((scaled & np.isnan(adjusted)).sum())
    factor = np.where(np.isnan(factor), 1.0, factor)
    close = np.where(np.isnan(adjusted), close * factor, adjusted)
    priced = ~np.isnan(close)
    opened, high, low = (
        np.where(priced, cells.pop(role) * factor, np.nan) if role in cells else unknown for role in BAR[:3]
    )
    for name, values in (("missing_opens", opened), ("derived_highs", high), ("derived_lows", low)):
        counts[name] = int((priced & np.isnan(values)).sum())
    larger, smaller = np.fmax(opened, close), np.fmin(opened, close)
    # Tolerance for the rounding of scaling.
    counts["repaired_highs"] = int((high < larger * (1.0 - 1e-12)).sum())
    counts["repaired_lows"] = int((low > smaller * (1.0 + 1e-12)).sum())
    bars: dict[Role, Grid] = {"open": opened, "high": np.fmax(high, larger), "low": np.fmin(low, smaller)}
    return {**bars, "close": close}, cells.pop("volume", unknown) / factor, factor


def _column_order(
    symbols: tuple[str, ...], has_price: NDArray[np.bool_], context: dict[str, None], source: str
) -> tuple[list[int], int]:
    """Return the positions of the panel's columns, tradable ones first, and the number of tradable ones."""
    position = {symbols[column]: int(column) for column in np.flatnonzero(has_price)}
    if not position:
        raise InputError(
            f"{source} holds no usable price of any symbol ({', '.join(symbols[:6])}): give closes above zero."
        )
    for symbol in context:
        if symbol in position:
            continue
        if symbol in symbols:
            raise InputError(f"The context symbol '{symbol}' has no usable price in {source}: correct or remove it.")
        near = difflib.get_close_matches(symbol, position, n=1, cutoff=0.5) or list(position)[:5]
        raise InputError(
            f"market.context names '{symbol}', which {source} lacks: name its symbols, perhaps {' or '.join(near)}."
        )
    if not (tradable := [symbol for symbol in position if symbol not in context]):
        raise InputError(
            f"market.context names every symbol of {source} that has a price: remove those that agents should trade."
        )
    return [position[symbol] for symbol in (*tradable, *context)], len(tradable)


def _histories(prices: CleanPrices) -> tuple[tuple[SymbolHistory, ...], int]:
    histories, large_moves = [], 0
    for column, (symbol, close) in enumerate(zip(prices.symbols, prices.close.T, strict=True)):
        own = np.flatnonzero(~np.isnan(close))
        ratio = close[own[1:]] / close[own[:-1]]
        large_moves += int(((ratio > _LARGE_MOVE) | (ratio < 1.0 / _LARGE_MOVE)).sum())
        first, last = str(prices.days[own[0]]), str(prices.days[own[-1]])
        gaps = int(own[-1] - own[0]) + 1 - len(own)
        histories.append(SymbolHistory(symbol, first, last, len(own), gaps, column < prices.assets))
    return tuple(histories), large_moves
