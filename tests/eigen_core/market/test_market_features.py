"""Features equal plain definitions; columns and registered functions are features like all others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feature_cases import install_features
from market_cases import bars_of, random_bars, scaled, small_config, write_csv
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.market import Panel, build_panel
from eigen_core.market.audit import audit_market
from eigen_core.market.features import FORWARD_FILL_DAYS, Bars, FeatureSet, column_features, feature_names
from eigen_core.task.panel import PanelDimensions

Series = NDArray[np.float64]


def features_of(bars: Bars, feature_set: FeatureSet) -> dict[str, Series]:
    names = feature_names(feature_set, True, True)
    return dict(zip(names, column_features(bars, feature_set, True, True).T, strict=True))


def smooth(values: "pd.Series[float]", span: int) -> "pd.Series[float]":
    """Return an exponential mean, which forgets its first value within some hundred days."""
    return values.ewm(span=span, adjust=False).mean()


def indicators(close: "pd.Series[float]") -> dict[str, "pd.Series[float]"]:
    """Return the indicators by their definitions."""
    rise, fall = (smooth((sign * close.diff()).clip(lower=0.0), 2 * 14 - 1) for sign in (1.0, -1.0))
    macd = smooth(close, 12) - smooth(close, 26)
    thrice = smooth(smooth(smooth(close, 30), 30), 30)
    return {
        "rsi": 100.0 * rise / (rise + fall),
        "macd": macd,
        "macd_signal": smooth(macd, 9),
        "trix": 100.0 * thrice.pct_change(),
    }


def test_classic_set_equals_plain_definitions() -> None:
    frame = random_bars(["AAA"], 1_000, seed=1)
    frame.loc[[3, 7], "open"] = np.nan
    classic = features_of(bars_of(frame), "classic")
    assert list(classic) == ["open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "mean_distance_20"]
    # Without an open, the close.
    np.testing.assert_array_equal(classic["open"], frame["open"].fillna(frame["close"]))
    for name in ("close", "high", "low"):
        np.testing.assert_array_equal(classic[name], frame[name])
    for name, expected in indicators(frame["close"]).items():
        np.testing.assert_allclose(classic[name][600:], expected[600:], rtol=1e-8, atol=1e-10)
    unknown = {name: int(np.isnan(classic[name]).sum()) for name in ("rsi", "macd", "macd_signal", "trix")}
    assert unknown == {"rsi": 14, "macd": 33, "macd_signal": 33, "trix": 88}
    mean = frame["close"].rolling(20).mean()
    np.testing.assert_allclose(classic["mean_distance_20"], frame["close"] / mean - 1.0, atol=1e-9)


def test_returns_set_equals_plain_definitions() -> None:
    frame = random_bars(["AAA"], 1_000, seed=1)
    returns = features_of(bars_of(frame), "returns")
    close, amount = frame["close"], np.log1p(frame["volume"])
    of_day = np.log(close).diff()
    plain = {
        **{f"log_return_{days}": np.log(close / close.shift(days)) for days in (1, 5, 20, 60, 120)},
        **{f"volatility_{days}": of_day.rolling(days).std(ddof=0) for days in (20, 60)},
        **{f"mean_distance_{days}": close / close.rolling(days).mean() - 1.0 for days in (20, 60, 200)},
        "volume": (amount - amount.rolling(60).mean()) / amount.rolling(60).std(ddof=0),
        "range": (frame["high"] - frame["low"]) / close,
    }
    for name, expected in plain.items():
        np.testing.assert_allclose(returns[name], expected, rtol=1e-8, atol=1e-10)
    found = indicators(close)
    np.testing.assert_allclose(returns["rsi"][600:], found["rsi"][600:] / 100.0 - 0.5, atol=1e-10)
    for name in ("macd", "macd_signal"):
        np.testing.assert_allclose(returns[name][600:], (found[name] / close)[600:], atol=1e-10)
    assert returns.keys() == {*plain, "rsi", "macd", "macd_signal"}


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 7.0, 1e9])
def test_returns_set_does_not_see_the_price_level(scale: float) -> None:
    frame = random_bars(["AAA"], 250, seed=1)
    scaled = frame.assign(**{name: frame[name] * scale for name in ("open", "high", "low", "close")})
    one, other = (column_features(bars_of(each), "returns", True, True) for each in (frame, scaled))
    np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("feature_set", ["returns", "classic"])
def test_gaps_do_not_count_as_days_and_have_no_features(feature_set: FeatureSet) -> None:
    frame = random_bars(["AAA"], 250, seed=1)
    calendar = np.sort(np.random.default_rng(1).choice(np.arange(50, 350), 250, replace=False))
    values = column_features(bars_of(frame.set_index(calendar).reindex(range(400))), feature_set, True, True)
    np.testing.assert_array_equal(values[calendar], column_features(bars_of(frame), feature_set, True, True))
    assert np.isnan(np.delete(values, calendar, axis=0)).all()


def test_a_column_without_prices_or_movement_has_no_wild_features() -> None:
    frame = random_bars(["AAA"], 300, seed=1)
    prices = ["open", "high", "low", "close"]
    nothing, flat = (frame.assign(**dict.fromkeys(prices, price), volume=0.0) for price in (np.nan, 3.3))
    assert np.isnan(column_features(bars_of(nothing), "returns", True, True)).all()
    for series in features_of(bars_of(flat), "returns").values():
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
    carried = pd.Series(raw).ffill(limit=FORWARD_FILL_DAYS).to_numpy()
    np.testing.assert_allclose(values_of(panel, "Mood"), scaled(carried, raw[:train]), atol=1e-6)


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


def test_columns_named_like_built_in_features_or_functions_are_used_beside_them(
    prices: Path, bars: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "package", ["gap"])
    path = write_csv(tmp_path / "p.csv", bars.rename(columns={"Mood": "macd", "news count": "gap"}))
    panel, report = build_panel(small_config(path, own_features=["columns", "gap"]), tmp_path / "cache")
    assert report.own_features == ("columns.macd", "columns.gap", "gap")
    plain = built(prices, own_features=["columns", "gap"])
    np.testing.assert_array_equal(panel.features, plain.features)


def test_a_level_below_zero_is_observed_as_it_is(tmp_path: Path, bars: pd.DataFrame) -> None:
    days = bars.loc[bars["symbol"] == "AAA", "date"].reset_index(drop=True)
    values = np.round(np.sin(np.arange(len(days)) / 9.0), 2)
    spread = pd.DataFrame({"date": days, "symbol": "SPREAD", "close": values})
    path = write_csv(tmp_path / "p.csv", pd.concat([bars.drop(columns=["Mood", "news count"]), spread]))
    with pytest.raises(InputError, match=r"no price but a level, add `--set 'market.levels=\[SPREAD\]'`"):
        built(path, context=["SPREAD"])
    config = small_config(path, context=["SPREAD"], levels=["SPREAD"])
    panel, report = build_panel(config, tmp_path / "cache")
    assert "Levels, observed as the feature level: SPREAD." in report.lines()
    assert panel.feature_names[-1] == "level"
    assert panel.valid[:, 2].all()
    expected = scaled(values, values[: panel.splits.train.stop])
    np.testing.assert_allclose(values_of(panel, "level", 2), expected, atol=1e-6)
    assert not panel.features[:, 2, :-1].any()
    without = built(write_csv(tmp_path / "q.csv", bars.drop(columns=["Mood", "news count"])))
    np.testing.assert_array_equal(panel.features[:, :2, :-1], without.features)
    assert audit_market(config, 2).is_clean
    with pytest.raises(ValueError, match=r"market\.levels names 'AAA', which market\.context lacks"):
        small_config(path, levels=["AAA"])


def test_function_gets_the_days_with_a_price_alone(
    tmp_path: Path, bars: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "package", ["gap"])
    bars.loc[50:59, ["open", "high", "low", "close"]] = np.nan
    panel = built(write_csv(tmp_path / "p.csv", bars), features="columns", own_features=["gap"])
    own = bars[(bars["symbol"] == "AAA") & bars["close"].notna()]
    raw = np.full(DAYS, np.nan)
    raw[own.index] = np.log(own["open"] / own["close"].shift(1))
    known, expected = ~np.isnan(raw), scaled(raw, raw[: panel.splits.train.stop])
    np.testing.assert_allclose(values_of(panel, "gap")[known], expected[known], atol=1e-5)


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
        (
            lambda frame: frame.rename(columns={"Mood": "range", "news count": "columns.range"}),
            "Several features are called 'columns.range'",
        ),
        (lambda frame: frame.assign(Mood=frame["Mood"].astype(object).mask(frame.index == 7, "good")), "line 9"),
        (
            lambda frame: pd.concat([frame, frame.iloc[:1].assign(Mood=5.0)]),
            "A day twice, with different prices: AAA .*Mood",
        ),
    ],
)
def test_columns_that_cannot_be_used_are_refused(
    tmp_path: Path, bars: pd.DataFrame, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    path = write_csv(tmp_path / "p.csv", change(bars))
    with pytest.raises(InputError, match=words):
        built(path, own_features=["columns"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return bars.close[1:]", r"returned float64 values of shape \(399,\) for the 400 days of a random walk"),
        ("return ['a'] * len(bars.close)", "return an array with one number a day"),
        ("return {'a': 1.0}", "return an array with one number a day"),
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
    assert PanelDimensions.of_shape(config, 500, 3, 3).features == len(feature_names("returns", True, True)) + 3
    with pytest.raises(InputError, match="number of features is not known without the data"):
        PanelDimensions.of_shape(small_config(features="columns"), 500, 3, 3)


def test_the_clock_tells_the_time_of_day_and_of_the_week_at_which_a_bar_ends(tmp_path: Path) -> None:
    opened = pd.date_range("2024-01-01", periods=700, freq="1h", tz="UTC")
    generator = np.random.default_rng(2)
    close = 50.0 * np.exp(np.cumsum(generator.normal(0.0, 0.01, len(opened))))
    table = pd.DataFrame({"date": opened, "symbol": "A", "open": close, "high": close, "low": close, "close": close})
    write_csv(tmp_path / "p.csv", table.assign(volume=1.0))
    config = small_config(tmp_path / "p.csv", own_features=["clock"], bar_stamp="open")
    panel = build_panel(config, tmp_path / "cache")[0]
    ends = opened + pd.Timedelta("1h")
    of_day, of_week = (ends.hour / 24.0).to_numpy(), ((ends.dayofweek * 24 + ends.hour) / 168.0).to_numpy()
    for name, turns in (("day", of_day), ("week", of_week)):
        for shape, function in (("sine", np.sin), ("cosine", np.cos)):
            found = panel.features[:, 0, panel.feature_names.index(f"clock.{name}_{shape}")]
            expected = function(2.0 * np.pi * turns)
            trained = expected[: panel.splits.train.stop]
            np.testing.assert_allclose(found, (expected - trained.mean()) / trained.std(), atol=1e-6)
