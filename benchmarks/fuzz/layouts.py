"""Bars of days, within days and of weeks, as other programs write them: read, or refused where that is right."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.price_files import WEEKS, drawn_prices
from eigen_core.errors import InputError
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.files import find_source
from eigen_core.market.intraday import Intraday
from eigen_core.market.sources import read_source

_FIELDS = ("open", "high", "low", "close", "volume")
# Headings of two levels are not known apart where tickers are words for prices, too.
_WORDS = {"LOW", "OPEN", "LAST", "HIGH", "NAV", "RSI", "DAY", "KEY"}


@dataclass
class _Case:
    """What is drawn: long bars at `date`, and how they are written."""

    bars: pd.DataFrame
    zone: str
    length: str
    clock: str

    @property
    def within_days(self) -> bool:
        """Several bars a day."""
        return self.length == "bars within days"

    def stamps(self) -> pd.Series:
        """Return the instants of the bars: on the exchange's clock without a zone, with its offset, or in UTC."""
        if self.clock == "own":
            return self.bars["date"]
        local = self.bars["date"].dt.tz_localize(self.zone, nonexistent="shift_forward", ambiguous=True)
        stamps: pd.Series = local if self.clock == "offset" else local.dt.tz_convert("UTC")
        return stamps

    @property
    def symbols(self) -> set[str]:
        """Names of the symbols."""
        return set(self.bars["symbol"])


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    """Write bars in a layout, often spoiled in one way, read them with some settings and compare."""
    layout = str(generator.choice(list(_LAYOUTS)))
    case = _drawn(generator)
    spoiling = str(generator.choice(list(_SPOILINGS))) if generator.random() < 0.4 else "as it should be"
    zone = [None, case.zone][int(generator.random() < 0.5)]
    intraday = Intraday(aggregate=bool(generator.random() < 0.7), time_zone=zone)
    expected = _days(case.bars)
    path = _LAYOUTS[layout](generator, case, folder)
    must_refuse = _SPOILINGS[spoiling](generator, path) if spoiling != "as it should be" else False
    kind = f"{layout}, {case.length}, {spoiling}"
    try:
        read, report = clean_prices(read_source(find_source(str(path)), intraday), str(path), ())
    except InputError as error:
        sure = spoiling == "as it should be" and _is_sure(layout, case, intraday)
        return Outcome(kind, "refused", f"needlessly refused: {error}" if sure else None)
    if must_refuse or case.length == "weeks":
        return Outcome(kind, "misread", "read, though it is spoiled or of weeks")
    if case.within_days and not intraday.aggregate:
        return Outcome(kind, "misread", "bars within days were read as days")
    wrong = _difference(read, expected)
    if wrong is None and spoiling == "as it should be" and report.duplicate_rows:
        wrong = f"{report.duplicate_rows} rows were taken as duplicates"
    return Outcome(kind, "misread" if wrong else "read rightly", wrong)


def _is_sure(layout: str, case: _Case, intraday: Intraday) -> bool:
    if case.length == "weeks" or ("unnamed" in layout and case.symbols & _WORDS):
        return False
    clock = "utc" if layout in _IN_UTC else "own" if layout in _WITHOUT_ZONE else case.clock
    if clock == "offset" and case.zone in ("UTC", "Europe/London"):
        clock = "utc"
    if not case.within_days:
        # Weeks from Sunday on in UTC may be weeks from Monday on, a day later, as few midnights of Sydney are.
        return clock != "utc" or (WEEKS[case.zone].startswith("Mon") and case.zone != "Australia/Sydney")
    if clock == "own":
        return intraday.aggregate and intraday.time_zone is None
    return intraday.aggregate and (intraday.time_zone is not None or clock == "offset")


def _drawn(generator: np.random.Generator) -> _Case:
    prices = drawn_prices(generator, int(generator.integers(1, 6)))
    length = str(generator.choice(["bars within days", "days", "weeks"], p=[0.5, 0.4, 0.1]))
    within_days = length == "bars within days"
    if length == "weeks":
        weekly = pd.date_range(prices.days[0], periods=len(prices.days), freq="7D")
        prices = replace(prices, days=weekly)
    count = int(generator.integers(3, 8)) if within_days else 1
    parts = []
    for symbol, closes in prices.closes.items():
        known = np.repeat(np.flatnonzero(~np.isnan(closes)), count)
        hours = np.tile(np.arange(count) + 9, len(known) // count)
        # The symbols lack bars of their own, but no day.
        kept = (generator.random(len(known)) < 0.8) | (hours == 8 + count)
        known, hours = known[kept], hours[kept]
        close = np.round(closes[known] * (1 + 0.01 * generator.standard_normal(len(known))), 6) + 0.01
        opened = np.round(close * (1 + 0.01 * generator.standard_normal(len(known))), 6)
        own = {
            "date": prices.days[known] + pd.to_timedelta(hours, unit="h") if within_days else prices.days[known],
            "symbol": symbol,
            "open": opened,
            "high": np.round(np.maximum(opened, close) * 1.01 + 1e-6, 6),
            "low": np.round(np.minimum(opened, close) * 0.99, 6),
            "close": close,
            "volume": generator.integers(1, 10_000, len(known)),
        }
        parts.append(pd.DataFrame(own))
    clock = str(generator.choice(["own", "offset", "utc"]))
    return _Case(pd.concat(parts, ignore_index=True), prices.zone, length, clock)


def _days(bars: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Form the days of bars, one bar after another."""
    found: dict[tuple[str, str], list[float]] = {}
    ordered = bars.sort_values("date")
    keys = zip(ordered["symbol"], ordered["date"].dt.strftime("%Y-%m-%d"), strict=True)
    for key, (opened, high, low, close, volume) in zip(keys, ordered[list(_FIELDS)].to_numpy().tolist(), strict=True):
        before = found.setdefault(key, [opened, high, low, close, 0.0])
        found[key] = [before[0], max(before[1], high), min(before[2], low), close, before[4] + volume]
    return found


def _difference(read: CleanPrices, expected: dict[tuple[str, str], list[float]]) -> str | None:
    symbols = {symbol for symbol, _ in expected}
    if set(read.symbols) != symbols:
        return f"the symbols are {sorted(read.symbols)}, not {sorted(symbols)}"
    grids = np.stack([getattr(read, field) for field in _FIELDS], axis=-1)
    rows, columns = np.nonzero(~np.isnan(read.close))
    found = {
        (read.symbols[column], str(read.days[row])): grids[row, column]
        for row, column in zip(rows, columns, strict=True)
    }
    if found.keys() != expected.keys():
        return f"{len(found.keys() - expected.keys())} days are new, {len(expected.keys() - found.keys())} are missing"
    wrong = [key for key, values in expected.items() if not np.allclose(found[key], values, rtol=1e-10, atol=0.0)]
    return f"{len(wrong)} days have other prices, first {wrong[0]}" if wrong else None


def _yfinance(generator: np.random.Generator, case: _Case, folder: Path, names: bool = True) -> Path:
    named = case.bars.assign(date=case.stamps()).rename(columns=str.title)
    frame = named.pivot(index="Date", columns="Symbol", values=["Close", "High", "Low", "Open", "Volume"])
    if generator.random() < 0.3:
        frame = frame.swaplevel(axis=1)
        frame.columns = frame.columns.set_names(["Ticker", "Price"])
    else:
        frame.columns = frame.columns.set_names(["Price", "Ticker"])
    if not names:
        frame.columns = frame.columns.set_names([None, None])
    if generator.random() < 0.5:
        frame.to_csv(folder / "prices.csv", sep=str(generator.choice([",", ";", "\t"])))
        return folder / "prices.csv"
    frame.to_parquet(folder / "prices.parquet")
    return folder / "prices.parquet"


def _yfinance_unnamed(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    return _yfinance(generator, case, folder, names=False)


def _stooq(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    bars = case.bars
    values = {"<TICKER>": bars["symbol"], "<PER>": "60" if case.within_days else "D"}
    values |= {"<DATE>": bars["date"].dt.strftime("%Y%m%d"), "<TIME>": bars["date"].dt.strftime("%H%M%S")}
    values |= {f"<{field.upper()}>": bars[field] for field in _FIELDS[:4]} | {"<VOL>": bars["volume"]}
    return _one_or_many(generator, pd.DataFrame(values).assign(**{"<OPENINT>": 0}), "<TICKER>", folder, ".txt")


def _polygon(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    case.clock = "utc"
    instants = case.stamps().dt.tz_localize(None).dt.as_unit("ns").astype("int64")
    values = {"ticker": case.bars["symbol"], **{name: case.bars[name] for name in ("volume", "open", "close", "high")}}
    frame = pd.DataFrame(values | {"low": case.bars["low"], "window_start": instants, "transactions": 3})
    suffix = str(generator.choice([".csv", ".csv.gz", ".parquet"]))
    return _one_or_many(generator, frame, "ticker", folder, suffix)


def _freqtrade(_: np.random.Generator, case: _Case, folder: Path) -> Path:
    case.clock = "utc"
    frame = case.bars.assign(date=case.stamps().dt.as_unit("ms"))
    for symbol, own in frame.groupby("symbol"):
        name = f"{symbol}-{'1h' if case.within_days else '1d'}.feather"
        own[["date", *_FIELDS]].reset_index(drop=True).to_feather(folder / name)
    return folder


def _partitions(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    frame = case.bars.assign(date=case.stamps(), year=case.bars["date"].dt.year)
    keys = [["symbol"], ["year"], ["year", "symbol"], ["symbol", "year"]][int(generator.integers(4))]
    frame.to_parquet(folder / "prices", partition_cols=keys, index=False)
    return folder / "prices"


def _dataset(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    table = pa.Table.from_pandas(case.bars.assign(date=case.stamps()), preserve_index=False)
    form = str(generator.choice(["parquet", "feather", "csv"]))
    pyarrow.dataset.write_dataset(table, folder / "prices", format=form, max_rows_per_file=200, max_rows_per_group=200)
    return folder / "prices"


def _arrow(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    table = pa.Table.from_pandas(case.bars.assign(date=case.stamps()), preserve_index=False)
    if generator.random() < 0.5:
        table = table.set_column(1, "symbol", table["symbol"].cast(pa.string()).dictionary_encode())
    path = folder / str(generator.choice(["prices.feather", "prices.arrow", "prices.ipc"]))
    written = pa.ipc.new_file if generator.random() < 0.5 else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, written(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def _two_columns(generator: np.random.Generator, case: _Case, folder: Path) -> Path:
    """Write the date and the time of day into columns of their own."""
    pattern = str(generator.choice(["%H:%M", "%H:%M:%S", "%H%M%S", "%I:%M %p"]))
    frame = case.bars.assign(date=case.bars["date"].dt.strftime("%Y-%m-%d"))
    frame.insert(1, "Time", case.bars["date"].dt.strftime(pattern))
    frame.to_csv(folder / "prices.csv", index=False)
    return folder / "prices.csv"


def _one_or_many(generator: np.random.Generator, frame: pd.DataFrame, symbol: str, folder: Path, suffix: str) -> Path:
    """Write one file, or a file a symbol beside a note."""

    def write(path: Path, own: pd.DataFrame) -> Path:
        own.to_parquet(path, index=False) if suffix == ".parquet" else own.to_csv(path, index=False)
        return path

    if generator.random() < 0.5:
        return write(folder / f"prices{suffix}", frame)
    for name, own in frame.groupby(symbol):
        write(folder / f"{str(name).lower()}{suffix}", own)
    (folder / "readme.txt").write_text("Prices.\n", encoding="utf-8")
    return folder


_LAYOUTS: dict[str, Callable[[np.random.Generator, _Case, Path], Path]] = {
    "yfinance": _yfinance,
    "yfinance, unnamed levels": _yfinance_unnamed,
    "Stooq": _stooq,
    "Polygon": _polygon,
    "freqtrade": _freqtrade,
    "partitions": _partitions,
    "dataset": _dataset,
    "Arrow": _arrow,
    "date and time apart": _two_columns,
}
_IN_UTC = {"Polygon", "freqtrade"}
_WITHOUT_ZONE = {"Stooq", "date and time apart"}


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in found if file.is_file() and file.name != "readme.txt"]


def _spreadsheet(_: np.random.Generator, path: Path) -> bool:
    for file in _files(path):
        file.rename(file.with_name(f"{file.name.split('.')[0]}.xlsx"))
    return True


def _second_download(_: np.random.Generator, path: Path) -> bool:
    """Copy a file of a folder under another name."""
    if path.is_file():
        return False
    file = _files(path)[0]
    stem, point, suffix = file.name.rpartition(".")
    (file.parent / f"{stem} (1){point}{suffix}").write_bytes(file.read_bytes())
    return False


def _cut(generator: np.random.Generator, path: Path) -> bool:
    """Leave the end of a binary file out."""
    file = _files(path)[-1]
    if file.suffix not in (".parquet", ".feather", ".arrow", ".ipc"):
        return False
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * generator.uniform(0.1, 0.9))])
    return True


def _empty_file(_: np.random.Generator, path: Path) -> bool:
    """Empty a file; Stooq's archives hold empty ones, which the report names."""
    file = _files(path)[0]
    if file.suffix == ".txt" and path.is_dir():
        return False
    file.write_bytes(b"")
    return True


_SPOILINGS: dict[str, Callable[[np.random.Generator, Path], bool]] = {
    "named like a spreadsheet": _spreadsheet,
    "a second download": _second_download,
    "cut": _cut,
    "an empty file": _empty_file,
}
