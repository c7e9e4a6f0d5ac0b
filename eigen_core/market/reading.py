"""Price files as rows: which column is what is named, or known from all headings; nothing is guessed from the cells."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.advice import advice
from eigen_core.market.cells import MARKERS, Cells, arrow_cells, csv_cells, decompressed
from eigen_core.market.files import Source, SourceFile, symbol_in, unreadable
from eigen_core.market.stamps import Stamps, UnreadableDateError, read_stamps, seconds_of_day
from eigen_core.market.vendors import (
    PRICE_ROLES,
    SPELLINGS,
    Role,
    Vendor,
    is_unnamed,
    own_numbers,
    plain,
    vendor_of,
    visible,
)

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_REPEATED, _CELLS_TO_JUDGE_BY = 0.5, 1_000
_OF_PARTITIONS: tuple[Role, ...] = ("symbol", "date")
_ROW_NUMBERS = frozenset(("index", "id", "row", "rownumber"))


@dataclass(frozen=True)
class FileRows:
    """The rows of one file.

    Attributes:
        layout: `long` or `wide`.
        symbols: names, in the file's order if it is wide, else sorted.
        codes: intp `[rows]`, which of `symbols` a row is about.
        stamps: of the rows.
        prices: float64 `[rows]` of each role that the file has, NaN where a cell is missing.
        own: float64 `[rows]` of each numeric column beside prices, by heading, NaN where a cell is missing.
        read: rows of the file.
        undated: rows of the file that were left out, for they have no date or no symbol.
        ignored: headings of unused columns, and keys of unused partitions.
        vendor: whose layout it is; None: no vendor's.
    """

    layout: str
    symbols: tuple[str, ...]
    codes: NDArray[np.intp]
    stamps: Stamps
    prices: dict[Role, NDArray[np.float64]]
    own: dict[str, NDArray[np.float64]]
    read: int
    undated: int
    ignored: tuple[str, ...]
    vendor: Vendor | None


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are.

    Attributes:
        layout: `long` or `wide`.
        roles: position of each column that is used; of a wide file those of date and time alone.
        symbols: of a wide file, position and name of each symbol's column.
        vendor: whose layout it is; None: no vendor's.
    """

    layout: str
    roles: dict[Role, int]
    symbols: tuple[tuple[int, str], ...] = ()
    vendor: Vendor | None = None


def read_source(source: Source, market: MarketConfig, *, own_columns: bool = False) -> Iterator[FileRows]:
    """Read the files of `source`, one after another.

    Args:
        source: the files.
        market: names layout, columns, formats and symbols.
        own_columns: read the numeric columns beside prices too.

    Raises:
        InputError: a file cannot be read, changed since it was found, or holds what is no price; or what its columns
            are is neither named nor known, with the settings that most likely name it.
    """
    for file in source.files:
        try:
            content = file.path.read_bytes()
        except OSError as error:
            raise InputError(unreadable(file.path, error)) from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise InputError(f"{file.path} changed while it was read: start again when it is complete.")
        table = _Table.of(content, file, market)
        yield table.wide_rows() if table.used.layout == "wide" else table.long_rows(own_columns)


def columns_of(names: Sequence[str], market: MarketConfig) -> Columns | None:
    """Return what the columns with these headings are; None: it is neither named nor known.

    Raises:
        InputError: a named column is not there.
    """
    named: dict[Role, int] = {}
    for role in SPELLINGS:
        heading = getattr(market.columns, role)
        if heading is not None:
            found = [position for position, name in enumerate(names) if visible(name) == visible(heading)]
            if not found:
                raise InputError(
                    f"market.columns.{role} names '{heading}', which is no heading; there are {_listed(names)}."
                )
            named[role] = found[0]
    vendor = None if named else vendor_of(names)
    roles = named | _known(names, vendor, set(named.values()), set(named))
    if "date" not in roles and is_unnamed(names[0]):
        roles["date"] = 0
    if roles.get("time") == roles.get("date"):
        roles.pop("time", None)
    if "close" not in roles and "adjusted_close" in roles:
        roles["close"] = roles.pop("adjusted_close")
    if vendor is not None or {"close", "symbol"} & named.keys() or _is_long(names, roles):
        return Columns("long", roles, vendor=vendor) if {"date", "close"} <= roles.keys() else None
    if market.layout == "wide":
        used: dict[Role, int] = {"date": roles.get("date", 0)}
        if "time" in named:
            used["time"] = named["time"]
        symbols = [
            (position, visible(name))
            for position, name in enumerate(names)
            if position not in used.values() and not is_unnamed(name)
        ]
        return Columns("wide", used, tuple(symbols))
    return None


def _known(names: Sequence[str], vendor: Vendor | None, taken: set[int], given: set[Role]) -> dict[Role, int]:
    """Return the positions of the columns whose headings are those of the long layout, or of a vendor."""
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        if position not in taken:
            positions.setdefault(plain(name), position)
    roles: dict[Role, int] = {}
    for role, spellings in SPELLINGS.items():
        own = (vendor.roles[role],) if vendor is not None and role in vendor.roles else spellings
        if role not in given and (found := [positions[name] for name in own if name in positions]):
            roles[role] = found[0]
    return roles


def _is_long(names: Sequence[str], roles: dict[Role, int]) -> bool:
    """Return whether roles that headings have are those of the long layout: a close alone may as well be a ticker."""
    if not {"date", "close"} <= roles.keys():
        return False
    others = [name for position, name in enumerate(names) if position not in roles.values() and not is_unnamed(name)]
    enough = {"symbol", "volume", "adjusted_close"} & roles.keys() or {"open", "high", "low"} <= roles.keys()
    return bool(enough) or not others


@dataclass(frozen=True)
class _Table:
    """One price file: where it lies, its cells, and what its columns are."""

    where: str
    file: SourceFile
    market: MarketConfig
    cells: Cells
    used: Columns
    unused_keys: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, content: bytes, file: SourceFile, market: MarketConfig) -> "_Table":
        where = str(file.path)
        content = decompressed(content, where)
        if not content.strip():
            raise InputError(f"{where} is empty: give a file with dates and prices.")
        cells = csv_cells(content, where, market) if file.form == "csv" else arrow_cells(content, file.form, where)
        if cells.rows == 0:
            raise InputError(f"{where} has headings but no rows: give a file with dates and prices.")
        unused = []
        for key, value in file.partition:
            spelled = next((SPELLINGS[role] for role in _OF_PARTITIONS if plain(key) in SPELLINGS[role]), ())
            if spelled and not any(plain(name) in spelled for name in cells.names):
                column = pd.Series(np.full(cells.rows, "" if value == _NO_VALUE else unquote(value), dtype=object))
                cells = Cells((*cells.names, key), (*cells.columns, column), cells.first_row, cells.row_word)
            elif key not in cells.names:
                unused.append(key)
        used = _columns_or_advice(cells, where, market)
        return cls(where, file, market, cells, used, tuple(unused))

    def long_rows(self, own_columns: bool) -> FileRows:
        roles, names = self.used.roles, self.cells.names
        symbols = self._symbols()
        codes, found = pd.factorize(symbols, sort=True)
        stamps = self._stamps()
        if "symbol" not in roles and pd.Series(stamps.instants).dropna().duplicated().mean() > _REPEATED:
            raise InputError(
                f"{self.where} has several rows of most dates, and no column of symbols{self._advice(missing=True)}"
            )
        prices: dict[Role, NDArray[np.float64]] = {
            role: self._numbers(roles[role]) for role in PRICE_ROLES if role in roles
        }
        others = [
            position for position, name in enumerate(names) if position not in roles.values() and not is_unnamed(name)
        ]
        own = [position for position in others if own_columns and self._is_own(position)]
        _refuse_repeated([visible(names[position]) for position in (*roles.values(), *own)], names, self.where)
        complete = ~np.isnat(stamps.instants) & (symbols != "").to_numpy(dtype=np.bool_)
        return FileRows(
            layout="long",
            symbols=tuple(str(name) for name in found),
            codes=codes[complete],
            stamps=stamps.at(complete),
            prices={role: values[complete] for role, values in prices.items()},
            own={visible(names[position]): self._numbers(position)[complete] for position in own},
            read=self.cells.rows,
            undated=int(self.cells.rows - complete.sum()),
            ignored=(*(names[position] for position in others if position not in own), *self.unused_keys),
            vendor=self.used.vendor,
        )

    def wide_rows(self) -> FileRows:
        stamps = self._stamps()
        wanted = {*self.market.symbols, *self.market.context} if self.market.symbols else None
        columns = [each for each in self.used.symbols if wanted is None or each[1] in wanted]
        names = tuple(symbol for _, symbol in columns)
        if not names:
            raise InputError(f"{self.where} has none of market.symbols; it has {_listed(self.cells.names)}.")
        _refuse_repeated(names, names, self.where)
        closes = np.stack([self._numbers(position) for position, _ in columns], axis=1)
        dated = ~np.isnat(stamps.instants)
        rows = np.repeat(np.flatnonzero(dated), len(names))
        return FileRows(
            layout="wide",
            symbols=names,
            codes=np.tile(np.arange(len(names)), int(dated.sum())),
            stamps=stamps.at(rows),
            prices={"close": closes[dated].ravel()},
            own={},
            read=self.cells.rows,
            undated=int(self.cells.rows - dated.sum()),
            ignored=(*(name for _, name in self.used.symbols if name not in names), *self.unused_keys),
            vendor=None,
        )

    def _symbols(self) -> "pd.Series[str]":
        """Return the symbol of each row, empty where there is none."""
        if "symbol" in self.used.roles:
            column = self.cells.columns[self.used.roles["symbol"]]
            if pd.api.types.is_float_dtype(column.dtype):
                # Numbers of symbols, of which some are missing.
                column = column.map("{:.0f}".format, na_action="ignore").astype("str")
            texts = column.astype("str").where(column.notna(), "")
            kinds = pd.Series(texts.unique(), dtype="str")
            return texts.map(dict(zip(kinds, map(visible, kinds), strict=True))).astype("str")
        symbol, vendor = self.file.symbol, self.used.vendor
        if vendor is not None and vendor.symbol_from is not None and not self.market.symbol_from:
            symbol = symbol_in(re.sub(r"\.[a-z.]*$", ".csv", self.file.path.name), vendor.symbol_from) or symbol
        if not symbol:
            raise InputError(
                f"{self.where} has no column of symbols, and its name may be more than a symbol"
                f"{self._advice(symbol=self.file.path.name)}"
            )
        return pd.Series(np.full(self.cells.rows, visible(symbol), dtype=object), dtype="str")

    def _stamps(self) -> Stamps:
        position, vendor = self.used.roles["date"], self.used.vendor
        formats = (self.market.date_format,) if self.market.date_format else vendor.date_formats if vendor else ()
        try:
            stamps = read_stamps(self.cells.columns[position], formats)
        except UnreadableDateError as error:
            text = str(self.cells.columns[position].iloc[error.row])
            raise InputError(
                f"{self._cell(position, error.row)}: '{_shortened(text)}' is no date as "
                f"{' or '.join(formats) or '2024-12-31'}{self._advice()}"
            ) from error
        if "time" not in self.used.roles:
            return stamps
        times = self.used.roles["time"]
        seconds = np.where(np.isnat(stamps.instants), 0.0, seconds_of_day(self.cells.columns[times]))
        if np.isnan(seconds).any():
            row = int(np.argmax(np.isnan(seconds)))
            text = str(self.cells.columns[times].iloc[row])
            raise InputError(f"{self._cell(times, row)}: '{_shortened(text)}' is no time of day: write 16:00:00.")
        days = stamps.instants.astype("datetime64[D]").astype("datetime64[s]")
        at_time = days + seconds.astype(np.int64).astype("timedelta64[s]")
        if ((stamps.instants != days) & (stamps.instants != at_time) & ~np.isnat(days)).any():
            raise InputError(
                f"{self.where} has times of day in two columns, '{self.cells.names[position]}' and "
                f"'{self.cells.names[times]}', and they differ: leave one of them."
            )
        return Stamps(at_time, stamps.offsets)

    def _numbers(self, position: int) -> NDArray[np.float64]:
        """Return the cells of the column at `position` as float64 `[rows]`, NaN where there is none."""
        column = self.cells.columns[position]
        if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_datetime64_any_dtype(column.dtype):
            raise InputError(self._not_a_number(position, 0, str(column.iloc[0])))
        if pd.api.types.is_numeric_dtype(column.dtype):
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        texts = column.astype("str").where(column.notna(), "").str.strip()
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if self.used.vendor is not None and self.used.vendor.own_numbers:
            numbers = own_numbers(texts)
        wrong = np.isnan(numbers) & ~texts.str.lower().isin(MARKERS).to_numpy(dtype=np.bool_)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(self._not_a_number(position, row, str(texts.iloc[row])))
        return numbers

    def _is_own(self, position: int) -> bool:
        """Return whether most of an unused column are numbers, which are not those of rows."""
        column = self.cells.columns[position].dropna().head(_CELLS_TO_JUDGE_BY)
        if plain(self.cells.names[position]) in _ROW_NUMBERS or pd.api.types.is_bool_dtype(column.dtype):
            return False
        if pd.api.types.is_datetime64_any_dtype(column.dtype) or column.empty:
            return False
        return bool(pd.to_numeric(column, errors="coerce").notna().mean() > 0.5)

    def _cell(self, position: int, row: int) -> str:
        cells = self.cells
        line = cells.first_row + row % (cells.file_rows or cells.rows)
        return f"{self.where}, {cells.row_word} {line:,}, column '{cells.names[position]}'"

    def _not_a_number(self, position: int, row: int, text: str) -> str:
        return f"{self._cell(position, row)}: '{_shortened(text)}' is no number as 1234.5{self._advice()}"

    def _advice(self, symbol: str = "", missing: bool = False) -> str:
        columns = dict(zip(self.cells.names, self.cells.columns, strict=True))
        return advice(columns, self.market, None if missing else self.used, symbol)


def _columns_or_advice(cells: Cells, where: str, market: MarketConfig) -> Columns:
    try:
        used = columns_of(cells.names, market)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if used is None:
        raise InputError(
            f"{where} has the columns {_listed(cells.names)}, which are neither those of the long layout (date, "
            "symbol, open, high, low, close, volume) nor those of a known vendor"
            f"{advice(dict(zip(cells.names, cells.columns, strict=True)), market, None)}"
        )
    return used


def _refuse_repeated(used: Sequence[str], names: Sequence[str], where: str) -> None:
    counts = Counter(map(visible, names))
    if repeated := [name for name in used if counts[name] > 1]:
        raise InputError(f"{where} has several columns named '{repeated[0]}': leave one of them.")


def _listed(names: Sequence[str], shown: int = 6) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown} more"


def _shortened(text: str, characters: int = 40) -> str:
    return text if len(text) <= characters else f"{text[:characters]}..."
