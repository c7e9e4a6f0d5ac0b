"""One price file as a table of cells: bytes to columns, with every complaint naming file, line and column."""

import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.arrow_cells import read_arrow
from eigen_core.market.cells import Cells, with_a_row_a_symbol
from eigen_core.market.csv_cells import MARKERS, read_csv, refuse_doubtful_points
from eigen_core.market.days import Stamps, UnreadableDateError, read_stamps, seconds_of_day
from eigen_core.market.headings import CellKind, Headings, read_headings
from eigen_core.market.spellings import SPELLINGS, Role, is_usual, plain

_CELLS_TO_JUDGE_BY = 1_000
# Prices shrink to a quarter or a tenth.
_LARGEST_RATIO, _DECOMPRESSED_BYTES = 40, 1 << 26
_GZIP_MAGIC = b"\x1f\x8b"
_OF_PARTITIONS: tuple[Role, ...] = ("symbol", "date")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Table:
    """One price file.

    Attributes:
        where: the file, for messages.
        headings: what its columns are.
        cells: of its columns.
    """

    where: str
    headings: Headings
    cells: Cells

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.cells.rows

    @property
    def names(self) -> tuple[str, ...]:
        """Heading of each column."""
        return self.cells.names

    @property
    def columns(self) -> "tuple[pd.Series[Any], ...]":
        """Cells of each column."""
        return self.cells.columns

    def stamps(self) -> Stamps:
        """Return the stamps of all rows.

        Raises:
            InputError: the column of dates, or that of times of day, cannot be read, or they contradict each other.
        """
        position = self.headings.roles["date"]
        where = f"{self.where}, column '{self.names[position]}'"
        try:
            stamps = read_stamps(self.columns[position], where)
        except UnreadableDateError as error:
            raise InputError(
                f"{self._cell(position, error.row)}: '{_shortened(error.text)}' is no date: write dates as YYYY-MM-DD."
            ) from error
        return stamps if "time" not in self.headings.roles else self._with_times(stamps, self.headings.roles["time"])

    def _with_times(self, stamps: Stamps, position: int) -> Stamps:
        """Return the stamps of dates at the times of day that another column has."""
        dated = ~np.isnat(stamps.days)
        seconds = np.where(dated, seconds_of_day(self.columns[position]), 0.0)
        if np.isnan(seconds).any():
            row = int(np.argmax(np.isnan(seconds)))
            text = str(self.columns[position].iloc[row])
            raise InputError(f"{self._cell(position, row)}: '{_shortened(text)}' is no time of day: write 16:00:00.")
        if stamps.seconds.any() and (stamps.seconds != seconds).any():
            raise InputError(
                f"{self.where} has times of day in two columns, '{self.names[self.headings.roles['date']]}' and "
                f"'{self.names[position]}', and they differ: leave one of them."
            )
        return replace(stamps, seconds=seconds.astype(np.int64))

    def texts(self, role: Role) -> "pd.Series[str]":
        """Return the cells of a column as text without surrounding spaces; empty where there is none."""
        column = self.columns[self.headings.roles[role]]
        if pd.api.types.is_float_dtype(column.dtype):
            # Numbers of symbols, of which some are missing.
            column = column.map("{:.0f}".format, na_action="ignore").astype("str")
        return column.astype("str").where(column.notna(), "").str.strip()

    def numbers(self, position: int) -> NDArray[np.float64]:
        """Return the cells of the column at `position` as float64 `[rows]`, NaN where there is none.

        Raises:
            InputError: a cell is no number.
        """
        column = self.columns[position]
        if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_datetime64_any_dtype(column.dtype):
            raise InputError(self._not_a_number(position, 0, str(column.iloc[0])))
        if pd.api.types.is_numeric_dtype(column.dtype):
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        texts = column.astype("str").where(column.notna(), "").str.strip()
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = np.isnan(numbers) & ~texts.str.lower().isin(MARKERS).to_numpy(dtype=np.bool_)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(self._not_a_number(position, row, str(texts.iloc[row])))
        return numbers

    def own_columns(self) -> tuple[int, ...]:
        """Return the positions of the unused columns of numbers that are neither prices nor numbers of symbols or rows.

        Raises:
            InputError: two of them have the same heading.
        """
        found = tuple(
            position
            for position in self.headings.ignored
            if not is_usual(self.names[position]) and _kind_of(self.columns[position]) in ("whole", "fraction")
        )
        names = [self.names[position].strip() for position in found]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise InputError(f"{self.where} has several columns named '{repeated[0]}': leave one of them.")
        return found

    def location(self, row: int) -> str:
        """Return file and row, for messages; `row` counts from 0."""
        cells = self.cells
        return f"{self.where}, {cells.row_word} {cells.first_row + row % cells.file_rows:,}"

    def _cell(self, position: int, row: int) -> str:
        return f"{self.location(row)}, column '{self.names[position]}'"

    def _not_a_number(self, position: int, row: int, text: str) -> str:
        return (
            f"{self._cell(position, row)}: '{_shortened(text)}' is no number: write numbers like 1234.5, and leave a "
            "missing one empty."
        )


def read_table(content: bytes, form: str, where: str, partition: Sequence[tuple[str, str]] = ()) -> Table:
    """Read the content of a price file.

    Args:
        content: its bytes, gzip-compressed or not.
        form: `csv`, `parquet` or `arrow`.
        where: the file, for messages.
        partition: key and value of each folder `key=value` that it lies in; a symbol or a date that no column gives is
            taken from there.

    Raises:
        InputError: it is not of that form, is empty, or its columns are not what is needed.
    """
    if content.startswith(_GZIP_MAGIC):
        content = _decompressed(content, where)
    if not content.strip():
        raise InputError(f"{where} is empty: give a file with dates and prices.")
    stored, separator = read_csv(content, where) if form == "csv" else (read_arrow(content, form, where), ",")
    if stored.rows == 0:
        raise InputError(f"{where} has headings but no rows: give a file with dates and prices.")
    cells = with_a_row_a_symbol(stored, where)
    for key, value in partition:
        if any(_tells(key, role) and not any(_tells(name, role) for name in cells.names) for role in _OF_PARTITIONS):
            cells = cells.with_column(key, "" if value == _NO_VALUE else unquote(value))
    headings = read_headings(cells.names, _kinds(cells), where)
    keys = {0} if stored.lower else {headings.roles["date"], headings.roles.get("symbol")}
    numbers = [
        position
        for position, column in enumerate(stored.columns)
        if position not in keys
        and not pd.api.types.is_integer_dtype(column.dtype)
        and _kind_of(column) in ("whole", "fraction")
    ]
    refuse_doubtful_points(stored, numbers, content, separator, where)
    return Table(where, headings, cells)


def _tells(heading: str, role: Role) -> bool:
    return plain(heading) in SPELLINGS[role]


def _decompressed(content: bytes, where: str) -> bytes:
    """Return `content` decompressed; refuse more than prices can be."""
    largest = max(_DECOMPRESSED_BYTES, _LARGEST_RATIO * len(content))
    chunks: list[bytes] = []
    length = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while chunk := file.read(_DECOMPRESSED_BYTES // 4):
                chunks.append(chunk)
                length += len(chunk)
                if length > largest:
                    raise InputError(
                        f"{where} decompresses to more than {_LARGEST_RATIO} times its size, which no prices do: give "
                        "the file that was meant, or decompress it first."
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where} is damaged: it cannot be decompressed ({error}).") from error
    return b"".join(chunks)


def _kinds(cells: Cells) -> list[CellKind]:
    return [
        "time" if plain(name) in SPELLINGS["time"] and _is_of_times(column) else _kind_of(column)
        for name, column in zip(cells.names, cells.columns, strict=True)
    ]


def _is_of_times(column: "pd.Series[Any]") -> bool:
    cells = column.dropna().head(_CELLS_TO_JUDGE_BY)
    return bool(len(cells)) and not np.isnan(seconds_of_day(cells)).any()


def _kind_of(column: "pd.Series[Any]") -> CellKind:
    """Return what most of the column's first cells are."""
    cells = column.dropna().head(_CELLS_TO_JUDGE_BY)
    if pd.api.types.is_datetime64_any_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
        return "text"
    if not pd.api.types.is_numeric_dtype(cells.dtype):
        texts = cells.astype("str").str.strip()
        cells = pd.to_numeric(texts[~texts.str.lower().isin(MARKERS)], errors="coerce")
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    if not numbers.size:
        return "empty"
    known = numbers[np.isfinite(numbers)]
    if 2 * len(known) < len(numbers):
        return "text"
    return "whole" if (known == np.floor(known)).all() else "fraction"


def _shortened(text: str, characters: int = 40) -> str:
    return text if len(text) <= characters else f"{text[:characters]}..."
