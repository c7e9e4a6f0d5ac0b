"""From the bytes of a price file to its cells."""

import csv
import gzip
import io
import json
import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.vendors import (
    KLINES,
    SPELLINGS,
    Role,
    Vendor,
    are_klines,
    level_of_fields,
    plain,
    vendor_of,
    visible,
)

MARKERS = frozenset(
    (
        *("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "-", "--", ".", "<na>", "nat"),
        *("#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"),
    )
)
"""Cells that say that there is no value, in small letters."""

# pandas compares markers case by case; the usual spellings keep a column numeric, the rest is settled cell by cell.
_MISSING = sorted({spelling for marker in MARKERS for spelling in (marker, marker.upper(), marker.title(), "NaN")})
_SEPARATORS = (",", ";", "\t", "|")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Prices shrink to a quarter or a tenth.
_LARGEST_RATIO, _DECOMPRESSED_BYTES = 40, 1 << 26
_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_HEADING = 1_000
_FORMS = {"parquet": "Parquet", "arrow": "Arrow or Feather"}
_TWO_HEADINGS = re.compile(r"""\((?P<upper>'[^'\\]*'|"[^"\\]*"), (?P<lower>'[^'\\]*'|"[^"\\]*")\)""")


@dataclass(frozen=True)
class Cells:
    """The cells of one file: heading and cells of each column, and how its rows are counted for messages."""

    names: tuple[str, ...]
    columns: "tuple[pd.Series[Any], ...]"
    first_row: int
    row_word: str
    file_rows: int = 0

    @property
    def rows(self) -> int:
        return len(self.columns[0])


def csv_cells(content: bytes, where: str, market: MarketConfig) -> Cells:
    content = _as_text(content, where)
    separator, above = "", content[:4].lower() == b"sep="
    if above:
        first, _, content = content.partition(b"\n")
        separator = first[4:].decode().strip("\r")[:1]
    lines = [line.decode().rstrip("\r") for line in content.split(b"\n", 3)[:3] if line]
    if not lines:
        raise InputError(f"{where} is empty: give a file with dates and prices.")
    separator = separator or max(_SEPARATORS, key=lines[0].count)
    try:
        heads = [tuple(map(visible, next(csv.reader([line], delimiter=separator), []))) for line in lines]
    except csv.Error as error:
        raise InputError(f"{where} has a first line that is no headings ({error}): write short ones there.") from error
    skipped, names, level = 1, heads[0], None
    if are_klines(names):
        skipped, names = 0, KLINES
    elif len(heads) > 1 and len(heads[1]) == len(names) > 1:
        level = level_of_fields(names, heads[1])
    if level is not None:
        skipped = 3 if len(heads) > 2 and plain(heads[2][0]) in SPELLINGS["date"] and not any(heads[2][1:]) else 2
    else:
        _check_names(names, where)
    # Columns of dates and symbols are text, whatever they look like.
    vendor = vendor_of(names)
    texts = {0} if level is not None else _text_positions(names, market, vendor)
    if vendor is not None and vendor.own_numbers:
        texts = set(range(len(names)))
    frame = _frame(content, where, separator, len(names), skipped, texts, market)
    columns = tuple(frame[position] for position in range(len(names)))
    cells = Cells(names, columns, skipped + 1 + above, "line")
    return cells if level is None else _with_a_row_a_symbol(cells, (names, heads[1]), level, where)


def _text_positions(names: Sequence[str], market: MarketConfig, vendor: Vendor | None) -> set[int]:
    """Return the positions of dates, times of day and symbols; the first one is a date if no heading is that of one."""

    def called(role: Role) -> set[int]:
        spelled = {*SPELLINGS[role], *([vendor.roles[role]] if vendor is not None and role in vendor.roles else [])}
        named = visible(getattr(market.columns, role) or "")
        return {
            place for place, name in enumerate(names) if plain(name) in spelled or (named and visible(name) == named)
        }

    return (called("date") or {0}) | called("time") | called("symbol")


def _frame(
    content: bytes, where: str, separator: str, width: int, skipped: int, texts: set[int], market: MarketConfig
) -> pd.DataFrame:
    own_marks = len(texts) == width
    marks = (".", None) if own_marks else _marks(content.split(b"\n", skipped)[skipped], separator, market)
    if marks is None:
        raise InputError(
            f"{where} has numbers like 1.234 or 1,234, and no other number says whether this is less than 2 or more "
            "than 1,000: add `--set market.decimal=.` or `--set market.decimal=,`."
        )
    decimal, thousands = marks
    for extra in (0, 1):
        labels = list(range(width + extra))
        missing: Any = {label: _MISSING for label in labels if label not in texts}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    io.BytesIO(content), sep=separator, header=None, skiprows=skipped, names=labels, index_col=False,
                    dtype=dict.fromkeys(texts, "str"), keep_default_na=False,
                    na_values=missing,
                    skipinitialspace=True, skip_blank_lines=False, low_memory=False, encoding="utf-8",
                    decimal=decimal, thousands=thousands,
                )  # fmt: skip
        except pd.errors.ParserWarning:
            continue
        except pd.errors.ParserError as error:
            reason = str(error).removeprefix("Error tokenizing data. C error: ").strip().rstrip(".")
            raise InputError(f"{where} cannot be read as CSV: {reason}.") from error
        if extra and frame[width].notna().any():
            break
        lost = content.count(b"\n") - skipped - len(frame)
        if lost:
            raise InputError(
                f"{where} has a quotation mark without its second one: {lost:,} lines would be lost in one cell. "
                "Remove it."
            )
        return frame
    raise InputError(f"{where} has rows with more cells than it has headings: give each column a heading.")


def _marks(content: bytes, separator: str, market: MarketConfig) -> tuple[str, str | None] | None:
    """Return the decimal mark of a file's numbers, and the mark between thousands, None where there is none.

    None: all numbers with a mark are like 1.234, where cells are not separated by commas, or like "1,234", where it
    may be either.
    """
    if market.decimal is not None:
        return market.decimal, {".": ",", ",": "."}[market.decimal]
    commas = b'"' in content if separator == "," else b"," in content
    if separator == "," and not commas:
        return ".", None

    def is_written(mark: str, other: str, sure: bool) -> bool:
        # A comma is inside of a cell only if the cell is quoted.
        before = '(?<=")' if separator == "," == mark else f'(?<![^{re.escape(separator)}"\\n])'
        after = '(?=")' if separator == "," == mark else f'(?=[{re.escape(separator)}"\\r\\n])'
        one, two = re.escape(mark), re.escape(other)
        thousands = rf"[1-9]\d{{0,2}}(?:{one}\d{{3}})+{after}"
        decimals = rf"(?!{thousands})(?:\d{{1,3}}(?:{two}\d{{3}})+|\d*){one}\d+{after}"
        return re.search(f"{before}[-+]?{decimals if sure else thousands}".encode(), content) is not None

    if commas and is_written(",", ".", sure=True):
        return ",", "."
    if is_written(".", ",", sure=True):
        return ".", "," if commas else None
    doubtful = is_written(",", ".", sure=False) or (separator != "," and is_written(".", ",", sure=False))
    return None if doubtful else (".", None)


def _as_text(content: bytes, where: str) -> bytes:
    """Return UTF-8 text whose lines end as pandas counts them, without blank lines at the end, which are no rows."""
    try:
        if content.startswith(_UTF_16):
            content = content.decode("utf-16").encode()
        content = content.removeprefix(b"\xef\xbb\xbf").rstrip() + b"\n"
        content.decode()
    except UnicodeDecodeError as error:
        raise InputError(_no_text(where)) from error
    if b"\0" in content:
        raise InputError(_no_text(where))
    line_end = re.search(rb"\r\n|\r|\n", content)
    if line_end is not None and line_end.group() == b"\r":
        return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content


def _no_text(where: str) -> str:
    return f"{where} is no CSV file: it is neither UTF-8 nor UTF-16 text. Save it in UTF-8, or give a Parquet file."


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) < 2:
        raise InputError(
            f"{where} has one column only: give a date, a symbol and prices, or a date and one column of closes a "
            "symbol, separated by commas."
        )
    if re.fullmatch(r"[-+]?[0-9][-0-9./: ]*(T[-0-9:.+Z]*)?", names[0]):
        raise InputError(f"{where} begins with '{names[0]}': write headings into its first line.")
    longest = max(names, key=len)
    if len(longest) > _LONGEST_HEADING:
        raise InputError(
            f"{where} has a heading of {len(longest):,} characters ('{longest[:40]}...'): write short headings into "
            "its first line."
        )


def _with_a_row_a_symbol(cells: Cells, levels: tuple[Sequence[str], Sequence[str]], fields: int, where: str) -> Cells:
    """Return cells of two lines of headings, tickers and fields, with a row a ticker and day; the first column: dates.

    Raises:
        InputError: a pair comes twice.
    """
    pairs = list(zip(levels[1 - fields][1:], levels[fields][1:], strict=True))
    repeated = next((pair for position, pair in enumerate(pairs) if pair in pairs[:position]), None)
    if repeated is not None:
        raise InputError(f"{where} has several columns of '{repeated[0]}' named '{repeated[1]}': leave one of them.")
    columns = dict(zip(pairs, cells.columns[1:], strict=True))
    symbols, names = list(dict.fromkeys(symbol for symbol, _ in pairs)), list(dict.fromkeys(name for _, name in pairs))
    missing = pd.Series(np.full(cells.rows, np.nan))

    def one_under_the_other(parts: "Sequence[pd.Series[Any]]") -> "pd.Series[Any]":
        return pd.concat(parts, ignore_index=True)

    return Cells(
        names=("Date", "Ticker", *names),
        columns=(
            one_under_the_other([cells.columns[0]] * len(symbols)),
            pd.Series(np.repeat(np.array(symbols, dtype=object), cells.rows), dtype="str"),
            *(one_under_the_other([columns.get((symbol, name), missing) for symbol in symbols]) for name in names),
        ),
        first_row=cells.first_row,
        row_word=cells.row_word,
        file_rows=cells.rows,
    )


def arrow_cells(content: bytes, form: str, where: str) -> Cells:
    try:
        stored = _stored(content, form)
        notes = _notes_of_pandas(stored.schema)
        given = notes.get("index_columns")
        known = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
        index = [position for position, name in enumerate(stored.schema.names) if name in known]
        stored = stored.select([*index, *(position for position in range(stored.num_columns) if position not in index)])
        stored = stored.cast(pa.schema([_as_text_field(column) for column in stored.schema]))
        stored.validate(full=True)
        frame = stored.to_pandas(date_as_object=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} is no {_FORMS[form]} file, or a damaged one: write it again, or give a CSV file."
        ) from error
    except KeyError as error:
        raise InputError(f"{where} has a time zone that is not known ({error}): write dates as YYYY-MM-DD.") from error
    names = tuple(str(name) for name in frame.columns)
    _check_names(names, where)
    cells = Cells(names, tuple(frame.iloc[:, position] for position in range(len(names))), 1, "row")
    # A data frame of two headings a column has names like ('Close', 'AAPL').
    pairs = [_TWO_HEADINGS.fullmatch(name) for name in names]
    if not all(pairs[1:]):
        return cells
    described = notes.get("column_indexes")
    named = [level.get("name") for level in described if isinstance(level, dict)] if isinstance(described, list) else []
    first, second = (str(name or "") for name in (named if len(named) == 2 else ("", "")))
    levels = (
        (first, *(pair["upper"][1:-1] for pair in pairs[1:] if pair)),
        (second, *(pair["lower"][1:-1] for pair in pairs[1:] if pair)),
    )
    fields = level_of_fields(*levels)
    return cells if fields is None else _with_a_row_a_symbol(cells, levels, fields, where)


def _stored(content: bytes, form: str) -> pa.Table:
    source = pa.BufferReader(content)
    if form == "parquet":
        return pq.read_table(source)
    return (pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream)(source).read_all()


def _notes_of_pandas(schema: pa.Schema) -> dict[str, Any]:
    """Return what pandas has noted on the data frame that was written, nothing where it cannot be read."""
    try:
        notes = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _as_text_field(column: pa.Field) -> pa.Field:
    """Return a text field for a field of bytes: some programs write text as bytes."""
    of_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return pa.field(column.name, pa.string() if of_bytes else column.type)


def decompressed(content: bytes, where: str) -> bytes:
    """Return content without gzip's compression; refuse more than prices can be."""
    if not content.startswith(_GZIP_MAGIC):
        return content
    largest = max(_DECOMPRESSED_BYTES, _LARGEST_RATIO * len(content))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = file.read(largest + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where} is damaged: it cannot be decompressed ({error}).") from error
    if len(found) > largest:
        raise InputError(
            f"{where} decompresses to more than {_LARGEST_RATIO} times its size, which no prices do: give the file "
            "that was meant, or decompress it first."
        )
    return found
