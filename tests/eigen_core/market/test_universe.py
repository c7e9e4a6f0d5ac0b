"""The data report says what the choice of symbols and the making of their prices do to a backtest."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import cleaned, random_bars, write_csv

from eigen_core.config.market import BUNDLED, path_of_data
from eigen_core.market.cleaning import suspicious_prices
from eigen_core.market.formats import Role
from eigen_core.market.report import DataReport, UniverseAudit, distorting

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
    return [(row.kind, row.symbol, row.day) for row in suspicious_prices(days_of(close), symbols, raw, prices)]


def walk(seed: int, deviation: float = 0.02, symbols: int = 1) -> np.ndarray:
    steps = np.random.default_rng(seed).standard_normal((DAYS, symbols))
    return np.asarray(50.0 * np.exp(np.cumsum(deviation * steps, axis=0)))


def test_bundled_prices() -> None:
    report = cleaned(path_of_data(None), layout="wide")[1]
    assert not distorting(report.suspicious)
    assert {row.symbol for row in report.suspicious if row.kind == "stale"} == {"RRC"}
    assert [(row.kind, row.symbol, row.day) for row in report.suspicious[:1]] == [("move", "AAPL", "2000-09-29")]
    assert report.universe.dividends == "unknown"
    assert says(report, "only survivors were chosen")
    assert not report.universe.weekend_days
    assert not report.universe.missing_share


def test_adjusted_closes_contain_dividends_and_plain_ones_show_the_splits(tmp_path: Path) -> None:
    adjusted = cleaned(BUNDLED["us5"])[1]
    assert adjusted.universe.dividends == "adjusted"
    assert not distorting(adjusted.suspicious)
    assert 0.25 < adjusted.universe.missing_share < 0.26
    plain = cleaned(write_csv(tmp_path / "p.csv", pd.read_csv(BUNDLED["us5"]).drop(columns="Adj Close")))[1]
    assert [(row.kind, row.symbol, row.day) for row in distorting(plain.suspicious)] == [
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
    assert suspicious(close) == []


def test_dividends() -> None:
    close = walk(seed=5, symbols=2)
    factor = np.ones(close.shape)

    def dividends() -> str:
        return UniverseAudit.of(days_of(close), 2, close, factor).dividends

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
    for words in ("20 days on a Saturday or Sunday", "AAA 2020-01-06 (11 days)", "7.1% of all days and symbols"):
        assert says(report, words)
