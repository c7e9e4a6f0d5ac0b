"""Turn rows into clean daily prices of all symbols, and find suspicious prices. Cleaning a day uses no later days."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.text import percent
from eigen_core.market.formats import BAR, Days, Role
from eigen_core.market.report import DataReport, SuspiciousKind, SuspiciousRow, SymbolHistory, UniverseAudit
from eigen_core.market.trading_days import PriceRows, known_volumes, refuse_longer_bars

Grid = NDArray[np.float64]
_Finding = tuple[SuspiciousKind, int, str, str]  # kind, position of the day, prices as text, suggested event

_WHOLE = (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 50, 100)
_SPLITS = (Fraction(3, 2), *map(Fraction, _WHOLE), *(Fraction(1, new) for new in _WHOLE))
_SPLIT_MOVES = -np.log([float(ratio) for ratio in _SPLITS])
_SPLIT_TOLERANCE, _SPLIT_DEVIATIONS = 0.03, 10.0
_DAYS_AROUND, _FEWEST_DAYS_AROUND, _STALE_DAYS = 20, 5, 10
_SPIKE, _BACK, _SPIKE_DAYS = 3.0, 1.5, 3
_OPENS_AT, _IN_RANGE = 1.05, 1.001  # tolerances of an open beside the last close, and of a close in its bar's range
_JUMP, _LARGE, _LAST_LOSS, _LATE_FACTOR = 5.0, 2.0, 0.99, 1.02
SMALLEST_PRICE = 1e-12
"""The smallest price, and that of a symbol which is worth nothing. No indicator overflows from here to 1e15."""
_LARGEST_PRICE = 1e15


@dataclass(frozen=True)
class CleanPrices:
    """Daily prices of all symbols, float64 `[days, symbols]`, NaN if unknown.

    Attributes:
        days: datetime64[D] `[days]`, increasing.
        symbols: names; the first `assets` symbols are tradable.
        high, low, close: known on the same days; low is at most, high at least open and close.
        volume: not negative, divided by the factor (adjusted close / close) that prices were multiplied by; NaN where
            it is zero although the price moved, and zero only without a trade; see `known_volumes`.
        has_range, has_volume: the files have highs and lows; they have volumes above zero.
        own: values of the files' other numeric columns, by heading.
        levels: values of `market.levels` by symbol, float64 `[days]`; their closes are 1 where these are known.
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
    levels: Mapping[str, Grid] = field(default_factory=dict)

    @cached_property
    def traded(self) -> NDArray[np.bool_]:
        """Days with a price on which a symbol traded, bool `[days, symbols]`: all until its first volume above zero."""
        return _traded(self.close, self.volume)


def prices_fingerprint(prices: CleanPrices) -> str:
    """Return the SHA-256 of the prices: of the same days and values in another file, it is the same."""
    own, levels = prices.own, prices.levels
    names = prices.symbols, prices.assets, prices.has_range, prices.has_volume, tuple(own), tuple(levels)
    digest = hashlib.sha256(repr(names).encode())
    grids = (prices.open, prices.high, prices.low, prices.close, prices.volume)
    for values in (prices.days, *grids, *own.values(), *levels.values()):
        digest.update(np.ascontiguousarray(values).view(np.uint8).data)
    return digest.hexdigest()


def _traded(close: Grid, volume: Grid) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(close) & ~((volume == 0.0) & np.logical_or.accumulate(volume > 0.0, axis=0)))


def clean_prices(
    rows: PriceRows, source: str, context: Sequence[str], levels: Sequence[str] = ()
) -> tuple[CleanPrices, DataReport]:
    """Clean the rows of all files; return prices and a report. Symbols of `context` come last and are not tradable;
    those of `levels` are no prices, and any number is right.

    Raises:
        InputError: no symbol has a usable price, a symbol of `context` is missing, none is left to trade, or prices
            are weekly or rarer. The message names the `source` (file or folder).
    """
    present = np.flatnonzero(np.bincount(rows.codes))
    symbols = tuple(rows.symbols[code] for code in present)
    rows = replace(rows, symbols=symbols, codes=np.searchsorted(present, rows.codes))
    # A row without prices does not conflict with another row of its day.
    priced_rows = np.logical_or.reduce([~np.isnan(column) for column in rows.prices.values()])
    repeated, conflicts = _repeated_rows(rows, priced_rows)
    days, raw, own = _grids(rows, priced_rows)
    # Keep days with any price in the source, even an invalid one.
    given = np.logical_or.reduce([(~np.isnan(grid)).any(axis=1) for role, grid in raw.items() if role != "volume"])
    days, raw = days[given], {role: grid[given] for role, grid in raw.items()}
    level_values: dict[str, Grid] = {}
    for column, symbol in enumerate(rows.symbols):
        if symbol in levels:
            values = np.where(np.abs(raw["close"][:, column]) <= _LARGEST_PRICE, raw["close"][:, column], np.nan)
            for role, grid in raw.items():
                grid[:, column] = np.where(np.isnan(values) | (role not in BAR), np.nan, 1.0)
            level_values[symbol] = values
    lowest = {role: 0.0 if role == "volume" else SMALLEST_PRICE for role in raw}
    usable = {
        role: np.where((grid >= lowest[role]) & (grid <= _LARGEST_PRICE), grid, np.nan) for role, grid in raw.items()
    }
    counts: dict[str, Any] = {"files": 1, "rows": len(rows.codes), "duplicate_rows": 0, **rows.counts}
    counts["duplicate_rows"] += repeated // len(rows.symbols) if rows.layout == "wide" else repeated
    counts["empty_days"] = int((~given).sum())
    counts["unusable_prices"] = sum(int((np.isnan(usable[role]) & ~np.isnan(raw[role])).sum()) for role in raw)
    has = {role for role, grid in raw.items() if not np.isnan(grid).all()}
    closes = usable["close"]
    bars, volume, factor = _clean_bars(usable, counts)
    volume, contradicted = known_volumes(bars, volume, closes)
    traded, priced = _traded(bars["close"], volume), ~np.isnan(bars["close"])
    suspicious = (*rows.found, *conflicts, *suspicious_prices(days, rows.symbols, raw, bars, traded))
    del raw
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
        levels=level_values,
    )
    if "open" not in has:
        counts["missing_opens"] = 0
    if not prices.has_range:
        counts["derived_highs"] = counts["derived_lows"] = 0
    share = contradicted.sum(axis=0) / np.maximum(priced.sum(axis=0), 1)
    report = DataReport(
        source=source,
        layout=rows.layout,
        days=len(days),
        first_day=str(days[0]),
        last_day=str(days[-1]),
        symbols=_histories(prices),
        universe=UniverseAudit.of(days, assets, prices.close, factor[:, order], prices.traded),
        suspicious=tuple(row for row in suspicious if row.symbol not in levels or row.kind != "stale"),
        levels=tuple(level_values),
        suspended_days=int((~prices.traded & ~np.isnan(prices.close)).sum()),
        unknown_volumes=tuple(f"{rows.symbols[one]} ({percent(share[one])})" for one in np.flatnonzero(share)),
        dropped_symbols=tuple(rows.symbols[position] for position in np.flatnonzero(~has_price)),
        ignored_columns=rows.ignored,
        **counts,
    )
    return prices, report


def _grids(rows: PriceRows, priced: NDArray[np.bool_]) -> tuple[Days, dict[Role, Grid], dict[str, Grid]]:
    """Return all days, and grids `[days, symbols]` of prices and of other numeric columns, from the `priced` rows."""
    days, day_codes = np.unique(rows.days, return_inverse=True)
    shape = len(days), len(rows.symbols)
    cell = (day_codes * shape[1] + rows.codes)[priced]

    def grid(column: Grid) -> Grid:
        values = np.full(shape, np.nan)
        values.ravel()[cell] = column[priced]
        return values

    own = {name: np.where(np.abs(column) <= _LARGEST_PRICE, column, np.nan) for name, column in rows.own.items()}
    prices = {role: grid(column) for role, column in rows.prices.items()}
    return days, prices, {name: grid(column) for name, column in own.items()}


def _repeated_rows(rows: PriceRows, priced: NDArray[np.bool_]) -> tuple[int, tuple[SuspiciousRow, ...]]:
    """Return the number of duplicate rows with equal prices; and of each symbol and day the first unequal price.

    The day can be dropped unless one of its closes is far below the close before, and the next close, if any, as well.
    """
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
    closes = pd.DataFrame({"code": rows.codes, "day": rows.days, "close": rows.prices["close"]})[priced]
    of_days = closes.groupby(["code", "day"])["close"].agg(["min", "last"])
    last = of_days["last"].groupby("code")
    following = last.shift(-1)
    # Nothing shows yet whether the price of the last day comes back.
    back = np.where(following.isna(), _OPENS_AT, _BACK)
    falls = of_days.index[np.fmax(of_days["min"], following) * back < last.shift()]
    kept = {(code, str(day.date())) for code, day in falls}
    twice = [
        SuspiciousRow("twice", rows.symbols[key[0]], key[1], words, event="keep" if key in kept else "drop")
        for key, words in sorted(found.items())
    ]
    return int(again.sum()) - len(found), tuple(twice)


def _clean_bars(cells: dict[Role, Grid], counts: dict[str, int]) -> tuple[dict[Role, Grid], Grid, Grid]:
    """Scale prices to the adjusted close, if there is one; return bars, volumes and adjustment factors.

    The factor is adjusted close / close; a day without an adjusted close takes the symbol's last factor, or 1 before
    its first. Prices of days without a close are dropped, and highs and lows are widened to open and close. `counts`
    gets the numbers of corrections. `cells` is emptied, to free memory.
    """
    # Pop one after the other to free their memory.
    close = cells.pop("close")
    unknown = np.full(close.shape, np.nan)
    adjusted = cells.pop("adjusted_close", unknown)
    factor = unknown if adjusted is unknown else pd.DataFrame(adjusted / close).ffill().to_numpy()
    scaled = ~np.isnan(close) & ~np.isnan(factor)
    counts["adjusted_prices"] = int(scaled.sum())
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
    """Return positions in `symbols` of those with a price, tradable ones first, and the number of tradable ones."""
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
            f"market.context names '{symbol}', which {source} lacks: name symbols that it has, perhaps "
            f"{' or '.join(near)}."
        )
    if not (tradable := [symbol for symbol in position if symbol not in context]):
        raise InputError(
            f"market.context names every symbol of {source} that has a price: remove those that agents should trade."
        )
    return [position[symbol] for symbol in (*tradable, *context)], len(tradable)


def _histories(prices: CleanPrices) -> tuple[SymbolHistory, ...]:
    histories = []
    for column, (symbol, close, traded) in enumerate(zip(prices.symbols, prices.close.T, prices.traded.T, strict=True)):
        own = np.flatnonzero(~np.isnan(close))
        begin, end = np.flatnonzero(traded)[[0, -1]] if traded.any() else own[[0, -1]]
        gaps = int(np.isnan(close[begin:end]).sum())
        first, last = str(prices.days[begin]), str(prices.days[end])
        histories.append(SymbolHistory(symbol, first, last, len(own), gaps, column < prices.assets))
    return tuple(histories)


def suspicious_prices(
    days: Days, symbols: Sequence[str], raw: Mapping[Role, Grid], prices: Mapping[Role, Grid], traded: NDArray[np.bool_]
) -> Iterator[SuspiciousRow]:
    """Find suspicious prices; `raw` (from the files) and `prices` (clean) are float64 `[days, symbols]` by role.

    Days that are not `traded` (bool `[days, symbols]`) have no price of their own. No change is suspicious that its row
    proves: the bar joins the last close (it opens there, or its range contains it), its range contains the close, and
    the file has its high and low, or a volume above zero.
    """
    for column, symbol in enumerate(symbols):
        given, clean = ({role: grid[:, column] for role, grid in each.items()} for each in (raw, prices))
        closes, unknown = given["close"], np.full(len(days), np.nan)
        volume = given.get("volume", unknown)
        own = np.flatnonzero(traded[:, column])
        for role, values in ((role, given[role]) for role in BAR if role in raw):
            wrong = (values <= SMALLEST_PRICE) | (values > _LARGEST_PRICE)
            # Vendors write zeros on days without trading.
            for row in np.flatnonzero(wrong if role == "close" else wrong & (volume != 0.0)).tolist():
                kind: SuspiciousKind = "not positive" if role == "close" else "unusable"
                comes_back = row < own.max(initial=-1) or volume[row] == 0.0
                detail = f"{role} {values[row]:g}".removeprefix("close ")
                yield SuspiciousRow(kind, symbol, str(days[row]), detail, event="drop" if comes_back else "keep")
        opened, high, low, close = (clean[role][own] for role in BAR)
        before = np.concatenate([close[:1], close[:-1]])
        proved = (opened <= before * _OPENS_AT) & (opened * _OPENS_AT >= before) | (low <= before) & (before <= high)
        top, bottom = (given[role][own] if role in raw else unknown[own] for role in ("high", "low"))
        proved &= ~((top > 0.0) & (closes[own] > top * _IN_RANGE)) & ~(closes[own] * _IN_RANGE < bottom)
        proved &= (volume[own] > 0.0) | ~np.isnan(top + bottom)
        # A volume of zero proves nothing, but does not make a price wrong.
        joined = proved & ~((volume[own] == 0.0) & (volume > 0.0).any())
        late = _late(given["adjusted_close"][own], closes[own]) if "adjusted_close" in raw else ()
        for kind, place, detail, event in (*_of_bars(opened, high, low, close, proved, joined), *late):
            yield SuspiciousRow(kind, symbol, str(days[own[place]]), detail, event=event)


def _of_bars(
    opened: Grid, high: Grid, low: Grid, close: Grid, proved: NDArray[np.bool_], joined: NDArray[np.bool_]
) -> Iterator[_Finding]:
    before = np.concatenate([close[:1], close[:-1]])
    spikes: list[int] = []
    # Changes by a factor of three that one of the next closes reverts.
    for row in np.flatnonzero(_is_changed(close, before, _SPIKE)).tolist():
        # The reversal is not a spike itself.
        if not spikes or row - 1 != spikes[-1]:
            later = np.abs(np.log(close[row + 1 : row + 1 + _SPIKE_DAYS] / before[row])) <= np.log(_BACK)
            end = row + 1 + int(later.argmax()) if later.any() else row
            spikes += () if end == row or proved[row] or proved[end] else range(row, end)
    for row in spikes:
        yield "spike", row, f"close {close[row]:g} after {close[max(row - 1, 0)]:g}", "drop"
    for role, values in (("open", opened), ("high", high), ("low", low)):
        far = (values >= _SPIKE * np.maximum(close, before)) | (values <= np.minimum(close, before) / _SPIKE)
        for row in set(np.flatnonzero(far).tolist()) - set(spikes):
            # To leave out the row would also leave out a fall of its close.
            event = "drop" if close[row] * (_BACK if row + 1 < len(close) else 1.0) >= before[row] else "keep"
            yield "spike", row, f"{role} {values[row]:g}, close {close[row]:g}", event
    for finding in _jumps(np.where(np.isnan(opened), close, opened), close, joined):
        if finding[1] not in spikes and finding[1] - 1 not in spikes:
            yield finding
    if len(close) > 1 and not joined[-1] and not (1.0 - _LAST_LOSS) * close[-2] < close[-1] < _JUMP * close[-2]:
        event = "ends" if close[-1] > close[-2] else "keep"
        yield "last day", len(close) - 1, f"{close[-2]:g} to {close[-1]:g}", event
    for row in np.flatnonzero(joined & _is_changed(close, before, _LARGE)).tolist():
        yield "proved", row, f"{before[row]:g} to {close[row]:g}", "keep"
    starts = np.flatnonzero(np.diff(close, prepend=np.nan) != 0.0)
    for row, length in zip(starts.tolist(), np.diff(starts, append=len(close)).tolist(), strict=True):
        if length >= _STALE_DAYS:
            yield "stale", row, f"{length:,} days", "keep"


def _is_changed(values: Grid, before: Grid, factor: float) -> NDArray[np.bool_]:
    return np.asarray((values >= before * factor) | (values * factor <= before))


def _jumps(first: Grid, close: Grid, joined: NDArray[np.bool_]) -> Iterator[_Finding]:
    """Find changes of the close that no row proves (`joined`, by row): by a factor of two or more, or like a split.

    The change from the close to `first`, the next open (or close), is like a split if it is within 3 % of a split's
    ratio, and that of the closes reaches ten standard deviations of the daily log returns around it: the larger of
    those of the 20 days before and the 20 days after, of which most must have a changed close. Before the last day, a
    split by two or more or a factor of 5 is a jump, not a move.
    """
    after = np.stack([first[1:], close[1:]])
    large = _is_changed(after, close[:-1], 1.5 * np.exp(-_SPLIT_TOLERANCE)).any(axis=0)
    for move in np.flatnonzero(large & ~joined[1:]).tolist():
        distances = np.abs(np.log(first[move + 1] / close[move]) - _SPLIT_MOVES)
        split = _SPLITS[int(distances.argmin())] if distances.min() <= _SPLIT_TOLERANCE else None
        begin = max(move - _DAYS_AROUND, 0)
        moves = np.diff(np.log(close[begin : move + _DAYS_AROUND + 2]))
        sides = moves[: move - begin], moves[move - begin + 1 :]
        # Exclude other changes of scale, such as a reversal.
        small = (side[np.abs(side) < np.log(_SPIKE)] for side in sides)
        around = [side for side in small if len(side) >= _FEWEST_DAYS_AROUND]
        deviation, size = max((side.std() for side in around), default=np.inf), abs(moves[move - begin])
        # Closes that do not change before a jump are stale.
        changing = all(np.median(np.abs(side)) for side in around)
        is_split = split is not None and changing and size >= _SPLIT_DEVIATIONS * deviation
        if is_split or size >= np.log(_LARGE):
            before, now = close[move], close[move + 1]
            is_split &= split is not None and max(split, 1 / split) >= _LARGE
            # On the last day nothing shows whether it is permanent.
            stays = (is_split or size >= np.log(_JUMP)) and move + 2 < len(close)
            detail, event = f"{before:g} to {now:g}", "keep" if now < before else "renamed"
            if split is not None:
                ratio = f"{split.numerator}:{split.denominator}"
                detail, event = f"{detail}, {ratio}", f"split {ratio}"
            yield "jump" if stays else "move", move + 1, detail, event


def _late(adjusted: Grid, close: Grid) -> Iterator[_Finding]:
    """Find the day of the first adjusted close, if closes begin earlier and it differs from its close by over 2 %."""
    factor = np.where((adjusted > 0.0) & (close > 0.0), adjusted, np.nan) / np.where(close > 0.0, close, np.nan)
    known = np.flatnonzero(~np.isnan(factor))
    if len(known) and known[0] > 0 and not 1.0 / _LATE_FACTOR < factor[known[0]] < _LATE_FACTOR:
        yield "adjusted late", int(known[0]), f"{factor[known[0]]:.3f} of the close", "renamed"
