"""Files in the layouts that other programs write give the prices that are in them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather as feather
import pytest
from market_cases import cleaned, random_bars, write_text

from eigen_core.common.errors import InputError
from eigen_core.market.cleaning import CleanPrices

SYMBOLS = ["AAPL", "BRK.B", "MSFT"]
FIELDS = ["open", "high", "low", "close", "volume"]


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return random_bars(SYMBOLS, 60, seed=1)


def assert_same(prices: CleanPrices, bars: pd.DataFrame) -> None:
    assert sorted(prices.symbols) == sorted(bars["symbol"].unique())
    for field in FIELDS:
        expected = bars.pivot(index="date", columns="symbol", values=field)[list(prices.symbols)]
        np.testing.assert_allclose(getattr(prices, field), expected.to_numpy(), rtol=1e-14)
        np.testing.assert_array_equal(prices.days, expected.index.to_numpy().astype("datetime64[D]"))


def of_yfinance(bars: pd.DataFrame, group_by: str = "column") -> pd.DataFrame:
    """Return bars as `yfinance.download` does: fields above tickers, sorted, with the names of both levels."""
    frame = bars.rename(columns=str.title).pivot(index="Date", columns="Symbol", values=[*map(str.title, FIELDS)])
    frame.columns = frame.columns.set_names(["Price", "Ticker"])
    frame = frame[["Close", "High", "Low", "Open", "Volume"]]
    return frame if group_by == "column" else frame.swaplevel(axis=1).sort_index(axis=1)


@pytest.mark.parametrize("symbols", [["AAPL"], SYMBOLS])
@pytest.mark.parametrize("group_by", ["column", "ticker"])
def test_yfinance(tmp_path: Path, bars: pd.DataFrame, symbols: list[str], group_by: str) -> None:
    bars = bars[bars["symbol"].isin(symbols)]
    frame = of_yfinance(bars, group_by)
    frame.to_csv(tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    if group_by == "column" and len(symbols) == 1:
        assert lines[:3] == ["Price,Close,High,Low,Open,Volume", "Ticker,AAPL,AAPL,AAPL,AAPL,AAPL", "Date,,,,,"]
    assert_same(cleaned(tmp_path / "p.csv")[0], bars)
    frame.to_csv(tmp_path / "semicolons.csv", sep=";")
    assert_same(cleaned(tmp_path / "semicolons.csv")[0], bars)
    frame.to_parquet(tmp_path / "p.parquet")
    assert_same(cleaned(tmp_path / "p.parquet")[0], bars)


def test_yfinance_without_names_of_levels_or_index(tmp_path: Path, bars: pd.DataFrame) -> None:
    bars = bars.assign(symbol=bars["symbol"].replace({"AAPL": "NA", "MSFT": "TRUE"}))
    frame = of_yfinance(bars)
    unnamed = frame.copy()
    unnamed.columns = frame.columns.set_names([None, None])
    for name, written in (("unnamed", unnamed), ("index", frame.rename_axis(None))):
        written.to_csv(tmp_path / f"{name}.csv")
        written.to_parquet(tmp_path / f"{name}.parquet")
    frame.reset_index().to_csv(tmp_path / "reset.csv", index=False)
    frame.reset_index().to_parquet(tmp_path / "reset.parquet")
    for path in tmp_path.iterdir():
        assert_same(cleaned(path)[0], bars)


def test_yfinance_with_adjusted_closes_actions_and_a_late_start(tmp_path: Path, bars: pd.DataFrame) -> None:
    frame = of_yfinance(bars[(bars["symbol"] != "MSFT") | (bars["date"] > bars["date"].iloc[20])])
    for symbol in SYMBOLS:
        frame["Adj Close", symbol] = frame["Close", symbol] / 2
        frame["Stock Splits", symbol] = 0.0
    frame.to_csv(tmp_path / "p.csv")
    prices, report = cleaned(tmp_path / "p.csv")
    for field in ("Close", "Open"):
        expected = frame[field][list(prices.symbols)].to_numpy() / 2
        np.testing.assert_allclose(getattr(prices, field.lower()), expected, rtol=1e-14)
    assert report.ignored_columns == ("Stock Splits",)
    assert {history.symbol: history.valid_days for history in report.symbols} == {"AAPL": 60, "BRK.B": 60, "MSFT": 39}


def test_two_headings_of_which_nothing_says_which_is_the_symbol(tmp_path: Path) -> None:
    path = write_text(tmp_path / "p.csv", ",Open,Close\n,Low,High\nDate,,\n2020-01-02,1,2\n")
    with pytest.raises(InputError, match=r"line 3, column '': 'Date' is no date"):
        cleaned(path)
    path = write_text(tmp_path / "q.csv", "Price,Close,Close\nTicker,A,A\nDate,,\n2020-01-02,1,2\n")
    with pytest.raises(InputError, match="several columns of 'A' named 'Close'"):
        cleaned(path)
    path = write_text(tmp_path / "s.csv", "Price,Close\nTicker,\nDate,\n2020-01-02,1\n")
    with pytest.raises(InputError, match="has no row with a date and a symbol"):
        cleaned(path)
    path = write_text(tmp_path / "r.csv", "Price,Close\nTicker,A\nDate,\n2020-01-02,1\n2020-01-03,x\n")
    with pytest.raises(InputError, match=r"line 5, column 'Close': 'x' is no number"):
        cleaned(path)


@pytest.mark.parametrize("keys", [["symbol"], ["year", "symbol"]])
def test_partitioned_parquet_in_parts(tmp_path: Path, bars: pd.DataFrame, keys: list[str]) -> None:
    bars = bars.assign(symbol=bars["symbol"].replace({"BRK.B": "^G/S PC"}), year=bars["date"].dt.year)
    table = pa.Table.from_pandas(bars, preserve_index=False)
    pyarrow.dataset.write_dataset(
        table, tmp_path, format="parquet", partitioning=keys, partitioning_flavor="hive", max_rows_per_group=20,
        max_rows_per_file=20,
    )  # fmt: skip
    (tmp_path / "_SUCCESS").touch()
    prices, report = cleaned(tmp_path)
    assert_same(prices, bars)
    assert report.ignored_columns == ("year",)


def test_partitions_by_day(tmp_path: Path, bars: pd.DataFrame) -> None:
    few = bars[bars["date"] < bars["date"].iloc[5]]
    named = few.assign(date=few["date"].dt.strftime("%Y-%m-%d"))
    named.to_parquet(tmp_path / "p", partition_cols=["date"], index=False)
    assert_same(cleaned(tmp_path / "p")[0], few)


@pytest.mark.parametrize("form", ["feather", "arrow", "parquet", "ipc"])
def test_dataset_of_pyarrow(tmp_path: Path, bars: pd.DataFrame, form: str) -> None:
    table = pa.Table.from_pandas(bars, preserve_index=False)
    pyarrow.dataset.write_dataset(table, tmp_path / "p", format=form, max_rows_per_group=50, max_rows_per_file=50)
    prices, report = cleaned(tmp_path / "p")
    assert_same(prices, bars)
    assert report.files == 4


def test_parts_of_a_table_are_not_named_like_symbols(tmp_path: Path, bars: pd.DataFrame) -> None:
    own = bars[bars["symbol"] == "AAPL"].drop(columns="symbol")
    table = pa.Table.from_pandas(own, preserve_index=False)
    pyarrow.dataset.write_dataset(table, tmp_path / "p", format="parquet", max_rows_per_group=20, max_rows_per_file=20)
    own.assign(year=own["date"].dt.year).to_parquet(tmp_path / "q", partition_cols=["year"], index=False)
    for folder in (tmp_path / "p", tmp_path / "q"):
        with pytest.raises(InputError, match="no column of symbols, and its name may be more than a symbol"):
            cleaned(folder)


def test_tables_of_arrow(tmp_path: Path, bars: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(bars, preserve_index=False)
    coded = table.set_column(1, "symbol", table["symbol"].cast(pa.string()).dictionary_encode())
    feather.write_feather(coded, tmp_path / "a.feather", compression="zstd")
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    # Polars writes text as views.
    views = table.set_column(1, "symbol", table["symbol"].cast(pa.string()).cast(pa.string_view()))
    with pa.OSFile(str(tmp_path / "views.ipc"), "wb") as sink, pa.ipc.new_file(sink, views.schema) as writer:
        writer.write_table(views)
    for path in tmp_path.iterdir():
        assert_same(cleaned(path)[0], bars)
    for name, content in (("garbage", b"no table"), ("cut", (tmp_path / "file.arrow").read_bytes()[:900])):
        (tmp_path / f"{name}.feather").write_bytes(content)
        with pytest.raises(InputError, match="is no Arrow or Feather file, or a damaged one"):
            cleaned(tmp_path / f"{name}.feather")
