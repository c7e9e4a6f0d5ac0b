"""Price files of known prices: in every usual layout, and with what makes them hard to read."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

Cells = dict[str, list[str]]
"""Columns of text by heading, all of one length; an empty cell is a missing one."""

SYMBOL_HEADINGS = (
    "symbol", "Ticker", "tic", "isin", "CUSIP", "permno", "Sym", "RIC", "gvkey", "company", "Security", "secid",
    "TICKER_SYMBOL", "Instrument ID", "asset", "code", "Name", "stock code",
)  # fmt: skip
CLOSE_HEADINGS = ("close", "Close", "CLOSE", "Last", "price", "Close Price", "Adj Close")
VALUE_HEADINGS = ("Value", "nav", "SETTLE", "Settlement Price", "level", "PX_LAST")
TICKERS = (
    "AAA", "BBB", "C", "BRK.B", "BF-B", "^GSPC", "ES=F", "NA", "TRUE", "LOW", "OPEN", "COIN", "DAY", "KEY", "ALL",
    "NAN", "LAST", "HIGH", "NAV", "RSI", "SYM", "GOLD", "MSFT",
)  # fmt: skip
WEEKS = {
    "UTC": "Mon Tue Wed Thu Fri",
    "America/New_York": "Mon Tue Wed Thu Fri",
    "America/Sao_Paulo": "Mon Tue Wed Thu Fri",
    "Europe/Berlin": "Mon Tue Wed Thu Fri",
    "Europe/London": "Mon Tue Wed Thu Fri",
    "Asia/Kolkata": "Mon Tue Wed Thu Fri",
    "Asia/Tokyo": "Mon Tue Wed Thu Fri",
    "Asia/Shanghai": "Mon Tue Wed Thu Fri",
    "Australia/Sydney": "Mon Tue Wed Thu Fri",
    "Asia/Jerusalem": "Sun Mon Tue Wed Thu",
    "Asia/Riyadh": "Sun Mon Tue Wed Thu",
    "Asia/Tehran": "Sat Sun Mon Tue Wed",
}
DATE_FORMATS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d-%b-%Y", "%b %d, %Y", "%m/%d/%Y", "%d.%m.%Y", "%Y-%m-%d 00:00:00",
    "%Y-%m-%dT16:00:00", "%Y%m%d1600", "%Y%m%d160000", "%Y-%m-%d 00:00:00-05:00",
)  # fmt: skip
EPOCHS = {"seconds": 1, "milliseconds": 10**3, "nanoseconds": 10**9}


@dataclass
class Prices:
    """Prices whose right reading is known.

    Attributes:
        zone: the exchange's time zone.
        days: trading days.
        closes: of each symbol, float64 `[days]`, NaN where there is none; as many decimals as are written.
        decimals: how many.
    """

    zone: str
    days: pd.DatetimeIndex
    closes: dict[str, np.ndarray]
    decimals: int

    def written(self, symbol: str) -> list[str]:
        """Return the closes of a symbol as text, empty where there is none."""
        return ["" if np.isnan(value) else f"{value:.{self.decimals}f}" for value in self.closes[symbol]]


def drawn_prices(generator: np.random.Generator, symbols: int) -> Prices:
    """Draw random walks of some symbols, with gaps and late starts."""
    zone = str(generator.choice(list(WEEKS)))
    start = pd.Timestamp("1990-01-01") + pd.Timedelta(days=int(generator.integers(0, 12_000)))
    days = pd.bdate_range(start, periods=int(generator.integers(60, 140)), freq="C", weekmask=WEEKS[zone])
    # At least four, so that no point may group thousands.
    decimals = int(generator.integers(4, 9))
    closes = {}
    for symbol in generator.choice(TICKERS, symbols, replace=False):
        walk = float(generator.choice([0.5, 20.0, 400.0])) * np.exp(
            np.cumsum(0.02 * generator.standard_normal(len(days)))
        )
        if generator.random() < 0.3:
            walk[: generator.integers(0, 20)] = np.nan
        walk[generator.random(len(days)) < generator.choice([0.0, 0.05])] = np.nan
        walk[-1] = 10.0
        closes[str(symbol)] = np.round(walk, decimals)
    return Prices(zone, days, closes, decimals)


def drawn_dates(generator: np.random.Generator, prices: Prices) -> tuple[str, list[str]]:
    """Draw how the days are written; return its name and the days as text."""
    kind = str(
        generator.choice(["format", "midnight in UTC", "number", "closing hour in UTC"], p=[0.5, 0.25, 0.15, 0.1])
    )
    midnights = prices.days.tz_localize(prices.zone, nonexistent="shift_forward", ambiguous=True).tz_convert("UTC")
    if kind == "midnight in UTC":
        return kind, [str(stamp) for stamp in midnights]
    if kind == "number":
        unit = EPOCHS[str(generator.choice(list(EPOCHS)))]
        return kind, [str(int(stamp.timestamp()) * unit) for stamp in midnights]
    if kind == "closing hour in UTC":
        return kind, [str(stamp + pd.Timedelta(hours=16)) for stamp in midnights]
    pattern = str(generator.choice(DATE_FORMATS))
    return "date and time" if "16" in pattern else "date", list(prices.days.strftime(pattern))


def wide_cells(prices: Prices, dates: list[str], date_heading: str) -> Cells:
    """Return a column of closes a symbol."""
    return {date_heading: dates, **{symbol: prices.written(symbol) for symbol in prices.closes}}


def long_cells(
    generator: np.random.Generator, prices: Prices, dates: list[str], date: str, symbol: str, close: str
) -> Cells:
    """Return a row a symbol and day in random order, with a whole bar or a close alone; the order of columns varies."""
    rows = [(dates[day], name, cell) for name in prices.closes for day, cell in enumerate(prices.written(name)) if cell]
    if generator.random() < 0.5:
        rows = [rows[position] for position in generator.permutation(len(rows))]
    found = {date: [row[0] for row in rows], symbol: [row[1] for row in rows], close: [row[2] for row in rows]}
    if generator.random() < 0.6:
        found |= {"Open": found[close], "High": found[close], "Low": found[close], "Volume": ["100"] * len(rows)}
    if generator.random() < 0.3:
        found["Sector"] = ["tech"] * len(rows)
    headings = list(generator.permutation(list(found))) if generator.random() < 0.3 else list(found)
    return {str(heading): found[str(heading)] for heading in headings}


def rows_of(cells: Cells, chosen: Callable[[int], bool] | list[int]) -> Cells:
    """Return some rows, by a condition on their number or by their numbers."""
    count = len(next(iter(cells.values())))
    rows = chosen if isinstance(chosen, list) else [row for row in range(count) if chosen(row)]
    return {heading: [column[row] for row in rows] for heading, column in cells.items()}


@dataclass(frozen=True)
class Form:
    """How a table becomes bytes: separator, line end, encoding and compression, or Parquet."""

    separator: str = ","
    line_end: str = "\n"
    encoding: str = "utf-8"
    compressed: bool = False
    parquet: bool = False

    def write(self, folder: Path, stem: str, cells: Cells) -> Path:
        """Write the table and return its path."""
        suffix = (".parquet" if self.parquet else ".csv") + (".gz" if self.compressed else "")
        path = folder / f"{stem}{suffix}"
        if self.parquet:
            frame = pd.DataFrame({heading: _typed(column) for heading, column in cells.items()})
            frame.to_parquet(path, index=False)
            content = path.read_bytes()
        else:
            text = pd.DataFrame(cells).to_csv(None, index=False, sep=self.separator, lineterminator=self.line_end)
            content = text.encode(self.encoding)
        path.write_bytes(gzip.compress(content) if self.compressed else content)
        return path


def drawn_form(generator: np.random.Generator) -> Form:
    """Draw one of the forms that are read."""
    return Form(
        separator=str(generator.choice([",", ";", "\t", "|"])),
        line_end=str(generator.choice(["\n", "\r\n", "\r"])),
        encoding=str(generator.choice(["utf-8", "utf-8-sig"])),
        compressed=bool(generator.random() < 0.2),
        parquet=bool(generator.random() < 0.25),
    )


def _typed(column: list[str]) -> list[str] | list[float | None] | pd.DatetimeIndex:
    """Return cells as numbers or instants where all are."""
    try:
        return [float(cell) if cell else None for cell in column] if any("." in cell for cell in column) else column
    except ValueError:
        pass
    if column[0].endswith("+00:00"):
        return pd.to_datetime(column, utc=True)
    return column
