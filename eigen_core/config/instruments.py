"""Costs and order rules of single symbols (`market.instruments`): their texts, and the CSV file that lists them."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, open_regular_file
from eigen_core.common.text import listed, quoted

MOST_INSTRUMENTS = 10_000
_MOST_BYTES = 1 << 20
_LARGEST = 1e9
_CELL = re.compile(r"([a-z_]+)=(.*)")
_SHOWN = 5


@dataclass(frozen=True)
class Instrument:
    """Costs and order rules of a symbol.

    Attributes:
        cost_bps, slippage_bps: in place of `trading.cost_bps` and `trading.slippage_bps` (basis points); None: these.
        minimum_fee: smallest transaction cost of an order (money).
        lot_size: the shares of an order are a multiple of it; 0: any number.
        minimum_size, minimum_notional: an order of fewer shares, or for less money, is not placed.
        volume_unit: unit of the data's volumes, `shares` or `money`.
    """

    symbol: str
    cost_bps: float | None = None
    slippage_bps: float | None = None
    minimum_fee: float = 0.0
    lot_size: float = 0.0
    minimum_size: float = 0.0
    minimum_notional: float = 0.0
    volume_unit: str = "shares"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as `BTC cost_bps=10 lot_size=0.001`; raise ValueError with a sentence if it is none."""
        words, cells = text.split(" "), dict[str, str]()
        while len(words) > 1 and (cell := _CELL.fullmatch(words[-1])):
            name, value = cell.groups()
            if name in cells:
                raise ValueError(f"market.instruments: {quoted(text)} gives {name} twice: give it once")
            cells[name] = value
            words.pop()
        return cls._of_cells(" ".join(words), cells)

    @classmethod
    def _of_cells(cls, symbol: str, cells: Mapping[str, str]) -> Self:
        if not symbol or symbol != symbol.strip():
            raise ValueError(f"market.instruments: {quoted(symbol)} is no symbol: begin each row with one")
        if unknown := sorted(set(cells) - set(COLUMNS)):
            raise ValueError(
                f"market.instruments: {quoted(unknown[0])} of {quoted(symbol)} is unknown: give {', '.join(COLUMNS)}"
            )
        values = {name: text if name == "volume_unit" else _number(symbol, name, text) for name, text in cells.items()}
        if (unit := values.get("volume_unit", "shares")) not in ("shares", "money"):
            raise ValueError(f"market.instruments: volume_unit of {symbol} is {quoted(unit)}: give shares or money")
        return cls(symbol, **values)  # type: ignore[arg-type] # a text is that of volume_unit


COLUMNS = tuple(field.name for field in fields(Instrument))[1:]
"""Columns of a table of instruments after the symbol's."""


def _number(symbol: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= _LARGEST:
        raise ValueError(
            f"market.instruments: {name} of {symbol} is {quoted(text)}: give a number from 0 to {_LARGEST:,.0f}"
        )
    return value


def read_instruments(path: str) -> list[str]:
    """Return the texts of the instruments in a CSV file with the column `symbol` and any of `COLUMNS`.

    Empty cells are left out. `InputError` if the file cannot be read, has other columns, or a row is no instrument.
    """
    with explained("read", Path(path), "give another table of instruments"), open_regular_file(Path(path)) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise InputError(f"{path} has more than {_MOST_BYTES:,} bytes: keep the rows of symbols that are traded.")
    try:
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names = [name.strip().lower() for name in header]
        unknown = [name for name in names if name not in ("symbol", *COLUMNS)]
        if unknown or names.count("symbol") != 1 or len(set(names)) < len(names):
            wrong = f"; {quoted(unknown[0])} is unknown" if unknown else ""
            raise ValueError(f"its columns must be symbol and some of {', '.join(COLUMNS)}, each once{wrong}")
        texts = []
        for number, row in enumerate(rows, 2):
            if not any(row):
                continue
            if len(row) != len(names):
                raise ValueError(f"line {number} has {len(row)} cells, and its header has {len(names)}")
            cells = {name: cell.strip() for name, cell in zip(names, row, strict=True) if cell.strip()}
            texts.append(" ".join([cells.pop("symbol", ""), *(f"{name}={cell}" for name, cell in cells.items())]))
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path} is no table of instruments ({error}): correct it.") from error
    return texts


def instruments_of(texts: Sequence[str], symbols: Sequence[str]) -> tuple[Instrument, ...]:
    """Return the instruments of symbols, in their order, or none without texts; `InputError` if one has none."""
    known = {one.symbol: one for one in map(Instrument.parse, texts)}
    missing = [symbol for symbol in symbols if symbol not in known] if texts else []
    if missing:
        raise InputError(
            f"market.instruments lacks {listed(missing, _SHOWN)}, which can be traded: add a row for each, or trade "
            "fewer symbols (market.symbols)."
        )
    return tuple(known[symbol] for symbol in symbols) if texts else ()
