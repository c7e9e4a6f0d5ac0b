"""Features equal plain definitions; columns and registered functions are features like all others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feature_cases import install_features
from market_cases import random_bars, small_config, write_csv
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.market import Panel, build_panel
from eigen_core.market.features import CARRIED_DAYS, Bars, FeatureSet, column_features, feature_names
from eigen_core.task.panel import PanelFacts

Series = NDArray[np.float64]


def bars_of(*prices: Series) -> Bars:
    opened, high, low, close, volume = prices
    return Bars(opened, high, low, close, volume, np.datetime64("2020-01-01") + np.arange(len(close)))


def random_walk(days: int, seed: int = 1) -> Bars:
    generator = np.random.default_rng(seed)
    close = 80.0 * np.exp(np.cumsum(0.02 * generator.standard_normal(days)))
    opened = close * np.exp(0.01 * generator.standard_normal(days))
    high, low = np.maximum(opened, close) * 1.01, np.minimum(opened, close) * 0.98
    return bars_of(opened, high, low, close, generator.integers(0, 5_000, days).astype(np.float64))


def features_of(bars: Bars, feature_set: FeatureSet) -> dict[str, Series]:
    names = feature_names(feature_set, True, True)
    return dict(zip(names, column_features(bars, feature_set, True, True).T, strict=True))


def exponential_mean(values: Series, days: int) -> Series:
    """Mean of the first `days` values, then a step of 2 / (days + 1) towards each new one."""
    result = np.full(len(values), np.nan)
    result[days - 1] = np.mean(values[:days])
    for day in range(days, len(values)):
        result[day] = result[day - 1] + 2.0 / (days + 1) * (values[day] - result[day - 1])
    return result


def plain_rsi(close: Series, days: int) -> Series:
    rises, falls = np.maximum(np.diff(close), 0.0), np.maximum(-np.diff(close), 0.0)
    result = np.full(len(close), np.nan)
    rise, fall = rises[:days].mean(), falls[:days].mean()
    for day in range(days, len(close)):
        if day > days:
            rise = (rise * (days - 1) + rises[day - 1]) / days
            fall = (fall * (days - 1) + falls[day - 1]) / days
        result[day] = 100.0 * rise / (rise + fall)
    return result


def plain_macd(close: Series) -> tuple[Series, Series]:
    """Both means start on the day on which the slow one is first known; the lines on the signal's first day."""
    slow = exponential_mean(close, 26)
    fast = np.full(len(close), np.nan)
    fast[14:] = exponential_mean(close[14:], 12)
    line = fast - slow
    signal = np.full(len(close), np.nan)
    signal[25:] = exponential_mean(line[25:], 9)
    return np.where(np.isnan(signal), np.nan, line), signal


def test_classic_set_equals_plain_definitions() -> None:
    bars = random_walk(200)
    classic = features_of(bars, "classic")
    assert list(classic) == ["open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "mean_distance_20"]
    for name in ("open", "close", "high", "low"):
        np.testing.assert_array_equal(classic[name], getattr(bars, name))
    np.testing.assert_allclose(classic["rsi"], plain_rsi(bars.close, 14), rtol=1e-10)
    line, signal = plain_macd(bars.close)
    np.testing.assert_allclose(classic["macd"], line, atol=1e-10)
    np.testing.assert_allclose(classic["macd_signal"], signal, atol=1e-10)
    thrice = bars.close
    for _ in range(3):
        known = ~np.isnan(thrice)
        smooth = np.full(len(thrice), np.nan)
        smooth[known] = exponential_mean(thrice[known], 30)
        thrice = smooth
    trix = np.full(200, np.nan)
    trix[1:] = 100.0 * (thrice[1:] / thrice[:-1] - 1.0)
    np.testing.assert_allclose(classic["trix"], trix, rtol=1e-8)
    for day in range(19, 200):
        mean = bars.close[day - 19 : day + 1].mean()
        assert classic["mean_distance_20"][day] == pytest.approx(bars.close[day] / mean - 1.0, rel=1e-9)


def test_returns_set_equals_plain_definitions() -> None:
    bars = random_walk(260)
    returns = features_of(bars, "returns")
    close, log_close = bars.close, np.log(bars.close)
    for day in range(260):
        for days in (1, 5, 20, 60, 120):
            expected = np.log(close[day] / close[day - days]) if day >= days else np.nan
            assert returns[f"log_return_{days}"][day] == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
        for days in (20, 60):
            expected = np.diff(log_close)[day - days : day].std() if day >= days else np.nan
            assert returns[f"volatility_{days}"][day] == pytest.approx(expected, rel=1e-9, nan_ok=True)
        for days in (20, 60, 200):
            expected = close[day] / close[day - days + 1 : day + 1].mean() - 1.0 if day >= days - 1 else np.nan
            assert returns[f"mean_distance_{days}"][day] == pytest.approx(expected, rel=1e-8, nan_ok=True)
        amounts = np.log1p(bars.volume[max(0, day - 59) : day + 1])
        expected = (amounts[-1] - amounts.mean()) / amounts.std() if day >= 59 else np.nan
        assert returns["volume"][day] == pytest.approx(expected, rel=1e-9, nan_ok=True)
    np.testing.assert_array_equal(returns["range"], (bars.high - bars.low) / close)
    np.testing.assert_allclose(returns["rsi"], plain_rsi(close, 14) / 100.0 - 0.5, atol=1e-12)
    line, signal = plain_macd(close)
    np.testing.assert_allclose(returns["macd"], line / close, atol=1e-12)
    np.testing.assert_allclose(returns["macd_signal"], signal / close, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 7.0, 1e9])
def test_returns_set_does_not_see_the_price_level(scale: float) -> None:
    bars = random_walk(250)
    scaled = bars_of(bars.open * scale, bars.high * scale, bars.low * scale, bars.close * scale, bars.volume)
    one, other = (column_features(each, "returns", True, True) for each in (bars, scaled))
    np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("feature_set", ["returns", "classic"])
def test_gaps_are_no_days_and_what_is_before_and_after_is_unknown(feature_set: FeatureSet) -> None:
    bars = random_walk(250)
    calendar = np.sort(np.random.default_rng(1).choice(np.arange(50, 350), 250, replace=False))
    spread = []
    for name in ("open", "high", "low", "close", "volume"):
        series = np.full(400, np.nan)
        series[calendar] = getattr(bars, name)
        spread.append(series)
    values = column_features(bars_of(*spread), feature_set, True, True)
    np.testing.assert_array_equal(values[calendar], column_features(bars, feature_set, True, True))
    assert np.isnan(np.delete(values, calendar, axis=0)).all()


def test_classic_open_is_the_close_where_there_is_none() -> None:
    bars = random_walk(40)
    bars.open[[3, 7]] = np.nan
    expected = bars.open.copy()
    expected[[3, 7]] = bars.close[[3, 7]]
    np.testing.assert_array_equal(features_of(bars, "classic")["open"], expected)


def test_a_column_without_prices_or_movement_has_no_wild_features() -> None:
    nothing = np.full(300, np.nan)
    assert np.isnan(column_features(bars_of(*[nothing] * 5), "returns", True, True)).all()
    flat = np.full(300, 3.3)
    values = features_of(bars_of(flat, flat, flat, flat, np.zeros(300)), "returns")
    for series in values.values():
        np.testing.assert_allclose(series[200:], 0.0, atol=1e-12)


DAYS = 200


@pytest.fixture
def bars() -> pd.DataFrame:
    """Prices of two symbols, and three columns that are none: numbers with holes, whole numbers, text."""
    frame = random_bars(["AAA", "BBB"], DAYS, seed=1)
    generator = np.random.default_rng(2)
    mood = generator.standard_normal(len(frame))
    mood[10:40] = np.nan
    frame["Mood"] = mood
    frame["news count"] = generator.integers(0, 9, len(frame))
    frame["sector"] = "tech"
    frame["row"] = np.arange(len(frame))
    return frame


@pytest.fixture
def prices(tmp_path: Path, bars: pd.DataFrame) -> Path:
    return write_csv(tmp_path / "prices.csv", bars)


def built(path: Path, **market: object) -> Panel:
    return build_panel(small_config(path, **market), path.parent / "cache")[0]


def values_of(panel: Panel, feature: str, column: int = 0) -> np.ndarray:
    return np.asarray(panel.features[:, column, panel.feature_names.index(feature)])


def test_columns_of_the_data_are_normalised_and_carried_as_ours(prices: Path, bars: pd.DataFrame) -> None:
    panel = built(prices, features="columns")
    assert panel.feature_names == ("Mood", "news count")
    train = panel.splits.train.stop
    raw = bars["Mood"].to_numpy()[:DAYS]
    mean, deviation = np.nanmean(raw[:train]), np.nanstd(raw[:train])
    expected = np.clip((raw - mean) / deviation, -10.0, 10.0)
    expected[10 : 10 + CARRIED_DAYS] = expected[9]
    np.testing.assert_allclose(values_of(panel, "Mood"), np.nan_to_num(expected), atol=1e-6)


def test_both_go_together_and_the_report_names_the_own_ones(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "package", ["gap", "calendar"])
    config = small_config(prices, own_features=["columns", "gap", "calendar"])
    panel, report = build_panel(config, tmp_path / "cache")
    own = ("Mood", "news count", "gap", "calendar.weekday", "calendar.month")
    assert panel.feature_names == (*feature_names("returns", True, True), *own)
    plain = built(prices)
    np.testing.assert_array_equal(panel.features[:, :, : len(plain.feature_names)], plain.features)
    assert report.own_features == own
    assert "Own features: Mood, news count, gap, calendar.weekday, calendar.month." in report.lines()
    assert report.ignored_columns == ("sector", "row")
    assert build_panel(config, tmp_path / "cache")[1] == report


def test_function_gets_the_days_with_a_price_alone(
    tmp_path: Path, bars: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "package", ["gap"])
    bars.loc[50:59, ["open", "high", "low", "close"]] = np.nan
    panel = built(write_csv(tmp_path / "p.csv", bars), features="columns", own_features=["gap"])
    own = bars[(bars["symbol"] == "AAA") & bars["close"].notna()]
    raw = np.full(DAYS, np.nan)
    raw[own.index] = np.log(own["open"] / own["close"].shift(1))
    train = panel.splits.train.stop
    scaled = (raw - np.nanmean(raw[:train])) / np.nanstd(raw[:train])
    known = ~np.isnan(raw)
    np.testing.assert_allclose(values_of(panel, "gap")[known], scaled[known], atol=1e-5)


def test_columns_of_several_files(tmp_path: Path, bars: pd.DataFrame) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for symbol, own in bars.groupby("symbol"):
        write_csv(folder / f"{symbol}.csv", own.drop(columns=["symbol", *(["Mood"] if symbol == "BBB" else [])]))
    panel = built(folder, features="columns")
    assert panel.feature_names == ("Mood", "news count")
    assert values_of(panel, "Mood", 0).any()
    assert not values_of(panel, "Mood", 1).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns=["Mood", "news count"]), "no numeric column except date"),
        (lambda frame: frame.rename(columns={"Mood": "range"}), "Several features are called 'range'"),
        (lambda frame: frame.assign(Mood=frame["Mood"].astype(object).mask(frame.index == 7, "good")), "line 9"),
        (
            lambda frame: pd.concat([frame, frame.iloc[:1].assign(Mood=5.0)]),
            "A day twice, with different prices: AAA .*Mood",
        ),
    ],
)
def test_columns_that_cannot_be_used_are_refused(
    tmp_path: Path, bars: pd.DataFrame, change: object, words: str
) -> None:
    assert callable(change)
    path = write_csv(tmp_path / "p.csv", change(bars))
    with pytest.raises(InputError, match=words):
        built(path, own_features=["columns"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return bars.close[1:]", r"returned float64 values of shape \(399,\) for the 400 days of a random walk"),
        ("return ['a'] * len(bars.close)", "return one number a day"),
        ("return {'a': 1.0}", "return one number a day"),
        ("return bars.close / undefined", "failed on the 400 days of a random walk: NameError: .* line 2"),
        ("bars.close[0] = 1.0", "read-only"),
        ("return {'a': bars.close} if len(bars.close) == 400 else {'b': bars.close}", "return the same names"),
    ],
)
def test_function_that_cannot_be_used_is_refused(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    install_features(monkeypatch, tmp_path / "package", ["wrong"], f"def wrong(bars):\n    {body}\n")
    with pytest.raises(InputError, match=words):
        built(prices, own_features=["wrong"])


def test_names_that_stand_for_nothing_are_refused(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "one", ["gap", "missing"])
    with pytest.raises(InputError, match=r"'momentum', but no installed package .* registered: gap, missing"):
        built(prices, own_features=["momentum"])
    with pytest.raises(InputError, match=r"'missing' .* cannot be imported"):
        built(prices, own_features=["missing"])
    with pytest.raises(InputError, match="which is a feature set"):
        built(prices, own_features=["returns"])
    install_features(monkeypatch, tmp_path / "two", ["gap"], module="other_features")
    with pytest.raises(InputError, match=r"several entry points .*my_features:gap, other_features:gap"):
        built(prices, own_features=["gap"])


def test_fingerprint_is_that_of_what_functions_return(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(source: str, folder: str) -> str:
        install_features(monkeypatch, tmp_path / folder, ["own"], source)
        return built(prices, own_features=["own"]).fingerprint

    one = fingerprint("def own(bars):\n    return bars.close / bars.open\n", "one")
    assert fingerprint("# Written anew.\ndef own(bars):\n    return bars.close * (1 / bars.open)\n", "two") == one
    assert fingerprint("def own(bars):\n    return bars.close / bars.open * 1.001\n", "three") != one
    assert built(prices).fingerprint not in (one, built(prices, features="columns").fingerprint)


def test_plan_without_data_knows_functions_and_refuses_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_features(monkeypatch, tmp_path, ["gap", "calendar"])
    config = small_config(own_features=["gap", "calendar"])
    assert PanelFacts.of_shape(config, 500, 3, 3).features == len(feature_names("returns", True, True)) + 3
    with pytest.raises(InputError, match="number of features is not known without the data"):
        PanelFacts.of_shape(small_config(features="columns"), 500, 3, 3)
