"""Every usual form of price file, and every layout that other programs write, gives the same prices."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from market_cases import cleaned, random_bars, small_config, write_csv, write_text

from eigen_core.common.errors import InputError
from eigen_core.config.market import absolute_data
from eigen_core.market import build_panel
from eigen_core.market.cleaning import CleanPrices

SYMBOLS = ["AAA", "BBB", "CCC"]


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return random_bars(SYMBOLS, 40, seed=1)


def assert_same_prices(prices: CleanPrices, bars: pd.DataFrame) -> None:
    assert list(prices.symbols) == sorted(bars["symbol"].unique())
    for field in ("open", "high", "low", "close", "volume"):
        expected = bars.pivot(index="date", columns="symbol", values=field)
        np.testing.assert_allclose(getattr(prices, field), expected.to_numpy(), rtol=1e-15)
        np.testing.assert_array_equal(prices.days, expected.index.to_numpy().astype("datetime64[D]"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("p.csv.gz", {"lineterminator": "\r"}),
        ("p.tsv", {"lineterminator": "\r", "sep": "\t"}),
        ("p.csv", {"lineterminator": "\r\n", "sep": ";", "encoding": "utf-8-sig"}),
        ("P.PQ", None),
        ("p.parquet.gz", None),
    ],
)
def test_kinds_of_file(tmp_path: Path, bars: pd.DataFrame, name: str, written: dict[str, Any] | None) -> None:
    path = tmp_path / name
    if written is None:
        path.write_bytes(gzip.compress(bars.to_parquet()) if name.endswith(".gz") else bars.to_parquet())
    else:
        bars.to_csv(path, index=False, **written)
    assert_same_prices(cleaned(path)[0], bars)


@pytest.mark.parametrize("note", [b"{", b"[]", b'{"index_columns": ["none", 1]}', b"[" * 100_000])
def test_parquet_with_an_odd_note_of_pandas(tmp_path: Path, bars: pd.DataFrame, note: bytes) -> None:
    table = pa.Table.from_pandas(bars).replace_schema_metadata({b"pandas": note})
    pq.write_table(table, tmp_path / "p.parquet")
    assert_same_prices(cleaned(tmp_path / "p.parquet")[0], bars)


def test_parquet_with_symbols_as_bytes_and_as_numbers(tmp_path: Path, bars: pd.DataFrame) -> None:
    bars.assign(symbol=bars["symbol"].str.encode("utf-8")).to_parquet(tmp_path / "bytes.parquet")
    assert_same_prices(cleaned(tmp_path / "bytes.parquet")[0], bars)
    # A missing one makes floats of them.
    numbers = bars["symbol"].map({"AAA": 10107, "BBB": 14593, "CCC": 20000}).where(bars.index > 0)
    bars.assign(symbol=numbers).to_parquet(tmp_path / "numbers.parquet")
    assert cleaned(tmp_path / "numbers.parquet")[0].symbols == ("10107", "14593", "20000")


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


@pytest.mark.parametrize("ticker", ["TRUE", "000001", "2.0", "1e3"])
def test_a_ticker_stays_the_text_that_it_is(tmp_path: Path, ticker: str) -> None:
    text = f"Date,Ticker,Close\n2020-01-02,{ticker},1\n2020-01-03,{ticker},2\n"
    assert cleaned(write_text(tmp_path / "p.csv", text))[0].symbols == (ticker,)


def test_other_files_of_a_folder_are_reported(tmp_path: Path, bars: pd.DataFrame) -> None:
    folder = tmp_path / "prices"
    (folder / "sub").mkdir(parents=True)
    (folder / "gone.csv").symlink_to("nowhere.csv")
    for suffix, (symbol, own) in zip((".csv", ".csv.gz", ".parquet"), bars.groupby("symbol"), strict=True):
        frame, path = own.drop(columns="symbol"), folder / f"{symbol}{suffix}"
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    write_text(folder / ".hidden.csv", "no prices")
    prices, report = cleaned(folder)
    assert_same_prices(prices, bars)
    assert (report.layout, report.files, report.rows) == ("folder", 3, 120)
    for ignored in ((".hidden.csv", "gone.csv", "sub"), (".hidden.csv", "BBB.txt", "gone.csv", "sub")):
        # A panel in the cache names the files that are there now.
        assert build_panel(small_config(folder), tmp_path / "cache")[1].ignored_files == ignored
        write_text(folder / "BBB.txt", "Date,Close\n2020-01-02,1\n")


def test_folder_files_with_a_symbol_column_or_an_unnamed_date(tmp_path: Path, bars: pd.DataFrame) -> None:
    for number, (symbol, own) in enumerate(bars.groupby("symbol")):
        if number:
            write_csv(tmp_path / f"file{number}.csv", own)
        else:
            indexed = own.drop(columns="symbol").set_index("date")
            indexed.index.name = None
            indexed.to_csv(tmp_path / f"{symbol}.csv")
    assert_same_prices(cleaned(tmp_path)[0], bars)


def test_rows_that_come_again_with_the_same_prices_count_once(tmp_path: Path, bars: pd.DataFrame) -> None:
    unpriced = bars.iloc[[7]].assign(open=np.nan, high=np.nan, low=np.nan, close=np.nan, volume=np.nan)
    again = bars.iloc[[3, 50, 90, 3]]
    prices, report = cleaned(write_csv(tmp_path / "p.csv", pd.concat([again, bars, unpriced])))
    assert_same_prices(prices, bars)
    assert report.duplicate_rows == 5
    wide = "Date,A,B\n2020-01-02,1,2\n2020-01-03,3,4\n2020-01-02,1,\n"
    prices, report = cleaned(write_text(tmp_path / "w.csv", wide), layout="wide")
    np.testing.assert_array_equal(prices.close, [[1.0, 2.0], [3.0, 4.0]])
    assert report.duplicate_rows == 1


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


def test_bundled_prices_are_named_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cleaned("us5")[0].symbols == ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    assert (absolute_data("us5"), absolute_data("./us5")) == ("us5", str(tmp_path / "us5"))
    (tmp_path / "us5").mkdir()
    write_text(tmp_path / "us5" / "AAA.csv", "Date,Close\n2020-01-02,1\n")
    with pytest.raises(InputError, match=r"'us5' can be read in two ways: the bundled prices, or .*/us5: write \./us5"):
        cleaned("us5")
    assert cleaned("./us5")[0].symbols == ("AAA",)


def of_yfinance(bars: pd.DataFrame) -> pd.DataFrame:
    """Return bars as `yfinance.download` does: fields above tickers, sorted, with the names of both levels."""
    fields = ["Close", "High", "Low", "Open", "Volume"]
    frame = bars.rename(columns=str.title).pivot(index="Date", columns="Symbol", values=fields)
    frame.columns = frame.columns.set_names(["Price", "Ticker"])
    return frame


@pytest.mark.parametrize("tickers", [{}, {"AAA": "NA", "CCC": "TRUE"}, None])
def test_yfinance(tmp_path: Path, bars: pd.DataFrame, tickers: dict[str, str] | None) -> None:
    """With tickers like missing values, with one ticker, and without the names of levels or index."""
    bars = bars[bars["symbol"] == "AAA"] if tickers is None else bars.assign(symbol=bars["symbol"].replace(tickers))
    frame = of_yfinance(bars)
    unnamed = frame.copy()
    unnamed.columns = frame.columns.set_names([None, None])
    by_ticker = frame.swaplevel(axis=1).sort_index(axis=1)
    forms = {"whole": frame, "unnamed": unnamed, "index": frame.rename_axis(None), "by ticker": by_ticker}
    for name, written in forms.items():
        written.to_csv(tmp_path / f"{name}.csv")
        written.to_parquet(tmp_path / f"{name}.parquet")
    frame.to_csv(tmp_path / "semicolons.csv", sep=";")
    frame.reset_index().to_csv(tmp_path / "reset.csv", index=False)
    frame.reset_index().to_parquet(tmp_path / "reset.parquet")
    for path in tmp_path.iterdir():
        assert_same_prices(cleaned(path)[0], bars)


def test_yfinance_with_adjusted_closes_actions_and_a_late_start(tmp_path: Path, bars: pd.DataFrame) -> None:
    frame = of_yfinance(bars[(bars["symbol"] != "CCC") | (bars["date"] > bars["date"].iloc[20])])
    for symbol in SYMBOLS:
        frame["Adj Close", symbol] = frame["Close", symbol] / 2
        frame["Stock Splits", symbol] = 0.0
    frame.to_csv(tmp_path / "p.csv")
    prices, report = cleaned(tmp_path / "p.csv")
    for field in ("Close", "Open"):
        expected = frame[field][list(prices.symbols)].to_numpy() / 2
        np.testing.assert_allclose(getattr(prices, field.lower()), expected, rtol=1e-14)
    assert report.ignored_columns == ("Stock Splits",)
    assert {history.symbol: history.valid_days for history in report.symbols} == {"AAA": 40, "BBB": 40, "CCC": 19}


@pytest.mark.parametrize("keys", [["symbol"], ["year", "symbol"]])
def test_partitioned_parquet_in_parts(tmp_path: Path, bars: pd.DataFrame, keys: list[str]) -> None:
    bars = bars.assign(symbol=bars["symbol"].replace({"BBB": "^G/S PC"}), year=bars["date"].dt.year)
    table = pa.Table.from_pandas(bars, preserve_index=False)
    pyarrow.dataset.write_dataset(
        table, tmp_path, format="parquet", partitioning=keys, partitioning_flavor="hive", max_rows_per_group=20,
        max_rows_per_file=20,
    )  # fmt: skip
    (tmp_path / "_SUCCESS").touch()
    prices, report = cleaned(tmp_path)
    assert_same_prices(prices, bars)
    assert report.ignored_columns == ("year",)


def test_partitions_by_day(tmp_path: Path, bars: pd.DataFrame) -> None:
    few = bars[bars["date"] < bars["date"].iloc[5]]
    named = few.assign(date=few["date"].dt.strftime("%Y-%m-%d"))
    named.to_parquet(tmp_path / "p", partition_cols=["date"], index=False)
    assert_same_prices(cleaned(tmp_path / "p")[0], few)


def test_parts_of_a_table_are_not_named_like_symbols(tmp_path: Path, bars: pd.DataFrame) -> None:
    own = bars[bars["symbol"] == "AAA"].drop(columns="symbol")
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
    # Polars writes text as views.
    views = table.set_column(1, "symbol", table["symbol"].cast(pa.string()).cast(pa.string_view()))
    forms = {"file.arrow": (pa.ipc.new_file, table), "views.ipc": (pa.ipc.new_file, views)}
    for name, (form, written) in {**forms, "stream.arrow": (pa.ipc.new_stream, table)}.items():
        with pa.OSFile(str(tmp_path / name), "wb") as sink, form(sink, written.schema) as writer:
            writer.write_table(written)
    for path in tmp_path.iterdir():
        assert_same_prices(cleaned(path)[0], bars)
    for name, content in (("garbage", b"no table"), ("cut", (tmp_path / "file.arrow").read_bytes()[:900])):
        (tmp_path / f"{name}.feather").write_bytes(content)
        with pytest.raises(InputError, match="is no Arrow or Feather file, or a damaged one"):
            cleaned(tmp_path / f"{name}.feather")


def coins(bars: pd.DataFrame) -> pd.DataFrame:
    """Return the bars of AAA and BBB as 5-minute bars of two coins, of 2024 and 2025."""
    some = bars[bars["symbol"] != "CCC"].reset_index(drop=True)
    some = some.round(dict.fromkeys(("open", "high", "low", "close"), 4))
    dates = pd.date_range("2024-12-31 22:00", periods=40, freq="5min")
    return some.assign(date=[*dates, *dates], symbol=some["symbol"] + "_USDT")


def assert_same_coins(path: Path, bars: pd.DataFrame, **market: Any) -> None:
    ended = bars.assign(date=bars["date"] + pd.Timedelta(minutes=5))
    prices, report = cleaned(path, **market)
    for field in ("open", "high", "low", "close", "volume"):
        expected = ended.pivot(index="date", columns="symbol", values=field)
        np.testing.assert_allclose(getattr(prices, field), expected.to_numpy(), rtol=1e-15)
    assert (prices.symbols, report.bar_stamp) == (tuple(expected.columns), "open")
    np.testing.assert_array_equal(prices.days, expected.index.to_numpy().astype("datetime64[s]"))


def milliseconds(bars: pd.DataFrame) -> Any:
    return bars["date"].dt.as_unit("ms").astype("int64")


def test_the_archive_of_binance_by_months_and_days_in_two_units(tmp_path: Path, bars: pd.DataFrame) -> None:
    wanted = coins(bars)
    wanted["symbol"] = wanted["symbol"].str.replace("_", "")
    late = wanted["date"] >= "2025-01-01"
    stamps = milliseconds(wanted)
    stamps = stamps.where(~late, 1_000 * stamps)
    ends = (stamps + 300_000).where(~late, stamps + 300_000_000) - 1
    rows = wanted.assign(date=stamps, end=ends, quote=1.0, count=3, taker=1.0, taker_quote=1.0, ignore=0)
    for (symbol, is_late), own in rows.groupby(["symbol", late]):
        name = f"{symbol}-5m-{'2025-01-01' if is_late else '2024-12'}.csv"
        own.drop(columns="symbol").to_csv(tmp_path / name, index=False, header=False)
    assert_same_coins(tmp_path, wanted)


@pytest.mark.parametrize("ending", ["feather", "parquet", "json", "json.gz"])
def test_freqtrades_folder_without_its_futures(tmp_path: Path, bars: pd.DataFrame, ending: str) -> None:
    def write(place: str, own: pd.DataFrame, ending: str) -> None:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        path, rows = tmp_path / f"{place}.{ending}", own.drop(columns="symbol").reset_index(drop=True)
        if ending.startswith("json"):
            rows.assign(date=milliseconds(rows)).to_json(path, orient="values")
        else:
            rows = rows.assign(date=rows["date"].dt.tz_localize("UTC"))
            rows.to_feather(path) if ending == "feather" else rows.to_parquet(path)

    wanted = coins(bars)
    for symbol, own in wanted.groupby("symbol"):
        write(f"{symbol}-5m", own, ending)
        for series in ("5m-futures", "1h-mark", "1h-funding_rate"):
            write(f"futures/{symbol}_USDT-{series}", own, ending)
    (tmp_path / "pairs.json").write_text('{"pairs": []}')
    assert_same_coins(tmp_path, wanted)
    futures = "futures, whose funding Eigen does not model"
    assert build_panel(small_config(tmp_path), tmp_path / "cache")[1].ignored_files == (
        f"futures ({futures})",
        "pairs.json",
    )
    (future,) = (tmp_path / "futures").glob("AAA*-futures.*")
    for path, held in ((tmp_path / "futures", "holds only "), (future, "holds ")):
        with pytest.raises(InputError, match=f"{held}{futures}: give prices of spot markets"):
            cleaned(path)
    # Futures beside spot prices stay out, too.
    future.rename(tmp_path / future.name)
    assert_same_coins(tmp_path, wanted)


def test_bars_of_several_lengths_in_a_folder_are_never_mixed(tmp_path: Path, bars: pd.DataFrame) -> None:
    """Read as bars of 5 minutes, bars of an hour would show agents the rest of the hour."""
    wanted = coins(bars)
    for symbol, own in wanted.groupby("symbol"):
        rows = own.drop(columns="symbol").assign(date=own["date"].dt.tz_localize("UTC")).reset_index(drop=True)
        rows.to_feather(tmp_path / f"{symbol}-5m.feather")
        hours = rows.assign(date=pd.date_range("2024-12-30", periods=40, freq="h", tz="UTC"))
        hours.to_feather(tmp_path / f"{str(symbol).replace('BBB', 'CCC')}-1h.feather")
    for bar in ("auto", "15m"):
        with pytest.raises(InputError, match=r"holds bars of 1h, 5m: set market.bar to one of these"):
            cleaned(tmp_path, bar=bar)
    assert_same_coins(tmp_path, wanted, bar="5m")
    _, report = build_panel(small_config(tmp_path, bar="5m"), tmp_path / "cache")
    assert report.ignored_files == ("AAA_USDT-1h.feather", "CCC_USDT-1h.feather")
    prices, _ = cleaned(tmp_path, bar="1h")
    assert (prices.symbols, len(prices.days)) == (("AAA_USDT", "CCC_USDT"), 40)


@pytest.mark.parametrize("written", [{}, {"index": False}, {"header": False}, {"header": False, "index": False}])
@pytest.mark.parametrize("by_numpy", [False, True])
def test_rows_of_ccxt_that_pandas_has_saved(tmp_path: Path, bars: pd.DataFrame, written: Any, by_numpy: bool) -> None:
    wanted = coins(bars)
    for symbol, own in wanted.groupby("symbol"):
        rows: Any = own.assign(date=milliseconds(own)).drop(columns="symbol").astype(object).to_numpy().tolist()
        pd.DataFrame(np.array(rows) if by_numpy else rows).to_csv(tmp_path / f"{symbol}.csv", **written)
    assert_same_coins(tmp_path, wanted)


@pytest.mark.parametrize("content", ['{"a": [[1, 2]]}', "[[1, [2]]]", '[[1, "x"]]', "[]", "[[1, 2", ""])
def test_json_that_is_no_list_of_rows_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match=r"BTC_USDT-5m\.json is no JSON list of rows of numbers"):
        cleaned(write_text(tmp_path / "BTC_USDT-5m.json", content))
