"""One price file as a table of cells: bytes to columns, with every complaint naming file, line and column."""

import csv
import gzip
import io
import json
import re
import warnings
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.days import Stamps, UnreadableDateError, read_stamps
from eigen_core.market.headings import CellKind, Headings, check_names, read_headings, text_positions
from eigen_core.market.spellings import Role

_SEPARATORS = (",", ";", "\t", "|")
_CELLS_TO_JUDGE_BY = 1_000
_LINE_END = re.compile(rb"\r\n|\r|\n")
# Prices shrink to a quarter or a tenth.
_LARGEST_RATIO, _DECOMPRESSED_BYTES = 40, 1 << 26
_GZIP_MAGIC = b"\x1f\x8b"
_MARKERS = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "-", "--", ".", "<na>", "nat")
# pandas compares markers case by case; the usual spellings keep a column numeric, the rest is settled cell by cell.
_MISSING = sorted({spelling for marker in _MARKERS for spelling in (marker, marker.upper(), marker.title(), "NaN")})


@dataclass(frozen=True)
class Table:
    """One price file.

    Attributes:
        where: the file, for messages.
        headings: what its columns are.
        names: all headings of the file.
        columns: cells of each column.
        rows: number of rows.
        first_row: number of the first row, and `row_word` what to call it, so that a user finds it.
    """

    where: str
    headings: Headings
    names: tuple[str, ...]
    columns: "tuple[pd.Series[Any], ...]"
    rows: int
    first_row: int
    row_word: str

    def stamps(self) -> Stamps:
        """Return the stamps of all rows.

        Raises:
            InputError: the column of dates cannot be read.
        """
        position = self.headings.roles["date"]
        where = f"{self.where}, column '{self.names[position]}'"
        try:
            return read_stamps(self.columns[position], where)
        except UnreadableDateError as error:
            raise InputError(
                f"{self._cell(position, error.row)}: '{_shortened(error.text)}' is no date: write dates as YYYY-MM-DD."
            ) from error

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
        wrong = np.isnan(numbers) & ~texts.str.lower().isin(_MARKERS).to_numpy(dtype=np.bool_)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(self._not_a_number(position, row, str(texts.iloc[row])))
        return numbers

    def location(self, row: int) -> str:
        """Return file and row, for messages; `row` counts from 0."""
        return f"{self.where}, {self.row_word} {self.first_row + row:,}"

    def _cell(self, position: int, row: int) -> str:
        return f"{self.location(row)}, column '{self.names[position]}'"

    def _not_a_number(self, position: int, row: int, text: str) -> str:
        return (
            f"{self._cell(position, row)}: '{_shortened(text)}' is no number: write numbers like 1234.5, and leave a "
            "missing one empty."
        )


def read_table(content: bytes, form: str, where: str) -> Table:
    """Read the content of a price file.

    Args:
        content: its bytes, gzip-compressed or not.
        form: `csv` or `parquet`.
        where: the file, for messages.

    Raises:
        InputError: it is not of that form, is empty, or its columns are not what is needed.
    """
    if content.startswith(_GZIP_MAGIC):
        content = _decompressed(content, where)
    if not content.strip():
        raise InputError(f"{where} is empty: give a file with dates and prices.")
    table = _read_csv(content, where) if form == "csv" else _read_parquet(content, where)
    if table.rows == 0:
        raise InputError(f"{where} has headings but no rows: give a file with dates and prices.")
    return table


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


def _read_csv(content: bytes, where: str) -> Table:
    # Blank lines at the end are no rows.
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip() + b"\n"
    if b"\0" in content:
        raise InputError(_no_text(where))
    line_end = _LINE_END.search(content)
    if line_end is not None and line_end.group() == b"\r":
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        first_line = content.split(b"\n", 1)[0].decode().rstrip("\r")
        separator = max(_SEPARATORS, key=first_line.count)
        names = tuple(name.strip() for name in next(csv.reader([first_line], delimiter=separator), []))
    except UnicodeDecodeError as error:
        raise InputError(_no_text(where)) from error
    except csv.Error as error:
        raise InputError(f"{where} has a first line that is no headings ({error}): write short ones there.") from error
    check_names(names, where)
    texts = text_positions(names)
    labels = [str(position) for position in range(len(names))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                header=0,
                names=labels,
                index_col=False,
                dtype={str(position): "str" for position in texts},
                keep_default_na=False,
                na_values={label: _MISSING for position, label in enumerate(labels) if position not in texts},
                skipinitialspace=True,
                skip_blank_lines=False,
                low_memory=False,
                encoding="utf-8",
            )
    except UnicodeDecodeError as error:
        raise InputError(_no_text(where)) from error
    except pd.errors.ParserWarning as error:
        raise InputError(
            f"{where} has rows with more cells than it has headings: give each column a heading."
        ) from error
    except pd.errors.ParserError as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip().rstrip(".")
        raise InputError(f"{where} cannot be read as CSV: {reason}.") from error
    table = _table(frame, names, where, 2, "line")
    if separator != ",":
        _refuse_doubtful_points(table, content, separator)
    return table


def _refuse_doubtful_points(table: Table, content: bytes, separator: str) -> None:
    """Refuse 1.234 where it may be 1234: in files that another locale wrote, which separates cells by no comma."""
    numbers = [
        position
        for position, column in enumerate(table.columns)
        if position not in (table.headings.roles["date"], table.headings.roles.get("symbol"))
        and not pd.api.types.is_integer_dtype(column.dtype)
        and _kind_of(column) in ("whole", "fraction")
    ]
    if not numbers:
        return
    floats = [table.columns[position].to_numpy() for position in numbers if table.columns[position].dtype == np.float64]
    values = np.abs(np.concatenate([np.zeros(0), *floats]))
    thousands = values * 1_000
    with_point = np.isfinite(values) & (values != np.floor(values))
    proof = with_point & ((values < 1) | (values >= 1_000) | (np.abs(thousands - np.rint(thousands)) > 1e-6))
    if proof.any():
        return
    for rows in (_CELLS_TO_JUDGE_BY, None):
        cells = pd.read_csv(
            io.BytesIO(content), sep=separator, header=0, index_col=False, usecols=numbers, dtype="str", nrows=rows,
            skipinitialspace=True, skip_blank_lines=False,
        )  # fmt: skip
        texts = cells.stack()
        pointed = texts[texts.str.contains(".", regex=False)].str.strip()
        if not pointed.str.fullmatch(r"[-+]?[1-9]\d{0,2}\.\d{3}").all():
            return
    if len(pointed):
        raise InputError(
            f"{table.where}: '{pointed.iloc[0]}' may be a number between 0 and 1,000 or one without its comma, and no "
            "other number says which: separate cells by commas, or write all numbers with four decimals or none."
        )


def _read_parquet(content: bytes, where: str) -> Table:
    try:
        stored = pq.read_table(pa.BufferReader(content))
        index = _index_columns(stored.schema)
        stored = stored.select([*index, *(position for position in range(stored.num_columns) if position not in index)])
        stored = stored.cast(pa.schema([_as_text(field) for field in stored.schema]))
        stored.validate(full=True)
        frame = stored.to_pandas(date_as_object=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} is no Parquet file, or a damaged one: write it again, or give a CSV file."
        ) from error
    except KeyError as error:
        raise InputError(f"{where} has a time zone that is not known ({error}): write dates as YYYY-MM-DD.") from error
    names = tuple(str(name) for name in frame.columns)
    check_names(names, where)
    return _table(frame, names, where, 1, "row")


def _index_columns(schema: pa.Schema) -> list[int]:
    """Return the positions of the columns that were the index of a data frame, as far as pandas' note on it says so."""
    try:
        described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return []
    names = described.get("index_columns") if isinstance(described, dict) else None
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [position for position, name in enumerate(schema.names) if name in known]


def _as_text(field: pa.Field) -> pa.Field:
    """Return a text field for a field of bytes: some programs write text as bytes."""
    of_bytes = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
    return pa.field(field.name, pa.string() if of_bytes else field.type)


def _table(frame: pd.DataFrame, names: tuple[str, ...], where: str, first_row: int, row_word: str) -> Table:
    columns = tuple(frame.iloc[:, position] for position in range(len(names)))
    headings = read_headings(names, [_kind_of(column) for column in columns], where)
    return Table(where, headings, names, columns, len(frame), first_row, row_word)


def _kind_of(column: "pd.Series[Any]") -> CellKind:
    """Return what most of the column's first cells are."""
    cells = column.dropna().head(_CELLS_TO_JUDGE_BY)
    if pd.api.types.is_datetime64_any_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
        return "text"
    if not pd.api.types.is_numeric_dtype(cells.dtype):
        texts = cells.astype("str").str.strip()
        cells = pd.to_numeric(texts[~texts.str.lower().isin(_MARKERS)], errors="coerce")
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    if not numbers.size:
        return "empty"
    known = numbers[np.isfinite(numbers)]
    if 2 * len(known) < len(numbers):
        return "text"
    return "whole" if (known == np.floor(known)).all() else "fraction"


def _no_text(where: str) -> str:
    return f"{where} is no CSV file: it is not UTF-8 text. Save it as CSV in UTF-8, or give a Parquet file."


def _shortened(text: str, characters: int = 40) -> str:
    return text if len(text) <= characters else f"{text[:characters]}..."
