"""The cells of one price file, before it is known what its columns are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from eigen_core.errors import InputError
from eigen_core.market.spellings import PRICE_ROLES, SPELLINGS, is_companion, plain

_LEVEL_NAMES = {"price", "ticker"}
_FIELDS = frozenset(spelling for role in PRICE_ROLES for spelling in SPELLINGS[role])


@dataclass(frozen=True)
class Cells:
    """The cells of one price file.

    Attributes:
        names: heading of each column.
        columns: cells of each column.
        rows: number of rows, and `file_rows` how many the file has; more where its symbols are beside each other.
        first_row: number of the file's first row, and `row_word` what to call it, so that a user finds it.
        lower: second heading of each column; empty: the file has one line of headings.
        level_names: names of the two lines of headings, as far as the file has them.
    """

    names: tuple[str, ...]
    columns: "tuple[pd.Series[Any], ...]"
    rows: int
    file_rows: int
    first_row: int
    row_word: str
    lower: tuple[str, ...] = ()
    level_names: tuple[str, str] = ("", "")

    def with_column(self, name: str, value: str) -> "Cells":
        """Return the same with a further column of one value."""
        column = pd.Series(np.full(self.rows, value, dtype=object), dtype="str")
        return replace(self, names=(*self.names, name), columns=(*self.columns, column))


def is_field(heading: str) -> bool:
    """Return whether a heading names what of a symbol's day a column holds: a price, the volume, a dividend."""
    return plain(heading) in _FIELDS or is_companion(heading)


def with_a_row_a_symbol(cells: Cells, where: str) -> Cells:
    """Return cells of two lines of headings, symbol and field, with a row a symbol and day; others as they are.

    The first column holds the dates.

    Raises:
        InputError: it is not clear which line has the symbols, or a pair comes twice.
    """
    if not cells.lower:
        return cells
    levels = cells.names[1:], cells.lower[1:]
    fields = _level_of_fields(levels, cells.level_names, where)
    pairs = list(zip(levels[1 - fields], levels[fields], strict=True))
    repeated = next((pair for position, pair in enumerate(pairs) if pair in pairs[:position]), None)
    if repeated is not None:
        raise InputError(f"{where} has several columns of '{repeated[0]}' named '{repeated[1]}': leave one of them.")
    columns = dict(zip(pairs, cells.columns[1:], strict=True))
    symbols, names = list(dict.fromkeys(levels[1 - fields])), list(dict.fromkeys(levels[fields]))
    missing = pd.Series(np.full(cells.rows, np.nan))

    def one_under_the_other(parts: "Sequence[pd.Series[Any]]") -> "pd.Series[Any]":
        return pd.concat(parts, ignore_index=True)

    return Cells(
        names=(cells.names[0], "Ticker", *names),
        columns=(
            one_under_the_other([cells.columns[0]] * len(symbols)),
            pd.Series(np.repeat(np.array(symbols, dtype=object), cells.rows), dtype="str"),
            *(one_under_the_other([columns.get((symbol, name), missing) for symbol in symbols]) for name in names),
        ),
        rows=cells.rows * len(symbols),
        file_rows=cells.rows,
        first_row=cells.first_row,
        row_word=cells.row_word,
    )


def _level_of_fields(levels: tuple[Sequence[str], Sequence[str]], names: tuple[str, str], where: str) -> int:
    named = [plain(name) for name in names]
    if set(named) == _LEVEL_NAMES:
        return named.index("price")
    of_fields = [all(map(is_field, level)) for level in levels]
    if of_fields[0] == of_fields[1]:
        raise InputError(
            f"{where} has two headings above each column ('{levels[0][0]}' and '{levels[1][0]}'), and nothing says "
            "which is the symbol: give one row a symbol and day under the headings date, symbol and close."
        )
    return of_fields.index(True)
