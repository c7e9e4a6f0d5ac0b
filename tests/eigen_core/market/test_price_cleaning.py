"""What cannot be right in prices is found, set right from its own day, and counted."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import business_days, cleaned, random_bars, write_csv, write_text

from eigen_core.common.errors import InputError
from eigen_core.market.report import DataReport


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
    assert report.repaired_highs == 2
    assert report.repaired_lows == 1
    assert (report.derived_highs, report.derived_lows) == (2, 2)
    assert report.missing_opens == 2
    assert report.unusable_prices == 7
    assert report.symbols[0].gap_days == 5
    assert report.gap_days == 5


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
    assert report.carried_adjustments == 2
    volume = cleaned(tmp_path / "AAA.csv")[0].volume[:, 0]
    np.testing.assert_allclose(volume * bars[:, 3], 1_000.0)


@pytest.mark.parametrize(
    "heading", ["Adj Close", "adj_close", "adjclose", "Adj. Close", "Adjusted Close", "Adj Close**"]
)
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


def test_a_day_of_bad_prices_alone_stays_a_day(tmp_path: Path) -> None:
    prices, report = cleaned(
        write_text(tmp_path / "w.csv", "Date,A\n2020-01-01,1\n2020-01-02,0\n2020-01-03,2\n"), layout="wide"
    )
    np.testing.assert_array_equal(prices.close[:, 0], [1, np.nan, 2])
    assert (report.empty_days, report.unusable_prices) == (0, 1)


def test_symbol_without_a_usable_price_is_dropped_and_reported(tmp_path: Path) -> None:
    for symbol, own in random_bars(["AAA", "BBB"], 20, seed=2).groupby("symbol"):
        write_csv(tmp_path / f"{symbol}.csv", own.drop(columns="symbol"))
    dead = random_bars(["DEAD"], 20, seed=3).drop(columns="symbol")
    dead[["open", "high", "low", "close"]] = np.nan
    write_csv(tmp_path / "DEAD.csv", dead)
    prices, report = cleaned(tmp_path)
    assert prices.symbols == ("AAA", "BBB")
    assert report.dropped_symbols == ("DEAD",)


def test_context_comes_last_in_the_order_given(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["A", "B", "C", "D"], 20, seed=4))
    prices, report = cleaned(path, context=("C", "A", "C"))
    assert prices.symbols == ("B", "D", "C", "A")
    assert prices.assets == 2
    assert [history.tradable for history in report.symbols] == [True, True, False, False]
    np.testing.assert_array_equal(prices.close, cleaned(path)[0].close[:, [1, 3, 2, 0]])
    assert "Context only: C, A." in report.lines()


def test_large_moves_are_reported_and_kept(tmp_path: Path) -> None:
    bars, report = one_symbol(tmp_path, "Close", "10", "21", "", "10", "11")
    np.testing.assert_array_equal(bars[:, 3], [10, 21, 10, 11])
    assert report.large_moves == 2


def test_row_order_and_file_form_do_not_change_the_bits(tmp_path: Path) -> None:
    bars = random_bars(["A", "B"], 30, seed=6)
    bars.loc[[3, 40], "close"] = [0.0, np.nan]
    one = cleaned(write_csv(tmp_path / "one.csv", bars))[0]
    bars.sample(frac=1.0, random_state=1).to_parquet(tmp_path / "two.parquet")
    two = cleaned(tmp_path / "two.parquet")[0]
    for field in ("days", "open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def test_context_must_be_known(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["AAPL", "MSFT"], 20, seed=7))
    with pytest.raises(InputError, match=r"'APPL'.*did you mean AAPL"):
        cleaned(path, context=("APPL",))
    with pytest.raises(InputError, match="leave at least one"):
        cleaned(path, context=("AAPL", "MSFT"))
    frame = pd.read_csv(path).assign(dead=np.nan)
    frame.loc[frame["symbol"] == "MSFT", "close"] = np.nan
    with pytest.raises(InputError, match="'MSFT' has no usable price"):
        cleaned(write_csv(path, frame), context=("MSFT",))
