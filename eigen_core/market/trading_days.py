"""Trading days: rows of price files become one row per day, and the days on which the market of each asset is open."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.config import MarketConfig
from eigen_core.market.bars import are_bars, form_bars
from eigen_core.market.calendars import calendar_of
from eigen_core.market.formats import PRICE_ROLES, SATURDAY, SUNDAY, Days, Role, dates_of, weekdays_of
from eigen_core.market.reading import OWN, FileRows
from eigen_core.market.report import SuspiciousRow

Grid = NDArray[np.float64]

_DAYS_TO_JUDGE_BY = 10
_TRADES_OF_A_WEEK, _TRADES_TO_KNOW = 25, 10
_ROUNDING, _SOME_DAYS = 1e-9, 0.05
_MONDAY, _FRIDAY = 0, 4
_BARS = {"weekly": range(6, 9), "monthly": range(26, 34), "quarterly": range(85, 96)}


@dataclass(frozen=True)
class PriceRows:
    """Rows of daily prices of all files (layout: `long`, `wide` or `folder`); rows may repeat a day of a symbol.

    Attributes:
        codes, days: `[rows]` each: index into `symbols`, intp, and day, datetime64[D], or end of a bar, datetime64[s].
        prices, own: float64 `[rows]` by role (close, volume, ...), and by heading of other columns; NaN if missing.
        files: names of the files of each symbol.
        counts: values of fields of `DataReport`, by name.
        ignored: headings of unused columns, and keys of unused partitions (folders `key=value`).
        found: suspicious rows that were dropped.
    """

    layout: str
    symbols: tuple[str, ...]
    codes: NDArray[np.intp]
    days: Days
    prices: dict[Role, NDArray[np.float64]]
    own: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    found: tuple[SuspiciousRow, ...] = ()

    def filter(self, rows: NDArray[np.bool_]) -> "PriceRows":
        prices = {role: values[rows] for role, values in self.prices.items()}
        own = {name: values[rows] for name, values in self.own.items()}
        return replace(self, codes=self.codes[rows], days=self.days[rows], prices=prices, own=own)

    def without(self, suspicious: Sequence[SuspiciousRow]) -> "PriceRows":
        """Drop the days in `suspicious`."""
        kept = np.ones(len(self.days), dtype=np.bool_)
        for row in suspicious:
            kept &= (self.codes != self.symbols.index(row.symbol)) | (self.days != np.datetime64(row.day))
        left_out = tuple(replace(row, left_out=True) for row in suspicious)
        return replace(self.filter(kept), found=(*self.found, *left_out))

    def between(self, first: str | None, last: str | None) -> "PriceRows":
        """Return the rows from `first` to `last`, which are dates or ends of bars; None: unbounded."""
        begin, end = np.datetime64(first or "0001-01-01"), np.datetime64(last or "9999-12-31")
        after, before = (self.days if bound.dtype == "datetime64[s]" else dates_of(self.days) for bound in (begin, end))
        return self.filter((after >= begin) & (before <= end))


def rows_of_days(parts: Sequence[FileRows], market: MarketConfig, where: str) -> PriceRows:
    """Join the rows of all files (`parts`, one per file), and make bars of the length `market.bar`.

    Raises:
        InputError: symbols are missing or differ only in case, timestamps do not determine the day, or `form_bars`
            refuses intraday bars. The message names the source, `where`.
    """
    symbols = _symbols(parts, market, where)
    codes = {symbol: code for code, symbol in enumerate(symbols)}
    files: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for part in parts:
        for symbol in part.symbols:
            files[symbol] += (part.name,)
    tables = []
    for part in parts:
        times, time_zone = part.rows["timestamp"], market.time_zone
        if time_zone is None and part.vendor is not None and (times != times.dt.normalize()).any():
            time_zone = part.vendor.time_zone
        own = np.array([codes.get(symbol, -1) for symbol in part.symbols], dtype=np.intp)[part.rows["code"]]
        tables.append(part.rows.assign(code=own, local=_to_time_zone(part.rows, time_zone)))
    rows = pd.concat(tables, ignore_index=True)
    del tables
    if (rows["code"] < 0).any():
        rows = rows[rows["code"] >= 0]
    rows = rows.assign(utc=_to_utc(rows), day=rows["local"].dt.normalize())
    calendar = calendar_of(market, rows["day"].to_numpy())
    if calendar is not None and rows["offset"].isna().any():
        rows["utc"] = rows["utc"].where(rows["offset"].notna(), calendar.to_utc(rows["utc"]))
    counts: dict[str, Any] = {"files": len(parts), "rows": sum(part.read for part in parts)}
    counts["undated_rows"] = sum(part.undated for part in parts)
    found: tuple[SuspiciousRow, ...] = ()
    has_bars, day = are_bars(rows), rows["day"]
    # Only the last day's rows have a time of day. An hour from midnight in UTC, the exchange's clock may have changed.
    time, hour = rows["local"] - day, pd.Timedelta(hours=1)
    is_changed = (rows["offset"] == 0.0) & (rows["local"] == rows["timestamp"]) & time.isin([hour, 23 * hour])
    is_unfinished = ((rows["local"] != day) & ~is_changed) == (day == day.max())
    unfinished = str(day.max().date()) if is_unfinished.all() else ""
    unit = "D"
    if has_bars:
        formed = form_bars(rows, symbols, parts, market, where)
        rows, unfinished, found = formed.rows, formed.unfinished, formed.found
        counts |= {"bars": formed.bars, "duplicate_rows": formed.repeated, "time_zone": market.time_zone or ""}
        counts |= {"bar": formed.length, "bar_stamp": formed.stamp, "irregular_bars": formed.irregular}
        unit = "D" if formed.length == "1d" else "s"
    elif market.session == "regular":
        raise InputError(f"{where} has daily rows, of which market.session=regular leaves out none: leave it out.")
    elif market.bar not in ("auto", "1d"):
        raise InputError(f"{where} has daily rows, of which bars of {market.bar} cannot be made: leave market.bar out.")
    # Only bars can be kept: a panel of daily rows that are kept has the fingerprint of one that refuses some.
    if unfinished and not (has_bars and market.suspicious == "keep") and (rows["day"] < unfinished).any():
        rows = rows[rows["day"] < unfinished]
        found += (SuspiciousRow("unfinished", "", unfinished, left_out=True),)
    if has_bars:
        counts["formed_days"] = len(rows)
    else:
        zoned = rows["offset"].notna()
        unplaced = (rows["offset"] == 0.0) & (rows["local"] == rows["timestamp"]) & (rows["local"] != rows["day"])
        if unplaced.any() and market.time_zone is None:
            raise InputError(
                f"{where} has daily timestamps in UTC that are not at midnight, such as "
                f"{rows['local'][unplaced].iloc[0].isoformat()}, so their days are ambiguous: set market.time_zone to "
                "the exchange's, such as America/New_York."
            )
        _refuse_shifted_weeks(rows["day"], market.time_zone, bool(zoned.any()), where)
    return PriceRows(
        layout="folder" if len(parts) > 1 else parts[0].layout,
        symbols=symbols,
        codes=rows["code"].to_numpy(),
        days=rows["day"].to_numpy().astype(f"datetime64[{unit}]"),
        prices={role: rows[role].to_numpy() for role in PRICE_ROLES if role in rows},
        own={name.removeprefix(OWN): rows[name].to_numpy() for name in map(str, rows) if name.startswith(OWN)},
        files=dict(files),
        counts=counts,
        ignored=tuple(dict.fromkeys(name for part in parts for name in part.ignored)),
        found=found,
    )


def _to_utc(timestamps: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """Return column `timestamp` in UTC; it is unchanged where `offset` (seconds ahead of UTC) is NaN, no time zone."""
    if timestamps["offset"].isna().all():
        return timestamps["timestamp"]
    return timestamps["timestamp"] - timestamps["offset"].fillna(0.0).astype(np.int64).astype("timedelta64[s]")


def _to_time_zone(timestamps: pd.DataFrame, time_zone: str | None) -> "pd.Series[pd.Timestamp]":
    """Return column `timestamp` in `time_zone`; it is unchanged if that is None, and where `offset` is NaN."""
    if time_zone is None:
        return timestamps["timestamp"]
    local = _to_utc(timestamps).dt.tz_localize("UTC").dt.tz_convert(time_zone).dt.tz_localize(None)
    return timestamps["timestamp"].where(timestamps["offset"].isna(), local)


def _symbols(parts: Sequence[FileRows], market: MarketConfig, where: str) -> tuple[str, ...]:
    wanted = {*market.symbols, *market.context} if market.symbols else None
    found = dict.fromkeys(
        symbol
        for part in parts
        for symbol, rows in zip(part.symbols, np.bincount(part.rows["code"], minlength=len(part.symbols)), strict=True)
        if rows and (wanted is None or symbol in wanted)
    )
    if missing := sorted(set(market.symbols) - found.keys()):
        raise InputError(f"market.symbols names '{missing[0]}', which is not in {where}: correct or remove it.")
    if not found:
        raise InputError(f"{where} has no row with a date and a symbol: give dates as YYYY-MM-DD, and a symbol.")
    alike = {symbol: normalize("NFKC", symbol).casefold() for symbol in found}
    spelled = {key: symbol for symbol, key in alike.items()}
    if wanted is None and len(spelled) < len(found):
        one = next(symbol for symbol in found if spelled[alike[symbol]] != symbol)
        raise InputError(
            f"{where} has the symbols '{one}' and '{spelled[alike[one]]}', which differ only in case or Unicode form: "
            "if they are one symbol, write both alike; otherwise list all symbols to read in market.symbols."
        )
    return tuple(found) if any(part.layout == "wide" for part in parts) else tuple(sorted(found))


def _refuse_shifted_weeks(dates: "pd.Series[pd.Timestamp]", time_zone: str | None, zoned: bool, where: str) -> None:
    """Raise `InputError` if weeks are Tuesday to Saturday, or Sunday to Thursday in a time zone: they are shifted."""
    days = np.unique(dates.to_numpy().astype("datetime64[D]"))
    counts = np.bincount(weekdays_of(days), minlength=7)
    regular = (4 * counts >= counts.max()) & (len(days) >= _DAYS_TO_JUDGE_BY)
    if regular[SATURDAY] and not regular[_MONDAY] and not regular[SUNDAY]:
        advice = "add `--set market.time_zone=America/New_York`" if time_zone is None else "leave market.time_zone out"
        raise InputError(
            f"{where} has days from Tuesday to Saturday, so its timestamps mark the end of a day, or are of another "
            f"time zone: {advice if zoned else 'give the dates of the exchange'}."
        )
    if time_zone is not None and regular[SUNDAY] and not regular[_FRIDAY] and not regular[SATURDAY]:
        raise InputError(
            f"{where} has days from Sunday to Thursday in {time_zone}, so its timestamps are dates, or of an exchange "
            "in another time zone: do not set market.time_zone, or set it to that exchange's."
        )


def refuse_longer_bars(days: Days, known: NDArray[np.bool_], symbols: Sequence[str], source: str) -> None:
    """Raise `InputError` if most symbols have weekly or rarer prices; `known`, bool `[days, symbols]`: has a price."""
    if days.dtype != "datetime64[D]":
        return
    spacings: dict[str, int] = {}
    for symbol, column in zip(symbols, known.T, strict=True):
        gaps = np.diff(days[column]).astype(np.int64)
        if len(gaps) >= _DAYS_TO_JUDGE_BY:
            usual = float(np.median(gaps))
            regular = ((gaps >= 0.8 * usual) & (gaps <= 1.25 * usual)).mean() >= 0.8
            spacings[symbol] = round(usual) if regular else 0
    longer = {symbol: spacing for symbol, spacing in spacings.items() if spacing > 1}
    if 2 * len(longer) > len(spacings):
        spacing = int(np.median(list(longer.values())))
        name = next((each for each, days_of in _BARS.items() if spacing in days_of), f"{spacing}-day")
        raise InputError(
            f"{source}: most rows of {len(longer)} of {len(symbols)} symbols, such as '{next(iter(longer))}', are "
            f"about {spacing} days apart, like {name} bars. Holding days, windows and annual metrics count trading "
            "days: give daily bars."
        )


def known_volumes(prices: Mapping[Role, Grid], volume: Grid, closes: Grid) -> tuple[Grid, NDArray[np.bool_]]:
    """Return volumes that are zero only on days without a trade, and the days whose volume of zero contradicts prices.

    Nothing traded on a day if the volume is zero and open, high, low and close equal the last close. Where the volume
    is zero but one of them differs, the symbol traded, and its volume is unknown (NaN).

    Args:
        prices: float64 `[days, symbols]` by role (open, high, low, close): a bar without gaps, NaN on days without one.
        volume, closes: volumes; closes as in the files, which a dividend does not change; both as `prices`.
    """
    contradicted = np.zeros(volume.shape, dtype=np.bool_)
    for column in np.flatnonzero((volume == 0.0).any(axis=0)):
        own = np.flatnonzero(~np.isnan(prices["close"][:, column]))
        flat = prices["high"][own, column] <= prices["low"][own, column] * (1.0 + _ROUNDING)
        each = np.stack([prices["close"][own, column], closes[own, column]])
        same = np.abs(np.diff(each, prepend=each[:, :1])) <= _ROUNDING * each
        contradicted[own, column] = (volume[own, column] == 0.0) & ~(flat & same.any(axis=0))
    return np.where(contradicted, np.nan, volume), contradicted


def sessions_of(priced: NDArray[np.bool_], traded: NDArray[np.bool_], dates: Days) -> NDArray[np.bool_]:
    """Return the days on which the market of each asset is open (its sessions), bool `[days, assets]`.

    The market of asset A is open on a day on which A trades, or on which some asset B has a price, if the weekdays of B
    are all weekdays of A. So a Saturday is no session of a stock in a file with coins, even if the stock's last close
    is repeated there without volume, and the days on which a stock alone is halted are sessions.

    The weekdays of an asset on a day are those of its last 25 days of trading that are also among its next 25; of one
    side alone if the other has fewer than 10. So they change on the day on which an exchange changes its week. An
    exchange publishes its calendar in advance; which days an asset trades on is used in its place, and no price is.

    Of bars within a day, B counts only if the hours in which it trades on some days (5 %) are all such hours of A.

    Args:
        priced: bool `[days, assets]`, the asset has a price.
        traded: bool `[days, assets]`, the asset has a price and trades.
        dates: datetime64[D] `[days]`, or the ends of bars.
    """
    days, first, day = np.unique(dates_of(dates), return_index=True, return_inverse=True)
    within = len(days) < len(dates)
    of_asset = _weekdays(np.logical_or.reduceat(traded, first) if within else traded, days)[day]
    today = np.left_shift(1, weekdays_of(dates)).astype(np.uint8)[:, None]
    priced = priced & ((of_asset & today) > 0)
    hours = [_hours(column, dates) if within else frozenset[int]() for column in traded.T]
    sessions = traded.copy()
    for own in set(hours):
        assets = np.array([one == own for one in hours])
        others = np.array([one <= own for one in hours])
        found, masks = priced[:, others], of_asset[:, others]
        for some in np.unique(masks[found]):
            is_open = (found & (masks == some)).any(axis=1, keepdims=True)
            sessions[:, assets] |= is_open & ((some & ~of_asset[:, assets]) == 0)
    return sessions


def _hours(traded: NDArray[np.bool_], ends: Days) -> frozenset[int]:
    """Return the hours of the day in which an asset trades on at least 5 % of its days."""
    begun = (ends[traded] - np.timedelta64(1, "s")).astype("datetime64[h]")
    hours = np.unique(begun)
    counts = np.bincount(hours.astype(np.int64) % 24, minlength=24)
    return frozenset(np.flatnonzero(counts >= _SOME_DAYS * len(np.unique(dates_of(ends[traded])))).tolist())


def _weekdays(traded: NDArray[np.bool_], dates: Days) -> NDArray[np.uint8]:
    """Return the weekdays of each asset on each day (see `sessions_of`) as a sum of powers of 2, `[days, assets]`."""
    weekday = weekdays_of(dates)
    before = np.cumsum(traded, axis=0, dtype=np.int32)
    after = before[-1:] - before + traded
    of_asset = np.zeros(traded.shape, np.uint8)
    for one in np.unique(weekday):
        own = traded & (weekday == one)[:, None]
        # Days of trading since the last, and until the next, one on this weekday.
        since = before - np.maximum.accumulate(np.where(own, before, -_TRADES_OF_A_WEEK), axis=0)
        until = after - np.maximum.accumulate(np.where(own, after, -_TRADES_OF_A_WEEK)[::-1], axis=0)[::-1]
        past, future = since < _TRADES_OF_A_WEEK, until < _TRADES_OF_A_WEEK
        known = (past | future) & (past | (before < _TRADES_TO_KNOW)) & (future | (after < _TRADES_TO_KNOW))
        of_asset |= np.where(known, np.uint8(1 << one), np.uint8(0))
    return of_asset
