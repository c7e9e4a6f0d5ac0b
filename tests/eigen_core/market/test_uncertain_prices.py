"""Price files that can be read in two ways are read rightly or refused, never misread."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import business_days, cleaned, random_bars, write_csv, write_text

from eigen_core.errors import InputError
from eigen_core.market.cleaning import CleanPrices

DAYS = business_days(30)


def refused(path: Path, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        cleaned(path)
    assert "\n" not in str(caught.value)


def assert_closes(prices: CleanPrices, closes: dict[str, np.ndarray]) -> None:
    assert set(prices.symbols) == set(closes)
    for column, symbol in enumerate(prices.symbols):
        np.testing.assert_allclose(prices.close[:, column], closes[symbol], rtol=1e-12)


def walk(seed: int, days: int = len(DAYS)) -> np.ndarray:
    return 50.0 * np.exp(np.cumsum(0.02 * np.random.default_rng(seed).standard_normal(days)))


def wide(path: Path, *headings: str, date: str = "Date") -> dict[str, np.ndarray]:
    """Write a wide file and return its columns."""
    closes = {heading: walk(seed) for seed, heading in enumerate(headings)}
    write_csv(path, pd.DataFrame({date: DAYS, **closes}))
    return closes


@pytest.mark.parametrize(
    "heading",
    [
        "isin", "cusip", "PERMNO", "sym", "RIC", "gvkey", "company", "Security", "secid", "TICKER_SYMBOL",
        "Instrument ID", "instrument", "asset", "code", "stock_code", "Trading Symbol", "Company Name", "SEDOL",
    ],
)  # fmt: skip
@pytest.mark.parametrize("names", [("AAA", "BBB"), ("10107", "14593")])
def test_headings_of_symbols(tmp_path: Path, heading: str, names: tuple[str, str]) -> None:
    bars = random_bars(list(names), 30, seed=1)
    prices, _ = cleaned(write_csv(tmp_path / "p.csv", bars.rename(columns={"symbol": heading}).assign(note=1.5)))
    assert_closes(prices, {name: bars["close"][bars["symbol"] == name].to_numpy() for name in names})


@pytest.mark.parametrize("heading", ["Wertpapier", "exchange", "currency", "expiry", "venue no"])
@pytest.mark.parametrize("same_prices", [False, True])
def test_a_key_that_is_not_known_is_refused(tmp_path: Path, heading: str, same_prices: bool) -> None:
    bars = random_bars(["1", "2"], 30, seed=2).rename(columns={"symbol": heading})
    if same_prices:
        bars[["open", "high", "low", "close", "volume"]] = 1.0
    refused(write_csv(tmp_path / "p.csv", bars), f"several rows on 2020-01-01, with '1' and '2' under '{heading}'")
    refused(write_csv(tmp_path / "q.csv", bars.assign(symbol="AAA")), f"'AAA' has several rows.*'{heading}'")


def test_melted_fields_are_refused_unless_all_are_closes(tmp_path: Path) -> None:
    bars = random_bars(["AAA"], 30, seed=3)
    melted = bars.melt(["date", "symbol"], var_name="field", value_name="price")
    refused(write_csv(tmp_path / "all.csv", melted), "'open' under 'field', so not all rows are closes")
    refused(write_csv(tmp_path / "opens.csv", melted[melted["field"] == "open"]), "not all rows are closes")
    closes = cleaned(write_csv(tmp_path / "closes.csv", melted[melted["field"] == "close"]))[0]
    assert_closes(closes, {"AAA": bars["close"].to_numpy()})


def test_rows_of_a_day_with_other_prices_are_refused(tmp_path: Path) -> None:
    text = "Date,Symbol,Close\n2020-01-02,A,1\n2020-01-03,A,3\n2020-01-02,A,2\n"
    refused(write_text(tmp_path / "p.csv", text), "'A' has several rows on 2020-01-02, with close 1 and 2")
    refused(write_text(tmp_path / "w.csv", "Date,A,B\n2020-01-02,1,2\n2020-01-02,5,\n"), "'A' has several rows")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_text(folder / "one.csv", "Date,Symbol,Close\n2020-01-02,A,1\n")
    write_text(folder / "two.csv", "Date,Symbol,Close\n2020-01-02,A,1.5\n")
    refused(folder, "'A' has several rows on 2020-01-02, with close 1 and 1.5")


def test_one_symbol_with_columns_of_text_is_named_after_its_file(tmp_path: Path) -> None:
    bars = random_bars(["x"], 30, seed=4).drop(columns="symbol").assign(currency="EUR", comment=list(map(str, DAYS)))
    prices, report = cleaned(write_csv(tmp_path / "AAA.csv", pd.concat([bars, bars])))
    assert_closes(prices, {"AAA": bars["close"].to_numpy()})
    assert report.ignored_columns == ("currency", "comment")
    assert report.duplicate_rows == 30


@pytest.mark.parametrize("ticker", ["LAST", "PRICE", "CLOSE", "OPEN", "LOW", "HIGH", "NAV", "VALUE", "COIN", "DAY"])
@pytest.mark.parametrize("position", [0, 2, 4])
def test_tickers_that_are_called_like_a_field(tmp_path: Path, ticker: str, position: int) -> None:
    headings = ["AAA", "BBB", "BRK.B", "D"]
    headings.insert(position, ticker)
    assert_closes(cleaned_wide(tmp_path, headings), wide(tmp_path / "again.csv", *headings))


def cleaned_wide(folder: Path, headings: list[str], date: str = "Date") -> CleanPrices:
    wide(folder / "w.csv", *headings, date=date)
    return cleaned(folder / "w.csv")[0]


@pytest.mark.parametrize(
    "headings",
    [
        ["AAA", "LAST"], ["Close", "AAA"], ["aaa", "bbb", "ccc", "last"], ["CLOSE", "LOW"], ["LAST", "PRICE"],
        ["close", "feature_1", "feature_2", "feature_3", "feature_4"],
    ],
)  # fmt: skip
def test_a_close_or_a_ticker_is_refused_with_both_readings(tmp_path: Path, headings: list[str]) -> None:
    wide(tmp_path / "w.csv", *headings)
    refused(tmp_path / "w.csv", "can be read in two ways: '.*' is the close of one symbol, or a symbol like")


def test_capitals_say_nothing_where_the_date_is_in_capitals_too(tmp_path: Path) -> None:
    wide(tmp_path / "w.csv", "AAA", "BBB", "CCC", "LAST", date="DATE")
    refused(tmp_path / "w.csv", "can be read in two ways")


@pytest.mark.parametrize(
    "headings",
    [
        ["AAA", "AAA volume"], ["AAA.Open", "AAA.Close"], ["AAA", "BBB", "weekday"], ["AAAOpen", "BBBOpen"],
        ["Open AAA", "Close AAA"], ["AAA", "VOLUME", "BBB"], ["AAA", "BBB", "sma_20"], ["AAA", "RSI"], ["AAA", "Low"],
        ["Volume AAA", "Volume BBB"], ["AAA.Close", "AAA.Adjusted"], ["AAA", "AAA close"], ["AAA (Adj High)", "BBB"],
        ["AAA", "Dividends"], ["AAA", "id"],
    ],
)  # fmt: skip
def test_a_column_that_is_no_symbol_is_refused(tmp_path: Path, headings: list[str]) -> None:
    wide(tmp_path / "w.csv", *headings)
    refused(tmp_path / "w.csv", "may be a symbol or something else of a day")


@pytest.mark.parametrize(
    "headings",
    [
        ["AAA.Close", "BBB.Close"], ["LOW.N", "OPEN.OQ", "AAA.N"], ["S&P 500 Total Return", "Gold"],
        ["BTC-USD", "^GSPC", "ES=F"], ["AAA US Equity", "LOW US Equity"], ["stock", "bond"], ["AAA", "ATR", "B", "CC"],
    ],
)  # fmt: skip
def test_headings_that_are_symbols_all_the_same(tmp_path: Path, headings: list[str]) -> None:
    assert_closes(cleaned_wide(tmp_path, headings), wide(tmp_path / "again.csv", *headings))


@pytest.mark.parametrize(
    "headings",
    [
        ["Open", "High", "Low", "Close", "AAA"], ["LAST", "VOLUME"], ["Close", "SMA20", "RSI"], ["NAV", "Volume"],
        ["close", "dividends", "stock_splits"], ["High", "Low", "Settle", "Open Interest"], ["Value"],
    ],
)  # fmt: skip
def test_bars_of_one_symbol_beside_what_is_not_used(tmp_path: Path, headings: list[str]) -> None:
    columns = wide(tmp_path / "XYZ.csv", *headings)
    close = next(columns[name] for name in ("Close", "close", "LAST", "NAV", "Settle", "Value") if name in columns)
    assert_closes(cleaned(tmp_path / "XYZ.csv")[0], {"XYZ": close})


def folder_of(folder: Path, *files: tuple[str, str, slice]) -> Path:
    """Write files of days and one column each: stem, heading, days; prices are 1, 2, ... by file times the day."""
    folder.mkdir()
    for number, (stem, heading, days) in enumerate(files, 1):
        values = number * np.arange(1.0, len(DAYS) + 1)
        write_csv(folder / f"{stem}.csv", pd.DataFrame({"Date": DAYS, heading: values})[days])
    return folder


ALL, EARLY, LATE = slice(None), slice(0, 15), slice(15, None)


@pytest.mark.parametrize("heading", ["Value", "nav", "SETTLE", "Settlement Price", "Kurs", "PX_LAST", "Wert (EUR)"])
def test_folder_of_files_with_one_column_of_the_same_name(tmp_path: Path, heading: str) -> None:
    folder = folder_of(tmp_path / "f", *((stem, heading, ALL) for stem in ("AAA", "BBB", "CCC")))
    closes = np.arange(1.0, len(DAYS) + 1)
    assert_closes(cleaned(folder)[0], {"AAA": closes, "BBB": 2 * closes, "CCC": 3 * closes})


def test_folder_of_files_whose_column_is_named_like_the_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f", ("AAA", "AAA", ALL), ("VIX", "^VIX", ALL), ("GOLD", "close", LATE))
    assert set(cleaned(folder)[0].symbols) == {"AAA", "^VIX", "GOLD"}


@pytest.mark.parametrize(
    "files",
    [
        [("AAA", "Kurs", EARLY), ("BBB", "Kurs", LATE)],
        [("AAA", "Value", ALL), ("closes", "BBB", ALL)],
        [("one", "AAA", ALL), ("two", "BBB", ALL)],
    ],
)
def test_folder_of_files_with_one_column_of_an_unclear_name_is_refused(
    tmp_path: Path, files: list[tuple[str, str, slice]]
) -> None:
    refused(folder_of(tmp_path / "f", *files), "can be read in two ways: the symbol is '.*' by its heading or '.*' by")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1.234", "2.345", "987"], None),
        (["1.000", "2.000"], None),
        (["1.234", "", "-"], None),
        (["1.234 ", "2.345 "], None),
        (["1.234", "2.3450"], [1.234, 2.345]),
        (["1.234", "0.987"], [1.234, 0.987]),
        (["1.234", "1012.345"], [1.234, 1012.345]),
        (["1.23", "1.234", "1.2"], [1.23, 1.234, 1.2]),
        (["1234", "987"], [1234.0, 987.0]),
        (["1.234"] * 3_000 + ["2.5"], [1.234] * 3_000 + [2.5]),
    ],
)  # fmt: skip
def test_points_that_may_group_thousands(
    tmp_path: Path, separator: str, cells: list[str], values: list[float] | None
) -> None:
    rows = "".join(
        f"{day:%Y-%m-%d}{separator}{cell}\n" for day, cell in zip(business_days(len(cells)), cells, strict=True)
    )
    path = write_text(tmp_path / "AAA.csv", f"Date{separator}Close\n{rows}")
    if values is None:
        refused(path, "may be a number between 0 and 1,000 or one without its comma")
    else:
        assert_closes(cleaned(path)[0], {"AAA": np.array(values)})


def test_points_of_the_first_column(tmp_path: Path) -> None:
    path = write_text(tmp_path / "AAA.csv", "Close;Date\n1.234;2020-01-02\n2.345;2020-01-03\n")
    refused(path, "'1.234' may be a number between 0 and 1,000")


def test_a_symbol_that_is_a_truth_value_or_a_marker(tmp_path: Path) -> None:
    for name in ("TRUE", "NA"):
        bars = random_bars([name], 30, seed=5)[["date", "symbol", "close"]].rename(columns={"symbol": "Sector"})
        prices, _ = cleaned(write_csv(tmp_path / f"{name}.csv", bars))
        assert_closes(prices, {name: bars["close"].to_numpy()})


def test_another_column_says_what_a_point_is(tmp_path: Path) -> None:
    path = write_text(tmp_path / "AAA.csv", "Date;Close;Change\n2020-01-02;1.234;0.05\n2020-01-03;1.236;0.07\n")
    assert_closes(cleaned(path)[0], {"AAA": np.array([1.234, 1.236])})
    path = write_text(tmp_path / "BBB.csv", "Date;Close;Change\n2020-01-02;1.234;0,05\n2020-01-03;1.236;0,07\n")
    refused(path, "may be a number between")
