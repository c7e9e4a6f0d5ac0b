"""From rows of files to rows of trading days."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.advice import settings_to_add
from eigen_core.market.bars import are_bars_within_days, form_days
from eigen_core.market.reading import FileRows
from eigen_core.market.stamps import Days, Stamps, likely_zone, on_clock, weekdays_of
from eigen_core.market.suspicious import SuspiciousRow
from eigen_core.market.vendors import PRICE_ROLES, Role

_OWN = "own column "
_DAYS_TO_JUDGE_BY = 10
_MONDAY, _FRIDAY, _SATURDAY, _SUNDAY = 0, 4, 5, 6
_NAMES_OF_BARS = {"weekly": (6, 8), "monthly": (26, 33), "quarterly": (85, 95)}


@dataclass(frozen=True)
class PriceRows:
    """Rows of prices, one a symbol and day.

    Attributes:
        layout: `long`, `wide` or `folder`.
        symbols: names.
        codes: intp `[rows]`, which of `symbols` a row is about.
        days: datetime64[D] `[rows]`.
        prices: float64 `[rows]` of each role that the files have, NaN where a cell is missing.
        own: float64 `[rows]` of each numeric column beside prices, by heading, NaN where a cell is missing.
        files: names of the files of each symbol.
        counts: of rows and files, under the names that `DataReport` has.
        ignored: headings of unused columns, and keys of unused partitions.
        found: suspicious rows that are not among these any more.
    """

    layout: str
    symbols: tuple[str, ...]
    codes: NDArray[np.intp]
    days: Days
    prices: dict[Role, NDArray[np.float64]]
    own: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    found: tuple[SuspiciousRow, ...] = ()

    def kept(self, rows: NDArray[np.bool_]) -> "PriceRows":
        """Return some rows."""
        prices = {role: values[rows] for role, values in self.prices.items()}
        own = {name: values[rows] for name, values in self.own.items()}
        return replace(self, codes=self.codes[rows], days=self.days[rows], prices=prices, own=own)

    def without(self, suspicious: Sequence[SuspiciousRow]) -> "PriceRows":
        """Return the rows without suspicious days, and without all days before a change of the scale."""
        kept = np.ones(len(self.days), dtype=np.bool_)
        for row in suspicious:
            own, day = self.codes == self.symbols.index(row.symbol), np.datetime64(row.day)
            kept &= ~(own & (self.days < day if row.ends_a_scale else self.days == day))
        left_out = tuple(replace(row, left_out=True) for row in suspicious)
        return replace(self.kept(kept), found=(*self.found, *left_out))

    def between(self, first: str | None, last: str | None) -> "PriceRows":
        """Return the rows of the days from `first` to `last`, both included; None: no bound."""
        rows = np.ones(len(self.days), dtype=np.bool_)
        if first is not None:
            rows &= self.days >= np.datetime64(first)
        if last is not None:
            rows &= self.days <= np.datetime64(last)
        return self.kept(rows)


def rows_of_days(parts: Sequence[FileRows], names: Sequence[str], market: MarketConfig, where: str) -> PriceRows:
    """Return the rows of all files as those of days.

    Args:
        parts: rows of each file.
        names: of the files.
        market: names the symbols, the exchange's time zone, and what becomes of bars within days.
        where: the source, for messages.

    Raises:
        InputError: symbols differ in case alone; stamps may be of two days; or there are bars within days, and days are
            not to be formed of them, or cannot be.
    """
    symbols = _symbols(parts, market, where)
    position = {symbol: code for code, symbol in enumerate(symbols)}
    files: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for part, name in zip(parts, names, strict=True):
        for symbol in part.symbols:
            files[symbol] += (name,)
    codes = np.concatenate(
        [np.array([position.get(s, -1) for s in part.symbols], dtype=np.intp)[part.codes] for part in parts]
    )
    kept = codes >= 0

    def joined(columns: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64]:
        whole = [np.full(len(part.codes), np.nan) for part in parts]
        return np.concatenate([own if column is None else column for column, own in zip(columns, whole, strict=True)])[
            kept
        ]

    roles = [role for role in PRICE_ROLES if any(role in part.prices for part in parts)]
    values: dict[str, NDArray[np.float64]] = {role: joined([part.prices.get(role) for part in parts]) for role in roles}
    own = dict.fromkeys(name for part in parts for name in part.own)
    # A column of the data may be called like a price.
    values |= {f"{_OWN}{name}": joined([part.own.get(name) for part in parts]) for name in own}
    stamps = Stamps(
        *(np.concatenate([getattr(part.stamps, name) for part in parts])[kept] for name in ("instants", "offsets"))
    )
    local = np.concatenate([on_clock(part.stamps, _zone_of(part, market)) for part in parts])[kept]
    codes = codes[kept]
    counts = {
        "files": len(parts),
        "rows": sum(part.read for part in parts),
        "undated_rows": sum(part.undated for part in parts),
        "unsorted_rows": sum(_unsorted(part) for part in parts),
    }
    days = local.astype("datetime64[D]")
    found: tuple[SuspiciousRow, ...] = ()
    zoned = ~np.isnan(stamps.offsets)
    if are_bars_within_days(codes, stamps.utc, days):
        _require_days_of_bars(codes, stamps, days, market, where)
        bars = form_days(codes, symbols, stamps.utc, local, values, where)
        codes, days, values = bars.codes, bars.days, bars.values
        if bars.unfinished and market.suspicious != "keep":
            finished = days < np.datetime64(bars.unfinished)
            codes, days = codes[finished], days[finished]
            values = {name: column[finished] for name, column in values.items()}
            found = (SuspiciousRow("unfinished", "", bars.unfinished, left_out=True),)
        counts |= {"bars": bars.bars, "formed_days": len(codes), "duplicate_rows": bars.repeated}
    elif zoned.any():
        unplaced = zoned & (stamps.offsets == 0.0) & (local == stamps.instants) & (local != days)
        if unplaced.any() and market.time_zone is None:
            raise InputError(
                f"{where} has stamps of days in UTC that are not at midnight, as {local[unplaced][0]}, so nothing says "
                f"which days they are of{settings_to_add({'time_zone': likely_zone(stamps.at(zoned))})}"
            )
        refuse_shifted_weeks(days[zoned], market.time_zone, where)
    return PriceRows(
        layout="folder" if len(parts) > 1 else parts[0].layout,
        symbols=symbols,
        codes=codes,
        days=days,
        prices={role: values[role] for role in roles},
        own={name: values[f"{_OWN}{name}"] for name in own},
        files=dict(files),
        counts=counts,
        ignored=tuple(dict.fromkeys(name for part in parts for name in part.ignored)),
        found=found,
    )


def _symbols(parts: Sequence[FileRows], market: MarketConfig, where: str) -> tuple[str, ...]:
    """Return the symbols that are read, in the order of wide files, else sorted."""
    wanted = {*market.symbols, *market.context} if market.symbols else None
    found = dict.fromkeys(
        symbol
        for part in parts
        for symbol, rows in zip(part.symbols, np.bincount(part.codes, minlength=len(part.symbols)), strict=True)
        if rows and (wanted is None or symbol in wanted)
    )
    if not found:
        raise InputError(f"{where} has no row with a date and a symbol: give dates as YYYY-MM-DD, and a symbol.")
    if missing := sorted(set(market.symbols) - found.keys()):
        raise InputError(f"market.symbols names '{missing[0]}', which is not in {where}: correct it or leave it out.")
    spelled: dict[str, str] = {}
    for symbol in found:
        other = spelled.setdefault(symbol.casefold(), symbol)
        if other != symbol and wanted is None:
            raise InputError(
                f"{where} has the symbols '{other}' and '{symbol}', which differ in case alone: write both alike if "
                "they are one, or name all symbols that are to be read in market.symbols."
            )
    return tuple(found) if any(part.layout == "wide" for part in parts) else tuple(sorted(found))


def _zone_of(part: FileRows, market: MarketConfig) -> str | None:
    """Return the time zone by which a file's stamps become days: what is named, or its vendor's for midnights."""
    if market.time_zone is not None or part.vendor is None or not len(part.codes):
        return market.time_zone
    at_midnight = part.stamps.instants == part.stamps.instants.astype("datetime64[D]")
    return None if at_midnight.all() else part.vendor.time_zone


def _unsorted(part: FileRows) -> int:
    """Count rows that lie before the preceding row of their symbol; a row of a wide file counts once."""
    instants = part.stamps.instants
    if part.layout == "wide":
        rows = instants[:: len(part.symbols)]
        return int((rows[1:] < rows[:-1]).sum())
    order = np.argsort(part.codes, kind="stable")
    codes, instants = part.codes[order], instants[order]
    return int(((codes[1:] == codes[:-1]) & (instants[1:] < instants[:-1])).sum())


def _require_days_of_bars(
    codes: NDArray[np.intp], stamps: Stamps, days: Days, market: MarketConfig, where: str
) -> None:
    """Refuse bars within days of which no days are to be formed, or by nothing that is known."""
    found: dict[str, str] = {} if market.intraday == "aggregate" else {"intraday": "aggregate"}
    zoned = ~np.isnan(stamps.offsets)
    if market.time_zone is None and (stamps.offsets == 0.0).any():
        found["time_zone"] = likely_zone(stamps.at(stamps.offsets == 0.0))
    if found:
        raise InputError(
            f"{where} has bars within days: give daily bars, or have days formed of them, from midnight to midnight on "
            f"the exchange's clock{settings_to_add(found)}"
        )
    if market.time_zone is not None and not zoned.all():
        raise InputError(
            f"{where} has bars within days without a time zone, which may be on the exchange's clock or in UTC: leave "
            "market.time_zone out in the first case, and write the stamps with +00:00 in the second."
        )
    rows = pd.DataFrame({"code": codes, "day": days, "instant": stamps.utc}).drop_duplicates().groupby("code")
    daily = rows.size()[(rows.size() == rows["day"].nunique()) & (rows.size() >= _DAYS_TO_JUDGE_BY)]
    if len(daily):
        raise InputError(
            f"{where} has symbols with one row a day beside others with bars within days: give one kind of them alone, "
            "or name the symbols to be read in market.symbols."
        )


def refuse_shifted_weeks(days: Days, time_zone: str | None, where: str) -> None:
    """Refuse weeks from Tuesday to Saturday, and by a time zone from Sunday to Thursday: the days are others."""
    counts = np.bincount(weekdays_of(np.unique(days)), minlength=7)
    regular = 4 * counts >= counts.max()
    if len(np.unique(days)) < _DAYS_TO_JUDGE_BY:
        return
    if regular[_SATURDAY] and not regular[_MONDAY] and not regular[_SUNDAY]:
        advice = "add `--set market.time_zone=America/New_York`" if time_zone is None else "leave market.time_zone out"
        raise InputError(
            f"{where} has days from Tuesday to Saturday, so its stamps in UTC are those of the end of a day: {advice}."
        )
    if time_zone is not None and regular[_SUNDAY] and not regular[_FRIDAY] and not regular[_SATURDAY]:
        raise InputError(
            f"{where} has days from Sunday to Thursday in {time_zone}, so its stamps are dates, or on another "
            "exchange's clock: leave market.time_zone out, or name that exchange's."
        )


def refuse_longer_bars(days: Days, known: NDArray[np.bool_], symbols: Sequence[str], source: str) -> None:
    """Refuse prices of which most symbols have one row a week, a month, or any other number of days above one.

    Gaps of daily prices are not regular: their days follow each other after one day, but for weekends.

    Args:
        days: datetime64[D] `[days]`, increasing.
        known: bool `[days, symbols]`, there is a price.
        symbols: names.
        source: the name of the source, for messages.

    Raises:
        InputError: over half of the symbols with enough rows are such.
    """
    spacings = {
        symbol: spacing
        for symbol, column in zip(symbols, known.T, strict=True)
        if (spacing := _spacing(np.diff(days[column]).astype(np.int64))) is not None
    }
    longer = {symbol: spacing for symbol, spacing in spacings.items() if spacing > 1}
    if not longer or 2 * len(longer) <= len(spacings):
        return
    usual = int(np.median(list(longer.values())))
    name = next((name for name, (low, high) in _NAMES_OF_BARS.items() if low <= usual <= high), f"{usual}-day")
    raise InputError(
        f"{source}: most rows of {len(longer)} of {len(symbols)} symbols, '{next(iter(longer))}' first, follow each "
        f"other after about {usual} days: these look like {name} bars. Holding days, windows and yearly figures count "
        "trading days: give daily bars."
    )


def _spacing(gaps: NDArray[np.int64]) -> int | None:
    """Return by how many days most rows follow each other, 0 if they do so irregularly; None: too few rows to judge."""
    if len(gaps) < _DAYS_TO_JUDGE_BY:
        return None
    usual = float(np.median(gaps))
    near = (gaps >= 0.8 * usual) & (gaps <= 1.25 * usual)
    return round(usual) if near.mean() >= 0.8 else 0
