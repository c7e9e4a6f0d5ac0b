"""Costs and order rules of single symbols (`market.instruments`): their texts, and the CSV file that lists them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, open_regular_file
from eigen_core.common.text import listed, quoted
from eigen_core.config.registry import NonNegative

MOST_INSTRUMENTS, _MOST_BYTES, _SHOWN = 10_000, 1 << 20, 5
_UNIT, _SIZE = TypeAdapter(Literal["shares", "money"]), TypeAdapter(NonNegative)


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
        words, cells = text.split(" "), dict[str, Any]()
        while len(words) > 1 and "=" in words[-1] and words[-1].partition("=")[0].islower():
            name, _, value = words.pop().partition("=")
            if name not in COLUMNS or name in cells:
                raise ValueError(f"market.instruments: {quoted(text)} has {quoted(name)}: give each of {_NAMES} once")
            try:
                cells[name] = (_UNIT if name == "volume_unit" else _SIZE).validate_strings(value)
            except ValidationError:
                wanted = "shares or money" if name == "volume_unit" else "a number from 0 to 1e9"
                message = f"market.instruments: {name} of {quoted(words[0])} is {quoted(value)}: give {wanted}"
                raise ValueError(message) from None
        symbol = " ".join(words)
        if not symbol or symbol != symbol.strip():
            raise ValueError(f"market.instruments: {quoted(text)} names no symbol: begin each row with one")
        return cls(symbol, **cells)


COLUMNS = tuple(field.name for field in fields(Instrument))[1:]
"""Columns of a table of instruments after the symbol's."""
ORDER_RULES = COLUMNS[2:-1]
"""Columns that depend on the size of an order."""
_NAMES = ", ".join(COLUMNS)


def read_instruments(path: str) -> list[str]:
    """Return the texts of the instruments in a CSV file with the column `symbol` and any of `COLUMNS`.

    Empty cells are left out. `InputError` if the file cannot be read, or has other columns.
    """
    with explained("read", Path(path), "give another table of instruments"), open_regular_file(Path(path)) as file:
        content = file.read(_MOST_BYTES + 1)
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names = [name.strip().lower() for name in header]
        if names.count("symbol") != 1 or len(set(names)) < len(names) or not {*names} <= {"symbol", *COLUMNS}:
            given = listed([*map(quoted, names)], _SHOWN)
            raise ValueError(f"its columns are {given}, not symbol and some of {_NAMES}, each once")
        texts = []
        for number, row in enumerate(rows, 2):
            if row and len(row) != len(names):
                raise ValueError(f"line {number} has {len(row)} cells, and its header has {len(names)}")
            cells = {name: cell.strip() for name, cell in zip(names, row, strict=False) if cell.strip()}
            if cells:
                texts.append(" ".join([cells.pop("symbol", ""), *map("=".join, cells.items())]))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is no table of instruments ({error}): correct it.") from error
    return texts


def instruments_of(texts: Sequence[str], symbols: Sequence[str]) -> tuple[Instrument, ...]:
    """Return the instruments of symbols, or none without texts; `InputError` if one has none, ValueError if two."""
    known: dict[str, Instrument] = {}
    for one in map(Instrument.parse, texts):
        if known.setdefault(one.symbol, one) is not one:
            raise ValueError(f"market.instruments has {quoted(one.symbol)} twice: give each symbol once")
    if texts and (missing := [symbol for symbol in symbols if symbol not in known]):
        raise InputError(
            f"market.instruments lacks {listed(missing, _SHOWN)}, which can be traded: add a row for each, or trade "
            "fewer symbols (market.symbols)."
        )
    return tuple(known[symbol] for symbol in symbols) if texts else ()
