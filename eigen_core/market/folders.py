"""The symbols of a folder's files that have a single column of numbers."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eigen_core.errors import InputError
from eigen_core.market.sources import PriceRows
from eigen_core.market.spellings import plain


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
