"""Price files drawn at random as vendors and their programs write them; all must be read without settings."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Generator = np.random.Generator

FIELDS = ("open", "high", "low", "close", "volume")
_STOCKS = ("AAPL", "MSFT", "BRK.B", "BRK-B", "^GSPC", "0700.HK", "600519", "LOW", "NA", "TRUE", "F", "SAP.DE", "EURUSD")
_COINS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "ADAUSDT")
_EXCHANGES = (
    ("NASDAQ", "America/New_York", 9.5),
    ("NYSE", "America/New_York", 9.5),
    ("XETR", "Europe/Berlin", 9.0),
    ("BINANCE", "UTC", 0.0),
    ("TSE", "Asia/Tokyo", 9.0),
)


@dataclass
class Case:
    """A price file and its right treatment.

    Attributes:
        right: to be `read`, `refused`, or `either`.
        fields: fields of the bars that the file has.
        given: settings of the reader's user.
        named: settings that the user adds after a refusal: the file must be refused without them, and read with them.
    """

    path: Path
    bars: pd.DataFrame
    right: Literal["read", "refused", "either"] = "read"
    fields: tuple[str, ...] = FIELDS
    given: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)


def drawn(generator: Generator, symbols: int = 0, coins: bool = False) -> pd.DataFrame:
    names = generator.permutation(_COINS if coins else _STOCKS)[: symbols or int(generator.integers(1, 5))]
    days = int(generator.integers(40, 260))
    start = f"{generator.integers(2015, 2025)}-{generator.integers(1, 13):02}-{generator.integers(1, 28):02}"
    dates = (pd.date_range if coins else pd.bdate_range)(start, periods=days)
    parts = []
    for number, name in enumerate(names):
        close = 10 ** generator.uniform(0.5, 3) * np.exp(np.cumsum(0.02 * generator.standard_normal(days)))
        opened = close * np.exp(0.01 * generator.standard_normal(days))
        high, low = np.maximum(opened, close) * 1.004, np.minimum(opened, close) * 0.996
        own = dict(zip(FIELDS, (opened, high, low, close), strict=False)) | {
            "volume": generator.integers(1, 10**6, days)
        }
        late = int(generator.integers(0, 15)) if number and generator.random() < 0.3 else 0
        parts.append(pd.DataFrame({"date": dates, "symbol": str(name), **own})[late:])
    return pd.concat(parts, ignore_index=True).round(dict.fromkeys(FIELDS[:4], 4))


def chance(generator: Generator, share: float = 0.5) -> bool:
    return bool(generator.random() < share)


def one_of(generator: Generator, options: Any) -> Any:  # noqa: ANN401 - any sequence
    return options[int(generator.integers(len(options)))]


def written(generator: Generator, path: Path, frame: pd.DataFrame) -> Path:
    """Write a table as Parquet, or as CSV in one of the forms that are read without settings."""
    if chance(generator, 0.2):
        frame.to_parquet(path.with_suffix(".parquet"), index=False)
        return path.with_suffix(".parquet")
    separator, decimal = str(generator.choice([",", ";", "\t", "|"])), "."
    if separator != "," and chance(generator):
        decimal = ","
    text = frame.to_csv(None, index=False, sep=separator, decimal=decimal)
    lines = text.splitlines()
    if separator == "," and chance(generator, 0.2):
        lines = [f"{line}," for line in lines]
    if separator == ";" and chance(generator, 0.3):
        lines = ["sep=;", *lines]
    encoding = str(generator.choice(["utf-8", "utf-8-sig", "utf-16"]))
    content = (str(generator.choice(["\n", "\r\n"])).join(lines) + "\n").encode(encoding)
    if chance(generator, 0.2):
        path = path.with_name(f"{path.stem}.csv.gz")
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


def _yfinance(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    frame = bars.rename(columns=str.title).pivot(index="Date", columns="Symbol", values=[*map(str.title, FIELDS)])
    frame.columns = frame.columns.set_names(["Price", "Ticker"])
    if chance(generator, 0.3):
        frame = frame.swaplevel(axis=1)
    if set(bars["symbol"]) != {"LOW"} and chance(generator, 0.3):
        frame.columns = frame.columns.set_names([None, None])
    if chance(generator):
        frame.to_csv(folder / "p.csv")
        return Case(folder / "p.csv", bars, "read")
    frame.to_parquet(folder / "p.parquet")
    return Case(folder / "p.parquet", bars, "read")


def _stooq(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    frame = pd.DataFrame({"<TICKER>": bars["symbol"], "<PER>": "D", "<DATE>": bars["date"].dt.strftime("%Y%m%d")})
    frame["<TIME>"] = "000000"
    for name in FIELDS[:4]:
        frame[f"<{name.upper()}>"] = bars[name]
    frame["<VOL>"] = bars["volume"]
    frame["<OPENINT>"] = 0
    for symbol, own in frame.groupby("<TICKER>"):
        own.to_csv(folder / f"{str(symbol).lower()}.us.txt", index=False, lineterminator="\r\n")
    return Case(folder, bars, "read")


def _polygon(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    utc = bars["date"].dt.tz_localize("America/New_York").dt.tz_convert("UTC").dt.tz_localize(None)
    frame = bars.rename(columns={"symbol": "ticker"}).assign(window_start=utc.dt.as_unit("ns").astype("int64"))
    frame = frame.assign(transactions=7)[
        ["ticker", "volume", "open", "close", "high", "low", "window_start", "transactions"]
    ]
    for day, own in frame.groupby(bars["date"].dt.month):
        own.to_csv(folder / f"2020-{day:02}-02.csv.gz", index=False)
    return Case(folder, bars, "read")


def _freqtrade(generator: Generator, folder: Path) -> Case:
    """Write freqtrade's folder of spot prices in one of its formats, also with its folder of futures."""
    bars = drawn(generator, coins=True)
    bars["symbol"] = bars["symbol"].str.replace("USDT", "_USDT")
    ending = one_of(generator, ("feather", "parquet", "json", "json.gz"))
    for symbol, own in bars.groupby("symbol"):
        path = folder / f"{symbol}-1d.{ending}"
        own = own.assign(date=own["date"].dt.tz_localize("UTC").dt.as_unit("ms"))[["date", *FIELDS]]
        if ending.startswith("json"):
            own.assign(date=own["date"].astype("int64")).to_json(path, orient="values")
        else:
            getattr(own.reset_index(drop=True), f"to_{ending}")(path)
    if chance(generator, 0.3):
        (folder / "futures").mkdir()
        own.reset_index(drop=True).to_feather(folder / "futures" / "BTC_USDT_USDT-1d-futures.feather")
    return Case(folder, bars, "read")


def _duckdb(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    table = pa.Table.from_pandas(bars, preserve_index=False)
    for position, name in enumerate(table.column_names):
        kind = pa.date32() if name == "date" else pa.decimal128(18, 4) if name in FIELDS[:4] else None
        if kind is not None:
            cells = [f"{cell:.4f}" for cell in bars[name]] if name != "date" else bars[name].dt.date.tolist()
            column = pa.array(cells).cast(kind)
            table = table.set_column(position, name, column)
    pq.write_table(table, folder / "p.parquet")
    return Case(folder / "p.parquet", bars, "read")


def _nasdaq(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=2)
    for symbol, own in bars.groupby("symbol"):
        money = {name.title(): own[name].map("${:,.4f}".format) for name in ("open", "high", "low")}
        frame = pd.DataFrame(
            {"Date": own["date"].dt.strftime("%m/%d/%Y"), "Close/Last": own["close"].map("${:.4f}".format)}
        )
        frame = frame.assign(Volume=own["volume"].map("{:,}".format), **money)
        frame.iloc[::-1].to_csv(folder / f"{symbol}.csv", index=False)
    return Case(folder, bars, "read")


def _investing(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=1)
    pattern = str(generator.choice(["%m/%d/%Y", "%b %d, %Y"]))
    frame = pd.DataFrame({"Date": bars["date"].dt.strftime(pattern), "Price": bars["close"].map("{:,.4f}".format)})
    for name in ("open", "high", "low"):
        frame[name.title()] = bars[name].map("{:,.4f}".format)
    unit, letter = one_of(generator, ((1e3, "K"), (1e6, "M")))
    frame["Vol."] = (bars["volume"] / unit).map("{:.2f}".format) + letter
    frame["Change %"] = "0.5%"
    # A volume that was rounded to zero beside a moving price is unknown.
    bars["volume"] = (frame["Vol."].str[:-1].astype(float) * unit).replace(0.0, np.nan)
    path = folder / f"{bars['symbol'][0]}.csv"
    frame.iloc[::-1].to_csv(path, index=False, encoding="utf-8-sig", quoting=1)
    return Case(path, bars, "read")


def _klines(generator: Generator, folder: Path) -> Case:
    """Write Binance's archive: milliseconds, from 2025 microseconds; with or without headings; also by months."""
    bars = drawn(generator, coins=True)
    stamps = bars["date"].dt.as_unit("ms").astype("int64")
    late = bars["date"] >= "2025-01-01"
    frame = pd.DataFrame({"open_time": stamps.where(~late, stamps * 1_000), **{name: bars[name] for name in FIELDS}})
    frame["close_time"] = frame["open_time"] + 86_399_999
    names = ("quote_volume", "count", "taker_buy_volume", "taker_buy_quote_volume", "ignore")
    frame = frame.assign(**dict.fromkeys(names, 7))
    named, monthly = chance(generator), chance(generator)
    if named and chance(generator, 0.3):
        frame = frame.rename(columns={"open_time": "date"})
    months = bars["date"].dt.strftime("%Y-%m") if monthly else pd.Series("", index=bars.index)
    for (symbol, month), own in frame.groupby([bars["symbol"], months]):
        path = folder / (f"{symbol}-1d-{month}.csv" if month else f"{symbol}.csv")
        own.to_csv(path, index=False, header=named)
    return Case(folder, bars)


def _bulk(generator: Generator, folder: Path) -> Case:
    """Write Stooq's archive, or a well-known copy of it with other headings; some files are empty."""
    bars = drawn(generator)
    old = chance(generator)
    for number, (symbol, own) in enumerate(bars.groupby("symbol")):
        place = folder / ("Stocks" if old else f"daily/us/nasdaq stocks/{number % 2 + 1}")
        place.mkdir(parents=True, exist_ok=True)
        name = f"{str(symbol).lower()}.us"
        bars.loc[own.index, "symbol"] = name if old else name.upper()
        days = own["date"].dt.strftime("%Y-%m-%d" if old else "%Y%m%d")
        fields = own[list(FIELDS)].assign(last=0)
        if old:
            fields.columns = ["Open", "High", "Low", "Close", "Volume", "OpenInt"]
            fields.insert(0, "Date", days)
        else:
            fields.columns = ["<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>", "<OPENINT>"]
            stamped = {"<TICKER>": name.upper(), "<PER>": "D", "<DATE>": days, "<TIME>": "000000"}
            fields = pd.DataFrame(stamped).join(fields)
        fields.to_csv(place / f"{name}.txt", index=False, lineterminator="\r\n")
        (place / "empty.us.txt").touch()
    return Case(folder / "Stocks" if old and chance(generator) else folder, bars)


def _exchange_rows(generator: Generator, folder: Path) -> Case:
    """Write rows of milliseconds, open, high, low, close and volume (ccxt), or, to be refused, in other orders.

    They may have passed through an array of NumPy, in which milliseconds are floats.
    """
    bars = drawn(generator, coins=True)
    stamps = bars["date"].dt.as_unit("ms").astype("int64")
    order = one_of(
        generator,
        (
            FIELDS,
            FIELDS,
            FIELDS,
            ("open", "close", "high", "low", "volume"),
            ("low", "high", "open", "close", "volume"),
        ),
    )
    heading = one_of(generator, (False, [str(number) for number in range(6)], "indexed"))
    parquet, kind = heading and chance(generator, 0.3), one_of(generator, ("int64", "float64"))
    for symbol, own in bars.groupby("symbol"):
        name = str(symbol).replace("USDT", "_USDT")
        bars.loc[own.index, "symbol"] = name
        rows = pd.concat([stamps[own.index], own[list(order)]], axis=1, ignore_index=True)
        rows = rows.astype({0: kind}).reset_index(drop=True)
        if parquet:
            rows.set_axis([str(number) for number in range(6)], axis=1).to_parquet(folder / f"{name}.parquet")
        else:
            rows.to_csv(folder / f"{name}.csv", index=heading == "indexed", header=bool(heading))
    return Case(folder, bars, "read" if order == FIELDS else "refused")


def _futures(generator: Generator, folder: Path) -> Case:
    """Write freqtrade's folder of futures, with funding rates and mark prices, to be refused."""
    bars = drawn(generator, coins=True)
    for symbol, own in bars.groupby("symbol"):
        name = str(symbol).replace("USDT", "_USDT_USDT")
        own = own.assign(date=own["date"].dt.tz_localize("UTC"))[["date", *FIELDS]].reset_index(drop=True)
        own.to_feather(folder / f"{name}-1d-futures.feather")
        for other in ("1h-mark", "8h-mark", "8h-funding_rate", "1h-funding_rate")[: int(generator.integers(0, 5))]:
            own.assign(open=0.0001).to_feather(folder / f"{name}-{other}.feather")
    return Case(folder, bars, "refused")


def _chart(generator: Generator, folder: Path) -> Case:
    """Write a chart's export (TradingView): opens of sessions in seconds or with offsets, and indicators."""
    exchange, zone, hour = one_of(generator, _EXCHANGES)
    bars = drawn(generator)
    opens = (bars["date"] + pd.Timedelta(hours=hour)).dt.tz_localize(zone)
    texts = opens.dt.tz_convert("UTC").dt.tz_localize(None).dt.as_unit("s").astype("int64").astype(str)
    offsets = chance(generator, 0.3)
    if offsets:
        texts = opens.map(lambda stamp: stamp.isoformat())
    frame = bars.assign(time=texts)
    headings = ["time", "open", "high", "low", "close", "MA", "MA", "Volume"]
    for symbol, own in frame.groupby("symbol"):
        ending = str(generator.choice(["", " (1)", "_4f2a1"]))
        rows = own.assign(a=np.nan, b=1.0)[["time", *FIELDS[:4], "a", "b", "volume"]].set_axis(headings, axis=1)
        rows.to_csv(folder / f"{exchange}_{symbol}, 1D{ending}.csv", index=False)
    return Case(folder, bars, named=[f"market.time_zone={zone}"] if exchange == "XETR" and not offsets else [])


VENDOR_FILES: dict[str, Callable[[Generator, Path], Case]] = {
    "yfinance": _yfinance,
    "Stooq": _stooq,
    "Polygon": _polygon,
    "freqtrade": _freqtrade,
    "DuckDB": _duckdb,
    "nasdaq.com": _nasdaq,
    "investing.com": _investing,
    "Binance": _klines,
    "archives in folders": _bulk,
    "rows of an exchange": _exchange_rows,
    "futures with funding": _futures,
    "exports of a chart": _chart,
}
