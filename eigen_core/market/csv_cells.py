"""The cells of a CSV file."""

import csv
import io
import re
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from eigen_core.errors import InputError
from eigen_core.market.cells import Cells, is_field
from eigen_core.market.headings import check_names, text_positions
from eigen_core.market.spellings import SPELLINGS, plain

_SEPARATORS = (",", ";", "\t", "|")
_LINE_END = re.compile(rb"\r\n|\r|\n")
MARKERS = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "-", "--", ".", "<na>", "nat")
"""Cells that say that there is no value, in small letters."""
# pandas compares markers case by case; the usual spellings keep a column numeric, the rest is settled cell by cell.
_MISSING = sorted({spelling for marker in MARKERS for spelling in (marker, marker.upper(), marker.title(), "NaN")})
_LINES_OF_HEADINGS = 3
_NUMBER = re.compile(r"[-+]?[\d.,]+([eE][-+]?\d+)?%?")


def read_csv(content: bytes, where: str) -> tuple[Cells, str]:
    """Return the cells of a CSV file and what separates them.

    Raises:
        InputError: it is no CSV file, or its headings are none.
    """
    content = _with_plain_line_ends(content)
    if b"\0" in content:
        raise InputError(_no_text(where))
    try:
        lines = [line.decode().rstrip("\r") for line in content.split(b"\n", _LINES_OF_HEADINGS)[:_LINES_OF_HEADINGS]]
        separator = max(_SEPARATORS, key=lines[0].count)
        rows = [
            tuple(cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])) for line in lines if line
        ]
    except UnicodeDecodeError as error:
        raise InputError(_no_text(where)) from error
    except csv.Error as error:
        raise InputError(f"{where} has a first line that is no headings ({error}): write short ones there.") from error
    names = rows[0] if rows else ()
    check_names(names, where)
    count = _lines_of_headings(rows)
    texts = {0} if count > 1 else text_positions(names)
    labels = [str(position) for position in range(len(names))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                header=0,
                skiprows=count - 1,
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
    columns = tuple(frame[label] for label in labels)
    if count == 1:
        return Cells(names, columns, len(frame), len(frame), 2, "line"), separator
    date = rows[2][0] if count == _LINES_OF_HEADINGS else "Date"
    cells = Cells(
        names=(date, *names[1:]),
        columns=columns,
        rows=len(frame),
        file_rows=len(frame),
        first_row=count + 1,
        row_word="line",
        lower=rows[1],
        level_names=(names[0], rows[1][0]),
    )
    return cells, separator


def refuse_doubtful_points(cells: Cells, positions: Sequence[int], content: bytes, separator: str, where: str) -> None:
    """Refuse 1.234 where it may be 1234: in files that another locale wrote, which separates cells by no comma.

    Args:
        cells: of the file.
        positions: of its columns of numbers.
        content: its bytes.
        separator: of its cells.
        where: the file, for messages.
    """
    if separator == "," or not positions:
        return
    floats = [cells.columns[position].to_numpy() for position in positions]
    values = np.abs(np.concatenate([np.zeros(0), *(column for column in floats if column.dtype == np.float64)]))
    thousands = values * 1_000
    with_point = np.isfinite(values) & (values != np.floor(values))
    proof = with_point & ((values < 1) | (values >= 1_000) | (np.abs(thousands - np.rint(thousands)) > 1e-6))
    if proof.any():
        return
    for rows in (1_000, None):
        texts = pd.read_csv(
            io.BytesIO(_with_plain_line_ends(content)), sep=separator, header=0,
            skiprows=cells.first_row - 2, index_col=False, usecols=list(positions), dtype="str", nrows=rows,
            skipinitialspace=True, skip_blank_lines=False,
        ).stack()  # fmt: skip
        pointed = texts[texts.str.contains(".", regex=False)].str.strip()
        if not pointed.str.fullmatch(r"[-+]?[1-9]\d{0,2}\.\d{3}").all():
            return
    if len(pointed):
        raise InputError(
            f"{where}: '{pointed.iloc[0]}' may be a number between 0 and 1,000 or one without its comma, and no "
            "other number says which: separate cells by commas, or write all numbers with four decimals or none."
        )


def _lines_of_headings(rows: Sequence[Sequence[str]]) -> int:
    """Return how many lines of headings a file has, by its first lines: two where symbols are above or below fields."""
    if len(rows) < 2 or len(rows[0]) != len(rows[1]):
        return 1
    upper, lower = rows[0], rows[1]
    third = rows[2] if len(rows) > 2 else ("",)
    count = _LINES_OF_HEADINGS if plain(third[0]) in SPELLINGS["date"] and not any(third[1:]) else 2
    if {plain(upper[0]), plain(lower[0])} == {"price", "ticker"}:
        return count
    # NA is a ticker, or says that there is no value.
    sure = count == _LINES_OF_HEADINGS or len(set(upper)) < len(upper)
    no_symbols = [cell for cell in lower[1:] if _NUMBER.fullmatch(cell) or (not sure and cell.lower() in MARKERS)]
    of_fields = any(all(map(is_field, row[1:])) for row in (upper, lower))
    return count if of_fields and not lower[0] and all(lower[1:]) and not no_symbols else 1


def _with_plain_line_ends(content: bytes) -> bytes:
    """Return the content with line ends that pandas counts, and without blank lines at the end, which are no rows."""
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip() + b"\n"
    line_end = _LINE_END.search(content)
    if line_end is not None and line_end.group() == b"\r":
        return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content


def _no_text(where: str) -> str:
    return f"{where} is no CSV file: it is not UTF-8 text. Save it as CSV in UTF-8, or give a Parquet file."
