"""Every usual form of price file gives the same prices."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from market_cases import cleaned, random_bars, small_config, write_csv, write_text

from eigen_core.common.errors import InputError
from eigen_core.config.market import BUNDLED, absolute_data
from eigen_core.market import build_panel
from eigen_core.market.cleaning import CleanPrices

SYMBOLS = ["AAA", "BBB", "CCC"]


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return random_bars(SYMBOLS, 40, seed=1)


def assert_same_prices(prices: CleanPrices, bars: pd.DataFrame, volume: bool = True) -> None:
    fields = ["open", "high", "low", "close"] + (["volume"] if volume else [])
    assert list(prices.symbols) == sorted(bars["symbol"].unique())
    for field in fields:
        expected = bars.pivot(index="date", columns="symbol", values=field)
        np.testing.assert_allclose(getattr(prices, field), expected.to_numpy(), rtol=1e-15)
        np.testing.assert_array_equal(prices.days, expected.index.to_numpy().astype("datetime64[D]"))


@pytest.mark.parametrize(
    "names",
    [
        {"date": "Date", "symbol": "Ticker", "open": "Open", "high": "High", "low": "Low", "close": "Close"},
        {"date": "time", "symbol": "<TICKER>", "open": " Open ", "close": "Close*", "volume": "Vol."},
        {"date": "Trade Date", "symbol": "SYMBOL", "high": "\ufeffhigh", "low": "_low"},
    ],
)
def test_spellings_of_headings(tmp_path: Path, bars: pd.DataFrame, names: dict[str, str]) -> None:
    prices, report = cleaned(write_csv(tmp_path / "prices.csv", bars.rename(columns=names)))
    assert_same_prices(prices, bars)
    assert report.rows == 120
    assert report.layout == "long"
    assert not report.ignored_columns


@pytest.mark.parametrize("name", ["prices.csv.gz", "prices.tsv", "PRICES.PQ"])
def test_kinds_of_file(tmp_path: Path, bars: pd.DataFrame, name: str) -> None:
    path = tmp_path / name
    if name.lower().endswith((".parquet", ".pq")):
        bars.to_parquet(path, index=False)
    else:
        bars.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",", lineterminator="\r")
    assert_same_prices(cleaned(path)[0], bars)


def test_compressed_parquet_semicolons_and_byte_order_mark(tmp_path: Path, bars: pd.DataFrame) -> None:
    bars.to_parquet(tmp_path / "plain.parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "plain.parquet").read_bytes()))
    assert_same_prices(cleaned(tmp_path / "a.parquet.gz")[0], bars)
    bars.to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-8-sig", lineterminator="\r\n")
    assert_same_prices(cleaned(tmp_path / "b.csv")[0], bars)


@pytest.mark.parametrize(
    "note",
    [b"{", b"[]", b'{"index_columns": ["none", 1]}', b"[" * 100_000],
)
def test_parquet_with_an_odd_note_of_pandas(tmp_path: Path, bars: pd.DataFrame, note: bytes) -> None:
    table = pa.Table.from_pandas(bars).replace_schema_metadata({b"pandas": note})
    pq.write_table(table, tmp_path / "p.parquet")
    assert_same_prices(cleaned(tmp_path / "p.parquet")[0], bars)


def test_parquet_with_symbols_as_bytes_and_as_numbers(tmp_path: Path, bars: pd.DataFrame) -> None:
    bars.assign(symbol=bars["symbol"].str.encode("utf-8")).to_parquet(tmp_path / "bytes.parquet")
    assert_same_prices(cleaned(tmp_path / "bytes.parquet")[0], bars)
    numbers = bars["symbol"].map({"AAA": 10107.0, "BBB": 14593.0, "CCC": 20001.0})
    bars.assign(symbol=numbers).to_parquet(tmp_path / "numbers.parquet")
    assert cleaned(tmp_path / "numbers.parquet")[0].symbols == ("10107", "14593", "20001")
    bars.assign(symbol=numbers.replace(20001.0, np.nan)).to_parquet(tmp_path / "without.parquet")
    with pytest.raises(InputError, match="no date or symbol"):
        cleaned(tmp_path / "without.parquet")


def test_parquet_with_the_date_as_index(tmp_path: Path, bars: pd.DataFrame) -> None:
    bars.set_index("date").to_parquet(tmp_path / "long.parquet")
    assert_same_prices(cleaned(tmp_path / "long.parquet")[0], bars)
    wide = bars.pivot(index="date", columns="symbol", values="close")
    wide.index.name = None
    wide.to_parquet(tmp_path / "wide.parquet")
    np.testing.assert_array_equal(cleaned(tmp_path / "wide.parquet", layout="wide")[0].close, wide.to_numpy())


def test_wide_closes_keep_their_order(tmp_path: Path, bars: pd.DataFrame) -> None:
    wide = bars.pivot(index="date", columns="symbol", values="close")[["CCC", "AAA", "BBB"]]
    wide.to_csv(tmp_path / "wide.csv")
    prices, report = cleaned(tmp_path / "wide.csv", layout="wide")
    assert prices.symbols == ("CCC", "AAA", "BBB")
    np.testing.assert_allclose(prices.close, wide.to_numpy(), rtol=1e-15)
    np.testing.assert_array_equal(prices.high, prices.close)
    np.testing.assert_array_equal(prices.low, prices.close)
    assert np.isnan(prices.open).all()
    assert (report.layout, report.rows, report.missing_opens, report.derived_highs) == ("wide", 40, 0, 0)


def test_tickers_that_look_like_headings_or_markers(tmp_path: Path) -> None:
    path = write_text(tmp_path / "wide.csv", "Date,LOW,NA,OPEN,TRUE\n2020-01-02,1,2,3,4\n2020-01-03,2,3,4,5\n\n")
    assert cleaned(path, layout="wide")[0].symbols == ("LOW", "NA", "OPEN", "TRUE")
    text = "Date,Ticker,Close\n2020-01-02,NA,1\n2020-01-02,TRUE,2\n2020-01-02,000001,3\n2020-01-02,nan,3\n"
    assert cleaned(write_text(tmp_path / "long.csv", text))[0].symbols == ("000001", "NA", "TRUE", "nan")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_folder_of_one_file_a_symbol(tmp_path: Path, bars: pd.DataFrame, suffix: str) -> None:
    for symbol, own in bars.groupby("symbol"):
        frame = own.drop(columns="symbol")
        path = tmp_path / f"{symbol}{suffix}"
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    write_text(tmp_path / "README.md", "no prices")
    write_text(tmp_path / ".hidden.csv", "no prices")
    prices, report = cleaned(tmp_path)
    assert_same_prices(prices, bars)
    assert (report.layout, report.files, report.rows) == ("folder", 3, 120)


def test_what_a_folder_holds_beside_price_files_is_reported(tmp_path: Path, bars: pd.DataFrame) -> None:
    folder = tmp_path / "prices"
    (folder / "sub").mkdir(parents=True)
    (folder / "gone.csv").symlink_to("nowhere.csv")
    for symbol, own in bars.groupby("symbol"):
        write_csv(folder / f"{symbol}.csv", own.drop(columns="symbol"))
    config = small_config(folder)
    _, report = build_panel(config, tmp_path / "cache")
    assert report.ignored_files == ("gone.csv", "sub")
    write_text(folder / "BBB.txt", "Date,Close\n2020-01-02,1\n")
    _, report = build_panel(config, tmp_path / "cache")
    assert report.ignored_files == ("BBB.txt", "gone.csv", "sub")
    assert "Ignored, since they are no price files: BBB.txt, gone.csv, sub." in report.lines()


def test_folder_files_with_a_symbol_column_or_an_unnamed_date(tmp_path: Path, bars: pd.DataFrame) -> None:
    for number, (symbol, own) in enumerate(bars.groupby("symbol")):
        if number:
            write_csv(tmp_path / f"file{number}.csv", own)
        else:
            indexed = own.drop(columns="symbol").set_index("date")
            indexed.index.name = None
            indexed.to_csv(tmp_path / f"{symbol}.csv")
    assert_same_prices(cleaned(tmp_path)[0], bars)


def test_unsorted_rows_are_sorted(tmp_path: Path, bars: pd.DataFrame) -> None:
    prices, report = cleaned(write_csv(tmp_path / "p.csv", bars.sample(frac=1.0, random_state=3)))
    assert_same_prices(prices, bars)
    assert report.unsorted_rows > 0
    prices, report = cleaned(write_csv(tmp_path / "q.csv", bars))
    assert report.unsorted_rows == 0


def test_rows_that_come_again_with_the_same_prices_count_once(tmp_path: Path, bars: pd.DataFrame) -> None:
    unpriced = bars.iloc[[7]].assign(open=np.nan, high=np.nan, low=np.nan, close=np.nan, volume=np.nan)
    again = bars.iloc[[3, 50, 90, 3]]
    prices, report = cleaned(write_csv(tmp_path / "p.csv", pd.concat([again, bars, unpriced])))
    assert_same_prices(prices, bars)
    assert report.duplicate_rows == 5
    wide = "Date,A,B\n2020-01-02,1,2\n2020-01-03,3,4\n2020-01-02,1,\n"
    prices, report = cleaned(write_text(tmp_path / "w.csv", wide), layout="wide")
    np.testing.assert_array_equal(prices.close, [[1.0, 2.0], [3.0, 4.0]])
    assert (report.duplicate_rows, report.unsorted_rows) == (1, 1)


def test_rows_without_date_or_symbol_are_left_out(tmp_path: Path) -> None:
    text = "Date,Ticker,Close\n2020-01-02,A,1\n,A,2\n2020-01-03,,3\n\n2020-01-06,A,4\n"
    prices, report = cleaned(write_text(tmp_path / "p.csv", text))
    np.testing.assert_array_equal(prices.close, [[1.0], [4.0]])
    assert (report.undated_rows, report.rows) == (3, 5)


def test_missing_markers_and_spaces(tmp_path: Path) -> None:
    markers = ["", "NA", "N/A", "n/a", "null", "NULL", "-", "None", "nan", "NaN", " - ", "#N/A"]
    rows = "".join(
        f"{day:%Y-%m-%d},{marker}, 5.5 \n"
        for day, marker in zip(pd.bdate_range("2020", periods=12), markers, strict=True)
    )
    prices, report = cleaned(write_text(tmp_path / "w.csv", f"Date,A,B\n{rows}2020-02-03,7,8\n"), layout="wide")
    assert np.isnan(prices.close[:12, 0]).all()
    np.testing.assert_array_equal(prices.close[:, 1], [5.5] * 12 + [8.0])
    assert report.unusable_prices == 0


def test_columns_that_are_not_used_are_reported(tmp_path: Path, bars: pd.DataFrame) -> None:
    extra = bars.assign(Dividends=0.0, Sector="tech")
    prices, report = cleaned(write_csv(tmp_path / "p.csv", extra))
    assert_same_prices(prices, bars)
    assert report.ignored_columns == ("Dividends", "Sector")
    assert any("Dividends, Sector" in line for line in report.lines())


def test_real_long_file_with_ragged_histories() -> None:
    prices, report = cleaned("us5")
    assert prices.symbols == ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    histories = {history.symbol: history for history in report.symbols}
    assert histories["FB"].first_day == "2012-05-18"
    assert histories["FB"].valid_days == 196
    assert histories["GOOG"].first_day == "2004-08-19"
    assert report.rows == sum(history.valid_days for history in report.symbols)
    frame = pd.read_csv(BUNDLED["us5"])
    adjusted = frame.pivot(index="Date", columns="Ticker", values="Adj Close").to_numpy()
    np.testing.assert_array_equal(prices.close, adjusted)
    raw = frame.pivot(index="Date", columns="Ticker", values="Open").to_numpy()
    close = frame.pivot(index="Date", columns="Ticker", values="Close").to_numpy()
    np.testing.assert_allclose(prices.open / prices.close, raw / close, rtol=1e-12)
    assert report.adjusted_prices == report.rows


def test_bundled_prices_are_named_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cleaned("us5")[0].symbols == ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    assert (absolute_data("us5"), absolute_data("./us5")) == ("us5", str(tmp_path / "us5"))
    (tmp_path / "us5").mkdir()
    write_text(tmp_path / "us5" / "AAA.csv", "Date,Close\n2020-01-02,1\n")
    with pytest.raises(InputError, match=r"'us5' can be read in two ways: the bundled prices, or .*/us5: write \./us5"):
        cleaned("us5")
    assert cleaned("./us5")[0].symbols == ("AAA",)
