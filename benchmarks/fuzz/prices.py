"""Price files whose right reading is known: they are read so, or refused where they can be read in another way too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.price_files import (
    CLOSE_HEADINGS,
    SYMBOL_HEADINGS,
    VALUE_HEADINGS,
    WEEKS,
    Cells,
    Form,
    Prices,
    drawn_dates,
    drawn_form,
    drawn_prices,
    long_cells,
    rows_of,
    wide_cells,
)
from eigen_core.errors import InputError
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.files import find_source
from eigen_core.market.sources import read_source

_DATE_HEADINGS = ("Date", "date", "DATE", "Trade Date", "timestamp")
# Tickers that are words for prices: among few other headings they leave a wide file open to two readings.
_WORDS = {"LOW", "OPEN", "LAST", "HIGH", "NAV", "RSI", "COIN", "DAY", "SYM"}


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    """Write prices in a layout, often spoiled in one way, read them and compare."""
    layout = str(generator.choice(list(_LAYOUTS)))
    prices = drawn_prices(generator, int(generator.integers(2 if layout in ("long", "wide") else 1, 7)))
    spoiling = str(generator.choice(list(_SPOILINGS))) if generator.random() < 0.6 else "as it should be"
    written, dates = drawn_dates(generator, prices)
    form = drawn_form(generator)
    tables = _LAYOUTS[layout](generator, prices, dates)
    # Hours of a week that begins on Sunday may be midnights of one that begins on Monday, so few of Sydney's too.
    sure = written == "date" or (
        prices.zone != "Australia/Sydney"
        if written in ("midnight in UTC", "number")
        else WEEKS[prices.zone].startswith("Mon")
    )
    sure = sure and not (layout == "wide" and _WORDS & prices.closes.keys())
    if spoiling != "as it should be":
        sure = False
        form = _SPOILINGS[spoiling](generator, tables, form)
    path = folder
    for stem, cells in tables.items():
        written_path = form.write(folder, stem, cells)
        path = folder if layout.startswith("folder") else written_path
    kind = f"{layout}, {spoiling}"
    try:
        read, _ = clean_prices(read_source(find_source(str(path))), str(path), ())
    except InputError as error:
        return Outcome(kind, "refused", f"needlessly refused: {error}" if sure else None)
    wrong = _difference(read, prices)
    return Outcome(kind, "misread" if wrong else "read rightly", wrong)


def _difference(read: CleanPrices, prices: Prices) -> str | None:
    if set(read.symbols) != set(prices.closes):
        return f"the symbols are {sorted(read.symbols)}, not {sorted(prices.closes)}"
    closes = pd.DataFrame(read.close, index=pd.DatetimeIndex(read.days), columns=list(read.symbols))
    expected = pd.DataFrame(prices.closes, index=prices.days).dropna(how="all")[list(read.symbols)]
    if not closes.index.equals(expected.index):
        return f"the days are {list(closes.index[:3])}, ..., not {list(expected.index[:3])}, ..."
    same = np.isclose(closes, expected, rtol=1e-12, atol=0.0, equal_nan=True)
    return None if same.all() else f"{int((~same).sum())} closes are others"


Tables = dict[str, Cells]
"""The files of a case by stem."""


def _long(generator: np.random.Generator, prices: Prices, dates: list[str]) -> Tables:
    date, symbol, close = (
        str(generator.choice(headings))
        for headings in (_DATE_HEADINGS, SYMBOL_HEADINGS, CLOSE_HEADINGS + VALUE_HEADINGS)
    )
    return {"prices": long_cells(generator, prices, dates, date, symbol, close)}


def _wide(generator: np.random.Generator, prices: Prices, dates: list[str]) -> Tables:
    return {"prices": wide_cells(prices, dates, str(generator.choice(["Date", "date", "Trading Day", ""])))}


def _one_symbol(generator: np.random.Generator, prices: Prices, dates: list[str]) -> Tables:
    name = next(iter(prices.closes))
    prices.closes = {name: prices.closes[name]}
    close = str(generator.choice(CLOSE_HEADINGS + VALUE_HEADINGS))
    cells = long_cells(generator, prices, dates, str(generator.choice(_DATE_HEADINGS)), "Sector", close)
    return {name: cells}


def _folder_of_bars(generator: np.random.Generator, prices: Prices, dates: list[str]) -> Tables:
    close = str(generator.choice(CLOSE_HEADINGS))
    tables = {}
    for name in prices.closes:
        own = replace(prices, closes={name: prices.closes[name]})
        cells = long_cells(generator, own, dates, "Date", "Sector", close)
        tables[name] = {heading: column for heading, column in cells.items() if heading != "Sector"}
    return tables


def _folder_of_values(generator: np.random.Generator, prices: Prices, dates: list[str]) -> Tables:
    heading = str(generator.choice(VALUE_HEADINGS))
    return {name: {"Date": dates, heading: prices.written(name)} for name in prices.closes}


_LAYOUTS: dict[str, Callable[[np.random.Generator, Prices, list[str]], Tables]] = {
    "long": _long,
    "wide": _wide,
    "one symbol": _one_symbol,
    "folder of bars": _folder_of_bars,
    "folder of values": _folder_of_values,
}


def _first(tables: Tables) -> tuple[str, Cells]:
    return next(iter(tables.items()))


def _rename_symbols(_: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Give headings that are not known to columns of text and of prices."""
    for stem, cells in tables.items():
        named = {}
        for heading, column in cells.items():
            known = {plain for plain in SYMBOL_HEADINGS if plain == heading}
            named["Wertpapier" if known else heading] = column
        tables[stem] = named
    return form


def _second_key(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Repeat all rows for a second exchange, with the same prices or others."""
    same = generator.random() < 0.3
    for stem, cells in tables.items():
        count = len(next(iter(cells.values())))
        both = rows_of(cells, [row // 2 for row in range(2 * count)])
        for heading, column in both.items():
            if not same and all(_is_number(cell) for cell in column if cell):
                both[heading] = [cell and cell + "7" if row % 2 else cell for row, cell in enumerate(column)]
        key = str(generator.choice(["exchange", "currency", "field", "venue", "Time"]))
        tables[stem] = {**both, key: [("one", "two")[row % 2] for row in range(2 * count)]}
    return form


def _other_prices_again(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Put rows of other prices before those they correct."""
    for stem, cells in tables.items():
        count = len(next(iter(cells.values())))
        wrong = rows_of(cells, [int(row) for row in generator.integers(0, count, 3)])
        wrong = {
            heading: [cell and f"{2 * float(cell):.6f}" if _is_number(cell) else cell for cell in column]
            for heading, column in wrong.items()
        }
        tables[stem] = {heading: wrong[heading] + cells[heading] for heading in cells}
    return form


def _same_rows_again(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    for stem, cells in tables.items():
        count = len(next(iter(cells.values())))
        tables[stem] = rows_of(cells, [*range(count), *(int(row) for row in generator.integers(0, count, 5))])
    return form


def _columns_beside(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Add columns that are no prices of another symbol."""
    names = (
        "AAA volume",
        "weekday",
        "AAA.Open",
        "Volume MSFT",
        "sma_20",
        "Dividends",
        "C Return",
        "month",
        "id",
        "BBBOpen",
    )
    for stem, cells in tables.items():
        count = len(next(iter(cells.values())))
        for name in generator.choice(names, int(generator.integers(1, 3)), replace=False):
            cells[str(name)] = [str(int(value)) for value in generator.integers(1, 5, count)]
        tables[stem] = cells
    return form


def _within_days(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Make three bars of each, at hours of the day."""
    for stem, cells in tables.items():
        count = len(next(iter(cells.values())))
        bars = rows_of(cells, [row // 3 for row in range(3 * count)])
        date = next(iter(cells)) if stem == "prices" and "" in cells else _date_heading(cells)
        days = pd.date_range("2019-01-01", periods=count)
        bars[date] = [f"{days[row // 3]:%Y-%m-%d} {10 + row % 3}:30" for row in range(3 * count)]
        tables[stem] = rows_of(bars, list(range(3 * count))[:: int(generator.choice([1, -1]))])
    return form


def _decimal_comma(_: np.random.Generator, tables: Tables, form: Form) -> Form:
    for cells in tables.values():
        for heading, column in cells.items():
            if all(_is_number(cell) for cell in column if cell):
                cells[heading] = [cell.replace(".", ",") for cell in column]
    return replace(form, separator=";", parquet=False)


def _points_of_thousands(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Write numbers of three decimals, whose points may as well group thousands."""
    for cells in tables.values():
        for heading, column in cells.items():
            if any("." in cell for cell in column) and all(_is_number(cell) for cell in column if cell):
                cells[heading] = [cell and f"{1.0 + float(cell) % 99:.3f}" for cell in column]
    return replace(form, separator=str(generator.choice([";", "\t"])), parquet=False)


def _other_encoding(generator: np.random.Generator, _: Tables, form: Form) -> Form:
    return replace(form, encoding=str(generator.choice(["utf-16", "utf-32", "cp037"])), parquet=False)


def _days_or_months(generator: np.random.Generator, tables: Tables, form: Form) -> Form:
    """Keep days up to the twelfth, written day first or month first."""
    pattern = str(generator.choice(["%d/%m/%Y", "%m/%d/%Y"]))
    for stem, cells in tables.items():
        date = _date_heading(cells)
        days = pd.to_datetime(pd.Series(cells[date]), errors="coerce", utc=True, format="mixed")
        kept = [row for row, day in enumerate(days) if not pd.isna(day) and day.day <= 12]
        tables[stem] = rows_of(cells, kept)
        tables[stem][date] = [days[row].strftime(pattern) for row in kept]
    return form


def _date_heading(cells: Cells) -> str:
    return next(heading for heading in cells if heading in (*_DATE_HEADINGS, "Trading Day", ""))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "." in cell


_SPOILINGS: dict[str, Callable[[np.random.Generator, Tables, Form], Form]] = {
    "unknown heading of symbols": _rename_symbols,
    "second key": _second_key,
    "other prices of a day": _other_prices_again,
    "rows twice": _same_rows_again,
    "columns beside": _columns_beside,
    "bars within a day": _within_days,
    "decimal comma": _decimal_comma,
    "points of thousands": _points_of_thousands,
    "other encoding": _other_encoding,
    "day or month first": _days_or_months,
}
