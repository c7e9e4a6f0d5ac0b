"""Price files are read by what is named or known by all headings; others are refused, and nothing is guessed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from market_cases import cleaned, random_bars, read, small_config, write_csv, write_text

from benchmarks.fuzz import layouts
from benchmarks.fuzz.layouts import settings_of
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.market import build_panel
from eigen_core.market.report import distorting_rows


@pytest.mark.parametrize("kind", layouts.LAYOUTS)
def test_drawn_files_are_read_correctly_or_refused_without_advice_that_misreads_them(tmp_path: Path, kind: str) -> None:
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = layouts.case_of(kind, np.random.default_rng(seed), folder)
        assert outcome.fault is None, seed


def refusal(path: Path, *given: str) -> list[str]:
    """Return the settings that the refusal of a file prints."""
    with pytest.raises(InputError) as caught:
        read(path, *given)
    return settings_of(str(caught.value))


def wide(**columns: Any) -> pd.DataFrame:
    """Return closes of AAA and BBB, and other columns, on 60 days."""
    closes = random_bars(["AAA", "BBB"], 60, seed=1).pivot(index="date", columns="symbol", values="close").reset_index()
    return closes.assign(**columns)


def test_a_wide_file_is_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "closes.csv", wide())
    with pytest.raises(InputError, match=r"the columns 'date', 'AAA', 'BBB', .* or set market\.layout=wide if"):
        read(path)
    prices, report = cleaned(path, layout="wide", symbols=("BBB",))
    assert (prices.symbols, report.ignored_columns) == (("BBB",), ("AAA",))
    with pytest.raises(InputError, match=r"market\.symbols names 'CCC'"):
        read(path, "market.layout=wide", "market.symbols=AAA,CCC")


def test_a_named_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["AAA"], 30, seed=3))
    with pytest.raises(
        InputError, match=r"market.columns.close names 'Kurs', which is no heading; the headings are 'date'"
    ):
        read(path, "market.columns.close=Kurs")


BARS = random_bars(["AAA", "BBB"], 90, seed=4)
CLOSES = wide()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BARS[["symbol", "date", "close"]].to_csv(index=False, header=False), "write headings into its first line"),
        ("symbol,2020-01-02,2020-01-03\nAAA,1,2\nBBB,3,4\n", "write headings into its first line"),
        ("date,symbol,close\n" + "2020-01-02,A,1\n,B,2\n,C,3\n" * 20, "40 rows with prices but no date or symbol"),
        (
            "date,symbol,close,Close\n2020-01-02,A,1,2\n",
            "several columns like 'close': name one in market.columns.close",
        ),
        (BARS.rename(columns={"symbol": "Name"}).to_csv(index=False), "name it in market.columns.symbol"),
    ],
)
def test_a_file_that_no_setting_reads_is_refused_without_one(tmp_path: Path, text: str, words: str) -> None:
    path = write_text(tmp_path / "p.csv", text)
    with pytest.raises(InputError, match=words) as caught:
        read(path)
    assert settings_of(str(caught.value)) == []


@pytest.mark.parametrize("character", ["\u2066", "\u061c", "\u180e", "\ufe0f", "\u034f", "\u3164", "\u2800", "\x07"])
def test_invisible_characters_make_no_symbol(tmp_path: Path, character: str) -> None:
    bars = BARS.assign(symbol=BARS["symbol"].where(BARS.index % 2 == 0, BARS["symbol"] + character))
    assert read(write_csv(tmp_path / "p.csv", bars)).symbols == ("AAA", "BBB")


@pytest.mark.parametrize(("one", "other"), [("AAA", "aaa"), ("AAA", "ＡＡＡ"), ("É", "E\u0301")])
def test_symbols_that_differ_in_case_or_form_alone_are_refused(tmp_path: Path, one: str, other: str) -> None:
    bars = BARS.replace({"AAA": one, "BBB": other})
    with pytest.raises(InputError, match="differ only in case or Unicode form"):
        read(write_csv(tmp_path / "p.csv", bars))
    assert len(read(tmp_path / "p.csv", f"market.symbols={one},{other}").symbols) == 2


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1.234", "2.345", "987"], None),
        (["1,234", "2,345"], None),
        (["1.234", "2.3450"], [1.234, 2.345]),
        (["1,234", "2,3450"], [1.234, 2.345]),
        (["1.234,5", "2.345,75"], [1234.5, 2345.75]),
        (["1,234.5", "2,345.75"], [1234.5, 2345.75]),
        (["1,234", "0,987"], [1.234, 0.987]),
        (["1234", "987"], [1234.0, 987.0]),
    ],
)
def test_decimal_marks(tmp_path: Path, cells: list[str], values: list[float] | None) -> None:
    rows = "".join(f"2020-01-0{day};{cell}\n" for day, cell in enumerate(cells, 2))
    path = write_text(tmp_path / "AAA.csv", f"Date;Close\n{rows}")
    if values is None:
        assert refusal(path) == ["market.decimal=.", "market.decimal=,"]
        with_comma = [float(cell.replace(".", "").replace(",", ".")) for cell in cells]
        np.testing.assert_allclose(read(path, "market.decimal=,").close[:, 0], with_comma)
    else:
        np.testing.assert_allclose(read(path).close[:, 0], values)


@pytest.mark.parametrize("given", [[], ["market.decimal=,"], ["market.decimal=."]])
@pytest.mark.parametrize("columns", ["100,43;100.43", "100.5;1,234", "100,5;1.234"])
def test_decimal_marks_that_differ_by_column_are_refused(tmp_path: Path, columns: str, given: list[str]) -> None:
    path = write_text(tmp_path / "p.csv", "Date;AAA;BBB\n" + "".join(f"2020-01-0{day};{columns}\n" for day in (2, 3)))
    agrees = given and given[0][-1] == columns[3] and columns != "100,43;100.43"
    if agrees:
        assert read(path, "market.layout=wide", *given).close[0].tolist() == [100.5, 1_234.0]
        return
    with pytest.raises(InputError, match="decimal mark"):
        read(path, "market.layout=wide", *given)


def test_columns_in_another_order_are_refused(tmp_path: Path) -> None:
    bars = BARS.rename(columns={"high": "low", "low": "high"})
    with pytest.raises(InputError, match="highs below opens or closes, or lows above them, in most rows"):
        read(write_csv(tmp_path / "p.csv", bars))


def test_adjusted_closes_that_begin_late_make_no_loss(tmp_path: Path) -> None:
    bars = random_bars(["AAA"], 60, seed=5)
    adjusted = (bars["close"] / 2).where(bars.index >= 30)
    path = write_csv(tmp_path / "p.csv", bars.assign(adj_close=adjusted))
    with pytest.raises(InputError, match=f"on another scale: AAA {bars['date'][30]:%Y-%m-%d}"):
        build_panel(small_config(path), tmp_path / "cache")
    day = f"{bars['date'][30]:%Y-%m-%d}"
    prices = read(path, f"market.events=AAA {day} renamed")
    assert prices.symbols == ("AAA", f"AAA_before_{day}")
    np.testing.assert_allclose(prices.close[30:, 0], adjusted[30:])


def test_an_empty_close_beside_an_adjusted_one_drops_no_day(tmp_path: Path) -> None:
    bars = random_bars(["AAA"], 60, seed=6).assign(adj_close=lambda frame: frame["close"])
    bars.loc[7, "close"] = np.nan
    prices = read(write_csv(tmp_path / "p.csv", bars))
    np.testing.assert_allclose(prices.close[:, 0], bars["adj_close"])


def spoiled(bars: pd.DataFrame, kind: str) -> tuple[pd.DataFrame, list[int]]:
    """Return bars with one suspicious row or change, and the rows that are left out for it."""
    row = 40
    if kind == "twice":
        again = bars.loc[[row]].assign(close=bars["close"][row] * 1.001)
        return pd.concat([bars, again], ignore_index=True), [row, len(bars)]
    left_out = [row]
    if kind in ("not positive", "too large"):
        bars.loc[row, "close"] = {"not positive": -1.0, "too large": np.inf}[kind]
    else:
        bars.loc[left_out, ["open", "high", "low", "close"]] *= 100.0
    return bars, left_out


@pytest.mark.parametrize("kind", ["spike", "not positive", "too large", "twice"])
def test_rows_that_make_figures_absurd_are_refused_left_out_or_kept(tmp_path: Path, kind: str) -> None:
    bars, rows = spoiled(random_bars(["AAA", "BBB"], 200, seed=7), kind)
    day = f"{bars['date'][rows[0]]:%Y-%m-%d}"
    path = write_csv(tmp_path / "p.csv", bars)
    with pytest.raises(InputError, match=f"AAA {day}.*`--set market.suspicious=drop`"):
        build_panel(small_config(path), tmp_path / "cache")
    # A panel in the cache is refused as well.
    _, report = build_panel(small_config(path, suspicious="keep"), tmp_path / "cache")
    kind = "not positive" if kind == "too large" else kind
    assert [(row.kind, row.symbol, row.day) for row in distorting_rows(report.suspicious)] == [(kind, "AAA", day)]
    with pytest.raises(InputError, match=f"AAA {day}"):
        build_panel(small_config(path), tmp_path / "cache")
    panel, report = build_panel(small_config(path, suspicious="drop"), tmp_path / "cache")
    assert any(f"AAA {day}" in line and "left out" in line for line in report.lines())
    without, _ = build_panel(small_config(write_csv(tmp_path / "q.csv", bars.drop(index=rows))), tmp_path / "cache")
    for name in ("open", "high", "low", "close", "features"):
        np.testing.assert_array_equal(getattr(panel, name), getattr(without, name))


def test_returns_instead_of_prices_are_refused_as_a_whole(tmp_path: Path) -> None:
    returns = wide(AAA=np.random.default_rng(2).normal(size=60))
    path = write_csv(tmp_path / "p.csv", returns)
    with pytest.raises(InputError, match=r"suspicious rows of 120, so they are probably not prices"):
        read(path, "market.layout=wide", "market.suspicious=drop")


def test_two_weeks_on_another_scale_are_two_jumps(tmp_path: Path) -> None:
    bars = random_bars(["AAA"], 200, seed=7)
    bars.loc[100:109, ["open", "high", "low", "close"]] *= 100.0
    report = cleaned(write_csv(tmp_path / "p.csv", bars))[1]
    days = [str(bars["date"][row].date()) for row in (100, 110)]
    assert [(row.kind, row.day) for row in distorting_rows(report.suspicious)] == [("jump", day) for day in days]


def test_a_negative_low_is_named_and_a_zero_without_trading_is_not(tmp_path: Path) -> None:
    bars = random_bars(["AAA"], 60, seed=8)
    bars.loc[20, "low"] = -1.0
    bars.loc[30, ["open", "volume"]] = 0
    report = cleaned(write_csv(tmp_path / "p.csv", bars))[1]
    assert [str(row) for row in report.suspicious] == [f"AAA {bars['date'][20]:%Y-%m-%d} (low -1)"]
    assert not distorting_rows(report.suspicious)


@pytest.mark.parametrize("data", ["prices.csv", "us5", None])
def test_stored_runs_read_their_prices_as_before(data: str | None) -> None:
    values: dict[str, Any] = stored_values(Config.model_validate({"market": {"data": data}}))
    values["format_version"] = 5
    for name in ("layout", "columns", "symbols", "symbol_from", "date_format", "decimal", "suspicious"):
        del values["market"][name]
    market = config_from_stored(values).market
    assert (market.layout, market.suspicious) == (("wide", "keep") if data == "prices.csv" else ("long", "refuse"))


def test_the_layout_of_stored_runs_reads_long_and_wide_files(tmp_path: Path) -> None:
    bars = random_bars(["AAA", "BBB"], 60, seed=9)
    long = write_csv(tmp_path / "long.csv", bars)
    one, _ = build_panel(small_config(long, layout="wide", suspicious="keep"), tmp_path / "cache")
    other, _ = build_panel(small_config(long), tmp_path / "cache")
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.features, other.features)
