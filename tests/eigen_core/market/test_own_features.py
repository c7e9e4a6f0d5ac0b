"""Columns of the data and registered functions are features like all others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feature_cases import install_features
from market_cases import random_bars, small_config, write_csv, write_text

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.market import Panel, PanelFacts, build_panel
from eigen_core.market.features import CARRIED_DAYS, feature_names

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
        (lambda frame: frame.drop(columns=["Mood", "news count"]), "no numeric column beside date"),
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


def test_other_values_in_another_file_are_refused(tmp_path: Path, bars: pd.DataFrame) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_csv(folder / "one.csv", bars)
    write_csv(folder / "two.csv", bars.assign(Mood=bars["Mood"] + 1.0))
    with pytest.raises(InputError, match=r"A day twice, .*Mood"):
        built(folder, own_features=["columns"])


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


def test_existing_panels_keep_their_fingerprint(tmp_path: Path) -> None:
    panel, _ = build_panel(Config(), tmp_path)
    assert panel.fingerprint.startswith("320fcd8e5c20ea6b")


def test_settings_on_the_command_line_and_in_a_store() -> None:
    config = load_config(None, ["market.features=columns", "market.own_features=gap,calendar"])
    assert config.market.own_features == ("gap", "calendar")
    assert config_from_stored(stored_values(config)) == config
    before = stored_values(Config())
    section = before["market"]
    assert isinstance(section, dict)
    del section["own_features"]
    assert config_from_stored(before) == Config()


def test_plan_without_data_knows_functions_and_refuses_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_features(monkeypatch, tmp_path, ["gap", "calendar"])
    config = small_config(own_features=["gap", "calendar"])
    assert PanelFacts.of_shape(config, 500, 3, 3).features == len(feature_names("returns", True, True)) + 3
    with pytest.raises(InputError, match="number of features is not known without the data"):
        PanelFacts.of_shape(small_config(features="columns"), 500, 3, 3)


def test_wide_files_have_no_columns_of_their_own(tmp_path: Path) -> None:
    path = write_text(tmp_path / "w.csv", "Date,A,B\n" + "\n".join(f"2020-01-{day:02},1,2" for day in range(1, 31)))
    with pytest.raises(InputError, match="no numeric column"):
        built(path, features="columns", layout="wide")
