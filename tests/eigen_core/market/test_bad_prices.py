"""Prices that cannot be used or be right: refused, reported, or set right from their own day and counted."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from market_cases import business_days, cleaned, random_bars, small_config, write_csv, write_text

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.market import BUNDLED, path_of_data
from eigen_core.machine.memory_usage import own_resident_bytes, peak_resident_bytes, reset_peak
from eigen_core.market import build_panel
from eigen_core.market.audit import audit_market
from eigen_core.market.build import TrainingDays, inference_panel
from eigen_core.market.cleaning import suspicious_prices
from eigen_core.market.formats import Role
from eigen_core.market.reading import MEMORY_PER_BYTE, WIDE_MEMORY_PER_BYTE
from eigen_core.market.report import DataReport, UniverseAudit, distorting_rows

LONG = "Date,Ticker,Close\n2020-01-02,A,1\n2020-01-03,A,"
GOOD = random_bars(["A"], 30, seed=1)


def written(content: str | bytes | pd.DataFrame, name: str = "p.csv") -> Callable[[Path], Path]:
    """Return a function that writes a file into a folder."""

    def write(folder: Path) -> Path:
        path = folder / name
        if isinstance(content, pd.DataFrame):
            content.to_parquet(path) if name.endswith(".parquet") else content.to_csv(path, index=False)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def parquet_case(zone: str = "UTC", symbol: object = "A") -> Callable[[Path], Path]:
    dates = pd.to_datetime([1_577_923_200] * 3, unit="s", utc=True)
    table = pa.table({"date": pa.array(dates, pa.timestamp("us", zone)), "symbol": [symbol] * 3, "close": [1.0] * 3})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return written(sink.getvalue().to_pybytes(), "p.parquet")


def heading_of_bytes(folder: Path) -> Path:
    path = written(pd.DataFrame({"date": ["2020-01-02"], "abcdefgh": [1.0]}), "p.parquet")(folder)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcd\xc8fgh"))
    return path


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "p.csv")
    return folder / "p.csv"


def folder_case(**files: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "prices").mkdir()
        for stem, content in files.items():
            write_text(folder / "prices" / f"{stem}.csv", content)
        return folder / "prices"

    return write


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "blank name": (lambda _: Path(" "), "blank"),
    "missing file": (lambda folder: folder / "nothing.csv", "no file or folder .*nothing.csv"),
    "name too long": (lambda folder: folder / ("x" * 300 + ".csv"), "cannot be read"),
    "unknown home": (lambda _: Path("~nosuchuser/x"), "no file or folder ~nosuchuser/x"),
    "pipe": (pipe, "pipe or a device"),
    "spreadsheet": (written(LONG, "prices.XLSX"), "is no price file: give CSV or Parquet"),
    "archive": (written(LONG, "prices.tar.gz"), "is no price file: give CSV or Parquet"),
    "empty file": (written(""), "is empty"),
    "headings alone": (written("Date,Ticker,Close\n"), "no rows"),
    "one column": (written("Close\n1\n2\n"), "one column only"),
    "only blank dates": (written("Date,Close\n,1\n,2\n"), "no row with a date"),
    "text in prices": (written(LONG + "abc\n"), r"p\.csv, line 3, column 'Close': 'abc' is no number"),
    "truth values": (written("Date,Close\n2020-01-02,True\n2020-01-03,False\n"), "is no number"),
    "unreadable date": (written("Date,Close\n2020-01-02,1\n2020-02-31,2\n"), "line 3, .*'2020-02-31' is no date"),
    "serial numbers": (written("Date,Close\n43831,1\n43832,2\n"), "'43831' is no date"),
    "ambiguous dates": (
        written("Date,Close\n01/02/2020,1\n03/04/2020,2\n"),
        "is no date as 2024-12-31: name the format of the dates in market.date_format",
    ),
    "no date column": (written("Ticker,Close,Open\nA,1,1\n"), "has the columns 'Ticker'.*neither those of the long"),
    "no headings": (written("2020-01-02,1,2\n2020-01-03,1,2\n"), "begins with '2020-01-02': write headings"),
    "duplicate roles": (written("Date,Close,Close,Symbol\n2020-01-02,1,2,A\n"), "several columns named 'Close'"),
    "too many cells": (written("Date,Close\n2020-01-02,1\n2020-01-03,1,2\n"), "more cells than|line 3"),
    "garbage csv": (written(bytes(range(256)) * 8), "neither UTF-8 nor UTF-16 text"),
    "nul bytes": (written("Date,A\n2020-01-02,\0\n"), "neither UTF-8 nor UTF-16 text"),
    "garbage parquet": (written(b"PAR1" + bytes(range(256)) + b"PAR1", "p.parquet"), "no Parquet file"),
    "parquet named csv": (lambda folder: written(GOOD, "p.parquet")(folder).rename(folder / "p.csv"), "UTF-8"),
    "damaged gzip": (written(gzip.compress(LONG.encode() * 100)[:-20], "p.csv.gz"), "is damaged"),
    "heading of 200,000 characters": (written(f"Date,{'A' * 200_000}\n2020-01-02,1\n"), "has no headings in its"),
    "heading of 100,000 characters": (written(f"Date,{'A' * 100_000}\n2020-01-02,1\n"), "heading of 100,000 char"),
    "unknown time zone": (parquet_case(zone="Mars/Phobos"), "has an unknown time zone"),
    "bytes that are no text": (parquet_case(symbol=b"\xff"), "damaged"),
    "heading that is no text": (heading_of_bytes, "damaged"),
    "second download": (
        folder_case(**{"A": "Date,Close\n2020-01-02,1\n", "A (1)": "Date,Close\n2020-01-02,1\n"}),
        r"A \(1\)\.csv has no column of symbols, and its name may be more than a symbol",
    ),
    "quote that is not closed": (
        written(LONG + '"2\n2020-01-06,A,3\n2020-01-07,A,"4\n2020-01-08,A,5\n'),
        "quotation mark",
    ),
    "empty folder": (folder_case(), "holds no price file"),
    "bad file in folder": (folder_case(A=LONG + "2\n", B="Date,Close\n2020-01-02,x\n"), r"B\.csv, line 2"),
    "two headings, one twice": (
        written("Price,Close,Close\nTicker,A,A\nDate,,\n2020-01-02,1,2\n"),
        "several columns of 'A' named 'Close'",
    ),
    "two headings, no symbol": (
        written("Price,Close\nTicker,\nDate,\n2020-01-02,1\n"),
        "no row with a date and a symbol",
    ),
    "text under two headings": (
        written("Price,Close\nTicker,A\nDate,\n2020-01-02,1\n2020-01-03,x\n"),
        r"line 5, column 'Close': 'x' is no number",
    ),
    "nan-only symbol": (written(GOOD.assign(open=np.nan, high=np.nan, low=np.nan, close=np.nan)), "no usable price"),
    "too few days": (written(GOOD[:23]), "needs at least 24 bars.*the panel has 23"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_prices_are_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    write, words = CASES[case]
    path, cache = write(tmp_path), tmp_path / "cache"
    with pytest.raises(InputError, match=words) as caught:
        build_panel(small_config(path), cache)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    assert not list(cache.glob("panels/*"))


@pytest.mark.parametrize("variable", ["EIGEN_CACHE", "XDG_CACHE_HOME"])
def test_unwritable_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("EIGEN_CACHE", raising=False)
    monkeypatch.setenv(variable, str(write_text(tmp_path / "file", "in the way")))
    with pytest.raises(InputError, match=r"cannot be written.*EIGEN_CACHE"):
        build_panel(small_config(write_csv(tmp_path / "p.csv", GOOD)))


@pytest.mark.parametrize(
    ("packed", "layout", "held", "need"),
    [(False, "long", "60 MB", "540 MB"), (True, "long", "22 MB", "200 MB"), (False, "wide", "60 MB", r"1\.56 GB")],
)
def test_prices_that_do_not_fit_are_refused_unread(
    tmp_path: Path, packed: bool, layout: str, held: str, need: str
) -> None:
    text = b"date,AAA,BBB\n" + b"no row is read\n" * 4_000_000
    path = tmp_path / ("prices.csv.gz" if packed else "prices.csv")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    memory = {"limit_gb": (own_resident_bytes() + 100_000_000) / 0.9 / 1e9}
    config = small_config(path, layout=layout).model_copy(update={"memory": Config(memory=memory).memory})
    for read in (
        lambda: build_panel(config, tmp_path / "cache"),
        lambda: audit_market(config, 2),
        lambda: inference_panel(config, TrainingDays("2000-01-03", "2000-12-29", 250), (), (), None),
    ):
        with pytest.raises(InputError, match=rf"holds {held} of prices or more: reading them takes about {need}"):
            read()


def repeated_rows(path: Path) -> None:
    """Write a small file that takes gigabytes: of rows or of a long text that repeat, or gzip of several parts; or, as
    `lying.parquet`, one of long texts that says that they are short."""
    if path.suffix == ".csv":
        path.write_bytes(gzip.compress(b"date,symbol,close\n" + b"2020-01-02,A,1\n" * 1_000_000) * 4)
        return
    if path.stem == "lying":
        texts = [f"{number}{'A' * 1_000_000}" for number in range(300)]
        table = pa.table({"date": ["2020-01-02"] * 300, "symbol": texts, "close": np.ones(300)})
        pq.write_table(table, path, compression="zstd", row_group_size=10)
        footer, content = pq.read_metadata(path), path.read_bytes()
        for size in {footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)}:
            # Numbers have seven bits per byte, the first bits first, and the last one is a sign.
            stored = bytes((2 * size >> shift) & 127 | 128 * (shift < 21) for shift in range(0, 28, 7))
            assert stored in content
            content = content.replace(stored, b"\x82\x80\x80\x00")
        path.write_bytes(content)
        assert pq.read_metadata(path).row_group(0).total_byte_size == 1
        return
    text, rows = ("A" * 1_000_000, 3_000) if path.stem == "text" else ("A", 5_000_000)
    first = np.zeros(rows, dtype=np.int32)
    columns = {
        name: pa.DictionaryArray.from_arrays(first, [each]) for name, each in (("date", "2020-01-02"), ("symbol", text))
    }
    table = pa.table({**columns, "close": np.ones(rows)})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)


@pytest.mark.parametrize(
    "name",
    [
        *("rows.parquet", "text.parquet", "rows.arrow", "text.arrow", "parts.csv"),
        pytest.param("lying.parquet", marks=pytest.mark.thorough),
    ],
)
def test_small_files_that_take_much_memory_are_refused_before_it(tmp_path: Path, name: str) -> None:
    repeated_rows(path := tmp_path / name)
    before = own_resident_bytes()
    memory = {"limit_gb": (before + 200_000_000) / 0.9 / 1e9}
    config = small_config(path).model_copy(update={"memory": Config(memory=memory).memory})
    reset_peak()
    with pytest.raises(InputError, match="reading them takes about"):
        build_panel(config, tmp_path / "cache")
    assert peak_resident_bytes() - before < 250_000_000


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "expected"), [("wide", WIDE_MEMORY_PER_BYTE), ("long", MEMORY_PER_BYTE)])
def test_reading_takes_no_more_memory_than_is_expected(tmp_path: Path, layout: str, expected: int) -> None:
    steps = np.random.default_rng(1).standard_normal((3_000, 1_000 if layout == "wide" else 150))
    closes = pd.DataFrame(100.0 * np.exp(0.001 * np.cumsum(steps, axis=0))).round(2).add_prefix("S")
    closes.insert(0, "date", pd.bdate_range("2005-01-03", periods=len(closes)).strftime("%Y-%m-%d"))
    if layout == "long":
        closes = closes.melt("date", var_name="symbol", value_name="close")
        closes = closes.assign(open=closes["close"], high=closes["close"], low=closes["close"], volume=123_456)
    path = tmp_path / "prices.csv"
    # pandas takes ten times as long.
    options = pa.csv.WriteOptions(quoting_style="none")
    pa.csv.write_csv(pa.Table.from_pandas(closes, preserve_index=False), path, options)
    code = f"""
from pathlib import Path
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.machine.memory_usage import peak_resident_bytes
config = load_config(None, ["market.data={path}", "market.layout={layout}", "market.suspicious=keep"])
before = peak_resident_bytes()
build_panel(config, Path("{tmp_path}"))
print(peak_resident_bytes() - before)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(ended.stdout) <= expected * path.stat().st_size


def one_symbol(tmp_path: Path, header: str, *rows: str) -> tuple[np.ndarray, DataReport]:
    """Return open, high, low and close `[rows, 4]` of one symbol with a row on each business day."""
    lines = [f"{day:%Y-%m-%d},{row}" for day, row in zip(business_days(len(rows)), rows, strict=True)]
    path = write_text(tmp_path / "AAA.csv", "\n".join([f"Date,{header}", *lines]) + "\n")
    prices, report = cleaned(path)
    return np.concatenate([prices.open, prices.high, prices.low, prices.close], axis=1), report


def test_bars_are_repaired_from_their_own_day(tmp_path: Path) -> None:
    bars, report = one_symbol(
        tmp_path,
        "Open,High,Low,Close",
        "10,12,9,11",
        "10,10.5,9,11",
        "10,12,10.5,11",
        "12,,,11",
        ",11,10,12",
        "0,-1,inf,11",
        "10,12,9,0",
        "10,12,9,-5",
        "10,12,9,inf",
        "10,12,9,",
        "10,12,9,1e300",
        "10,12,9,11",
    )
    nothing = [np.nan] * 4
    expected = [
        [10, 12, 9, 11],
        [10, 11, 9, 11],
        [10, 12, 10, 11],
        [12, 12, 11, 11],
        [np.nan, 12, 10, 12],
        [np.nan, 11, 11, 11],
        *[nothing] * 5,
        [10, 12, 9, 11],
    ]
    np.testing.assert_array_equal(bars, expected)
    assert (report.repaired_highs, report.repaired_lows) == (2, 1)
    assert (report.derived_highs, report.derived_lows) == (2, 2)
    assert (report.missing_opens, report.unusable_prices) == (2, 7)
    assert report.symbols[0].gap_days == report.gap_days == 5


def test_adjusted_close_scales_the_whole_bar_and_leaves_traded_value(tmp_path: Path) -> None:
    bars, report = one_symbol(
        tmp_path,
        "Open,High,Low,Close,Adj Close,Volume",
        "10,12,8,10,,100",
        "10,12,8,10,5,100",
        "10,12,8,10,,100",
        "10,12,8,10,0,100",
        "10,12,8,10,2.5,100",
    )
    np.testing.assert_allclose(bars[:, 3], [10, 5, 5, 5, 2.5])
    np.testing.assert_allclose(bars / bars[:, 3:], np.tile([1, 1.2, 0.8, 1], (5, 1)))
    assert report.adjusted_prices == 4
    volume = cleaned(tmp_path / "AAA.csv")[0].volume[:, 0]
    np.testing.assert_allclose(volume * bars[:, 3], 1_000.0)


@pytest.mark.parametrize("heading", ["adj_close", "Adjusted Close", "Adj Close**"])
def test_adjusted_close_alone_is_the_close(tmp_path: Path, heading: str) -> None:
    bars, report = one_symbol(tmp_path, heading, "10", "11")
    np.testing.assert_array_equal(bars[:, 3], [10, 11])
    assert report.adjusted_prices == 0


def test_ragged_histories_and_gaps_are_counted(tmp_path: Path) -> None:
    text = (
        "Date,A,B,C\n2020-01-01,1,,\n2020-01-02,1,2,\n2020-01-03,,,\n2020-01-06,,2,\n2020-01-07,1,,\n2020-01-08,1,,\n"
    )
    prices, report = cleaned(write_text(tmp_path / "w.csv", text), layout="wide")
    assert prices.symbols == ("A", "B")
    assert [str(day) for day in prices.days] == ["2020-01-01", "2020-01-02", "2020-01-06", "2020-01-07", "2020-01-08"]
    first, second = report.symbols
    assert (first.first_day, first.last_day, first.valid_days, first.gap_days) == ("2020-01-01", "2020-01-08", 4, 1)
    assert (second.first_day, second.last_day, second.valid_days, second.gap_days) == ("2020-01-02", "2020-01-06", 2, 0)
    assert report.empty_days == 1
    assert report.dropped_symbols == ("C",)
    lines = " ".join(report.lines())
    for words in ("C", "Start later: B (2020-01-02)", "End earlier: B (2020-01-06)", "1 day without any price"):
        assert words in lines


def test_context_comes_last_in_the_order_given(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["A", "B", "C", "D"], 20, seed=4))
    prices, report = cleaned(path, context=("C", "A", "C"))
    assert prices.symbols == ("B", "D", "C", "A")
    assert prices.assets == 2
    assert [history.tradable for history in report.symbols] == [True, True, False, False]
    np.testing.assert_array_equal(prices.close, cleaned(path)[0].close[:, [1, 3, 2, 0]])
    assert "Context only: C, A." in report.lines()


def test_context_must_be_known(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["AAPL", "MSFT"], 20, seed=7))
    with pytest.raises(InputError, match=r"'APPL'.*perhaps AAPL"):
        cleaned(path, context=("APPL",))
    with pytest.raises(InputError, match="names every symbol"):
        cleaned(path, context=("AAPL", "MSFT"))
    frame = pd.read_csv(path).assign(dead=np.nan)
    frame.loc[frame["symbol"] == "MSFT", "close"] = np.nan
    with pytest.raises(InputError, match="'MSFT' has no usable price"):
        cleaned(write_csv(path, frame), context=("MSFT",))


DAYS = 300


def says(report: DataReport, words: str) -> bool:
    return any(words in line for line in report.lines())


def days_of(close: np.ndarray) -> np.ndarray:
    return np.busday_offset("2020-01-01", np.arange(len(close)), roll="forward").astype("datetime64[D]")


def suspicious(close: np.ndarray, opened: np.ndarray | None = None) -> list[tuple[str, str, str]]:
    """Kind, symbol and day of what is suspicious of closes `[days, symbols]`, but stale prices."""
    symbols = [f"S{column}" for column in range(close.shape[1])]
    nothing = np.full(close.shape, np.nan)
    prices: dict[Role, np.ndarray] = {"open": nothing if opened is None else opened, "high": close, "low": close}
    prices["close"] = close
    raw: dict[Role, np.ndarray] = {"close": close, "adjusted_close": nothing}
    return [
        (row.kind, row.symbol, row.day)
        for row in suspicious_prices(days_of(close), symbols, raw, prices, np.full(close.shape, True))
    ]


def walk(seed: int, deviation: float = 0.02, symbols: int = 1) -> np.ndarray:
    steps = np.random.default_rng(seed).standard_normal((DAYS, symbols))
    return np.asarray(50.0 * np.exp(np.cumsum(deviation * steps, axis=0)))


def test_bundled_prices() -> None:
    report = cleaned(path_of_data(None), layout="wide")[1]
    assert not distorting_rows(report.suspicious)
    assert {row.symbol for row in report.suspicious if row.kind == "stale"} == {"RRC"}
    assert [(row.kind, row.symbol, row.day) for row in report.suspicious[:1]] == [("move", "AAPL", "2000-09-29")]
    assert report.universe.dividends == "unknown"
    assert says(report, "only survivors were chosen")
    assert not report.universe.weekend_days
    assert not report.universe.missing_share


def test_adjusted_closes_contain_dividends_and_plain_ones_show_the_splits(tmp_path: Path) -> None:
    adjusted = cleaned(BUNDLED["us5"])[1]
    assert adjusted.universe.dividends == "adjusted"
    assert not distorting_rows(adjusted.suspicious)
    assert 0.25 < adjusted.universe.missing_share < 0.26
    plain = cleaned(write_csv(tmp_path / "p.csv", pd.read_csv(BUNDLED["us5"]).drop(columns="Adj Close")))[1]
    assert [(row.kind, row.symbol, row.day) for row in distorting_rows(plain.suspicious)] == [
        ("jump", "AAPL", "2000-06-21"),
        ("jump", "AAPL", "2005-02-28"),
        ("jump", "MSFT", "2003-02-18"),
    ]
    assert says(plain, "AAPL 2000-06-21 (101.25 to 55.63, 2:1)")


@pytest.mark.parametrize(
    ("ratio", "kind"), [(2.0, "jump"), (1.5, "move"), (3.0, "jump"), (20.0, "jump"), (0.1, "jump"), (2.4, "move")]
)
def test_a_planted_split_is_found_and_an_adjusted_one_is_none(ratio: float, kind: str) -> None:
    close = walk(seed=1, symbols=2)
    opened = close * np.exp(0.005 * np.random.default_rng(2).standard_normal(close.shape))
    opened[100, 1] = close[99, 1] * 1.01
    close[100:, 1] /= ratio
    opened[100:, 1] /= ratio
    assert suspicious(close, opened) == [(kind, "S1", "2020-05-20")]
    close[:100, 1] /= ratio
    opened[:100, 1] /= ratio
    assert suspicious(close, opened) == []


def test_few_alarms_on_walks_with_fat_tails() -> None:
    deviation = np.repeat([0.005, 0.01, 0.02, 0.04], 100)
    steps = deviation * np.random.default_rng(1).standard_t(4, (DAYS, len(deviation)))
    assert len(suspicious(50.0 * np.exp(np.cumsum(steps, axis=0)))) <= 1


def test_a_crash_that_is_followed_by_large_moves_is_no_split() -> None:
    close = walk(seed=3)
    close[100:] /= 2.0
    assert len(suspicious(close)) == 1
    close[100:] = close[100] * (walk(seed=4, deviation=0.1) / 50.0)[100:]
    close[100] = close[99] / 2.0
    assert suspicious(close) == [("move", "S0", "2020-05-20")]


def test_dividends() -> None:
    close = walk(seed=5, symbols=2)
    factor = np.ones(close.shape)

    def dividends() -> str:
        return UniverseAudit.of(days_of(close), 2, close, factor, close > 0.0).dividends

    assert dividends() == "unknown"
    factor[:150] = 0.5
    assert dividends() == "unadjusted"
    factor[:80, 1] *= 0.99
    assert dividends() == "adjusted"


def test_symbols_that_end_and_short_data_are_no_survivors(tmp_path: Path) -> None:
    bars = random_bars(["AAA", "BBB"], DAYS, seed=6)
    assert says(cleaned(write_csv(tmp_path / "all.csv", bars))[1], "survivors")
    last_days = sorted(bars["date"].unique())[-30:]
    ended = bars[(bars["symbol"] == "AAA") | ~bars["date"].isin(last_days)]
    path = write_csv(tmp_path / "ended.csv", ended)
    report = cleaned(path)[1]
    assert report.universe.ended_symbols == 1
    assert not says(report, "survivors")
    assert says(cleaned(path, context=("BBB",))[1], "survivors")
    assert not says(cleaned(write_csv(tmp_path / "short.csv", random_bars(["AAA"], 100, seed=7)))[1], "survivors")


def test_weekends_stale_prices_and_missing_days(tmp_path: Path) -> None:
    bars = random_bars(["AAA", "BBB"], 70, seed=8)
    bars["date"] = list(pd.date_range("2020-01-01", periods=70)) * 2
    bars.loc[5:15, ["open", "high", "low", "close"]] = 10.0
    bars.loc[20:28, ["open", "high", "low", "close"]] = 11.0
    report = cleaned(write_csv(tmp_path / "p.csv", bars.drop(index=range(130, 140))))[1]
    assert report.universe.weekend_days == 20
    stale = [(row.symbol, row.day, row.detail) for row in report.suspicious if row.kind == "stale"]
    assert stale == [("AAA", "2020-01-06", "11 days")]
    assert report.universe.missing_share == pytest.approx(10 / 140)
    for words in ("20 days on a Saturday or Sunday", "AAA 2020-01-06 (11 days)", "7.1 % of all days and symbols"):
        assert says(report, words)
