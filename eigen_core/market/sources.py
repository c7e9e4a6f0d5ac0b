"""The rows of price files: of which symbol and day each is, and its prices."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.days import Days
from eigen_core.market.files import Source, unreadable
from eigen_core.market.intraday import (
    REFUSED,
    Instants,
    Intraday,
    are_clearly_days,
    are_within_days,
    on_exchange_clock,
)
from eigen_core.market.midnights import Readings, trading_days
from eigen_core.market.repeats import Repeats
from eigen_core.market.spellings import PRICE_ROLES, Role, is_closing, names_fields, plain
from eigen_core.market.tables import Table, read_table


@dataclass(frozen=True)
class PriceRows:
    """Rows of prices, one a symbol and day, as they stand in a file.

    Attributes:
        layout: `long` or `wide`.
        symbols: names, in the file's order if it is wide, else sorted.
        codes: intp `[rows]`, which of `symbols` a row is about.
        days: datetime64[D] `[rows]`.
        prices: float64 `[rows]` of each role that the file has, NaN where a cell is missing.
        read: rows of the file.
        undated: rows of the file that were left out, for they have no date or no symbol.
        unsorted: rows of the file that lie before the preceding row of their symbol.
        moved: rows whose UTC stamp was the evening before their trading day.
        ignored: headings of unused columns, and keys of unused partitions.
        instants: datetime64[s] `[rows]`, on the exchange's clock, of bars within days; None: the rows are of days.
        bars: bars within days that the rows were formed of; 0: the file has rows of days.
        repeated: bars that came again with the same prices, counted once.
        file_symbol: whose prices they are if no column or heading names a symbol: the file's name; empty: it is none.
        own: float64 `[rows]` of each numeric column beside prices, by heading, NaN where a cell is missing.
    """

    layout: str
    symbols: tuple[str, ...]
    codes: NDArray[np.intp]
    days: Days
    prices: dict[Role, NDArray[np.float64]]
    read: int
    undated: int
    unsorted: int
    moved: int
    ignored: tuple[str, ...]
    instants: Instants | None = None
    bars: int = 0
    repeated: int = 0
    file_symbol: str = ""
    own: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def between(self, first: str | None, last: str | None) -> "PriceRows":
        """Return the rows of the days from `first` to `last`, both included; None: no bound."""
        kept = np.ones(len(self.days), dtype=np.bool_)
        if first is not None:
            kept &= self.days >= np.datetime64(first)
        if last is not None:
            kept &= self.days <= np.datetime64(last)
        prices = {role: values[kept] for role, values in self.prices.items()}
        own = {name: values[kept] for name, values in self.own.items()}
        return replace(self, codes=self.codes[kept], days=self.days[kept], prices=prices, own=own)


@dataclass
class _Earlier:
    """What the files of a source that were read so far say of stamps, for parts of a table that are too short to judge.

    Attributes:
        times_of_days: seconds at which they have rows of days.
        readings: which days their evening stamps in UTC are of.
    """

    times_of_days: set[int] = field(default_factory=set)
    readings: Readings = field(default_factory=dict)


def read_source(source: Source, intraday: Intraday = REFUSED, *, own_columns: bool = False) -> Iterator[PriceRows]:
    """Read the files of `source`, one after another.

    Args:
        source: the files.
        intraday: what becomes of bars within days. Where days are to be formed, a day's bars may be in several files:
            rows with a time of day or a time zone are bars then, unless a symbol's rows are clearly of days.
        own_columns: read the numeric columns beside prices too.

    Raises:
        InputError: a file cannot be read, changed since it was found, or holds what is no price.
    """
    earlier = _Earlier()
    for file in source.files:
        try:
            content = file.path.read_bytes()
        except OSError as error:
            raise InputError(unreadable(file.path, error)) from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise InputError(f"{file.path} changed while it was read: start again when it is complete.")
        table = read_table(content, file.form, str(file.path), file.partition)
        if table.headings.layout == "wide":
            rows = _wide_rows(table, intraday, earlier)
        else:
            rows = _long_rows(table, file.symbol, intraday, earlier, own_columns)
        unused = tuple(key for key, _ in file.partition if key not in table.names)
        yield replace(rows, file_symbol=file.symbol, ignored=(*rows.ignored, *unused))


def _wide_rows(table: Table, intraday: Intraday, earlier: _Earlier) -> PriceRows:
    days, moved, instants = _days_of_rows(table, np.zeros(table.rows, dtype=np.intp), intraday, earlier)
    closes = np.stack([table.numbers(position) for position, _ in table.headings.symbols], axis=1)
    dated = ~np.isnat(days)
    days, closes = days[dated], closes[dated]
    symbols = tuple(symbol for _, symbol in table.headings.symbols)
    return PriceRows(
        layout="wide",
        symbols=symbols,
        codes=np.tile(np.arange(len(symbols)), len(days)),
        days=np.repeat(days, len(symbols)),
        prices={"close": closes.ravel()},
        read=table.rows,
        undated=int(table.rows - dated.sum()),
        unsorted=int((days[1:] < days[:-1]).sum()),
        moved=moved,
        ignored=(),
        instants=None if instants is None else np.repeat(instants[dated], len(symbols)),
    )


def _long_rows(table: Table, file_symbol: str, intraday: Intraday, earlier: _Earlier, own_columns: bool) -> PriceRows:
    roles = dict(table.headings.roles)
    if "symbol" in roles:
        names = table.texts("symbol")
    elif not file_symbol:
        raise InputError(
            f"{table.where} has no column of symbols, and is named like a part of a table: name the file by its "
            "symbol, or give it a column symbol."
        )
    else:
        names = pd.Series(np.full(table.rows, file_symbol, dtype=object), dtype="str")
    codes, found = pd.factorize(names, sort=True)
    days, moved, instants = _days_of_rows(table, codes, intraday, earlier)
    prices: dict[Role, NDArray[np.float64]] = {
        role: table.numbers(roles[role]) for role in PRICE_ROLES if role in roles
    }
    _refuse_unused_keys(table, names, codes, days if instants is None else instants)
    own = table.own_columns() if own_columns else ()
    complete = ~np.isnat(days) & (names != "").to_numpy(dtype=np.bool_)
    codes, days = codes[complete], days[complete]
    return PriceRows(
        layout="long",
        symbols=tuple(str(name) for name in found),
        codes=codes,
        days=days,
        prices={role: values[complete] for role, values in prices.items()},
        read=table.rows,
        undated=int(table.rows - complete.sum()),
        unsorted=_unsorted(codes, days),
        moved=moved,
        ignored=tuple(table.names[position] for position in table.headings.ignored if position not in own),
        instants=None if instants is None else instants[complete],
        own={table.names[position].strip(): table.numbers(position)[complete] for position in own},
    )


def _days_of_rows(
    table: Table, codes: NDArray[np.intp], intraday: Intraday, earlier: _Earlier
) -> tuple[Days, int, Instants | None]:
    """Return the trading day of each row, how many were moved, and the instants on the exchange's clock of bars.

    None instead of instants: these are no bars within days.

    Raises:
        InputError: they are, and days are not to be formed of them, or cannot be.
    """
    stamps = table.stamps()
    zoned = intraday.aggregate and not np.isnan(stamps.offsets).all()
    if not stamps.seconds.any() and not zoned:
        return stamps.days, 0, None
    within_days = are_within_days(codes, stamps)
    daily = np.zeros(0, dtype=np.intp)
    if intraday.aggregate:
        daily = np.flatnonzero(are_clearly_days(codes, stamps, earlier.times_of_days))
    if within_days and daily.size:
        raise InputError(
            f"{table.location(int(daily[0]))} is of a symbol with one row a day, and others have bars within days: "
            "give it in a file of its own."
        )
    earlier.times_of_days.update(np.unique(stamps.seconds[daily]).tolist())
    are_bars = within_days or (intraday.aggregate and not daily.size)
    days, moved = (stamps.days, 0) if are_bars else trading_days(stamps, codes, table.where, earlier.readings)
    differing = Repeats.of(codes, days).difference(stamps.seconds)
    if intraday.aggregate and (are_bars or differing is not None):
        instants = on_exchange_clock(stamps, intraday.time_zone, table.where)
        return instants.astype("datetime64[D]"), 0, instants
    if differing is not None:
        one, other = (str(np.timedelta64(stamps.seconds[row], "s").item()) for row in differing)
        raise InputError(
            f"{table.location(differing[1])}: several rows of {days[differing[1]]}, at {one} and {other}: these are "
            "bars within a day: give one row a symbol and day, or set market.intraday=aggregate to form days of them."
        )
    return days, moved, None


def _refuse_unused_keys(table: Table, names: "pd.Series[str]", codes: NDArray[np.intp], days: Days) -> None:
    """Refuse rows of one symbol and day, or instant, that differ in an unused column: it may be part of the symbol."""
    repeats = Repeats.of(codes, days)
    for position in table.headings.ignored:
        _refuse_other_fields(table, position)
        differing = repeats.difference(table.columns[position])
        if differing is not None:
            one, other = (str(table.columns[position].iloc[row]) for row in differing)
            raise InputError(
                f"{table.location(differing[1])}: '{names.iloc[differing[1]]}' has several rows on "
                f"{days[differing[1]]}, with '{one}' and '{other}' under '{table.names[position]}': if these are "
                "symbols, name the column symbol; if not, leave one row a symbol and day."
            )


def _refuse_other_fields(table: Table, position: int) -> None:
    """Refuse a column by which the prices of some rows are not closes."""
    if names_fields(table.names[position]):
        fields = [str(cell) for cell in table.columns[position].dropna().unique()]
        other = next((field for field in fields if not is_closing(plain(field))), None)
        if other is not None:
            raise InputError(
                f"{table.where} has '{other}' under '{table.names[position]}', so not all rows are closes: give one "
                "row a symbol and day, with a column for each of open, high, low, close and volume."
            )


def _unsorted(codes: NDArray[np.intp], days: Days) -> int:
    """Count rows that lie before the preceding row of their symbol."""
    order = np.argsort(codes, kind="stable")
    codes, days = codes[order], days[order]
    return int(((codes[1:] == codes[:-1]) & (days[1:] < days[:-1])).sum())
