"""What the files of a source say together: whose prices single columns are, and the days that bars form."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.intraday import form_days
from eigen_core.market.sources import PriceRows
from eigen_core.market.spellings import PRICE_ROLES, plain


def with_symbols_of_files(parts: Sequence[PriceRows], folder: str) -> list[PriceRows]:
    """Return the rows of a folder's files, those with one column alone under their file's name if it is the symbol.

    Files that share the column's heading and days are of several symbols, so the heading is none (`Value`).

    Raises:
        InputError: heading and file name differ, and nothing says which of them is the symbol.
    """
    headings: dict[str, list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        if part.layout == "wide" and len(part.symbols) == 1:
            headings[part.symbols[0]].append(index)
    resolved = list(parts)
    for heading, indices in headings.items():
        differing = [
            index for index in indices if parts[index].file_symbol and plain(parts[index].file_symbol) != plain(heading)
        ]
        if len(parts) == 1 or not differing:
            continue
        if not _share_days([parts[index] for index in indices]):
            file = parts[differing[0]].file_symbol
            raise InputError(
                f"{folder}: the file '{file}' can be read in two ways: the symbol is '{heading}' by its heading or "
                f"'{file}' by its name: name the file by its symbol, and the column close."
            )
        for index in differing:
            resolved[index] = replace(parts[index], symbols=(parts[index].file_symbol,))
    return resolved


def _share_days(parts: Sequence[PriceRows]) -> bool:
    days = [np.unique(part.days) for part in parts]
    return len(np.unique(np.concatenate(days))) < sum(map(len, days))


def with_days_of_bars(parts: Sequence[PriceRows], source: str) -> list[PriceRows]:
    """Return rows of days: those that the bars within days of all files form are in the first file that has bars.

    Raises:
        InputError: the bars of one symbol and instant differ, or sessions go over midnight.
    """
    positions = [index for index, part in enumerate(parts) if part.instants is not None]
    if not positions:
        return list(parts)
    of_bars = [parts[index] for index in positions]
    symbols = tuple(dict.fromkeys(symbol for part in of_bars for symbol in part.symbols))
    codes = {symbol: code for code, symbol in enumerate(symbols)}
    names = dict.fromkeys(name for part in of_bars for name in (*part.prices, *part.own))
    formed = form_days(
        codes=np.concatenate([np.array([codes[symbol] for symbol in part.symbols])[part.codes] for part in of_bars]),
        symbols=symbols,
        instants=np.concatenate([part.instants for part in of_bars if part.instants is not None]),
        values={name: np.concatenate([_column(part, name) for part in of_bars]) for name in names},
        where=source,
    )
    first = replace(
        of_bars[0],
        symbols=symbols,
        codes=formed.codes,
        days=formed.days,
        prices={role: formed.values[role] for role in PRICE_ROLES if role in formed.values},
        own={name: column for name, column in formed.values.items() if name not in PRICE_ROLES},
        instants=None,
        bars=formed.bars,
        repeated=formed.repeated,
    )
    without_rows = {
        index: replace(parts[index], codes=first.codes[:0], days=first.days[:0], prices={}, own={}, instants=None)
        for index in positions[1:]
    }
    return [first if index == positions[0] else without_rows.get(index, part) for index, part in enumerate(parts)]


def _column(part: PriceRows, name: str) -> NDArray[np.float64]:
    columns = {str(role): prices for role, prices in part.prices.items()} | part.own
    return columns.get(name, np.full(len(part.codes), np.nan))
