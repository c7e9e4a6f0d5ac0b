"""The panel: its days and their splits, normalisation, and the cache, which is built again when it is damaged."""

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st
from market_cases import assert_equal_panels, business_days, cleaned, random_bars, scaled, small_config, write_csv
from obstacles import replace_by
from safetensors import safe_open
from safetensors.numpy import save_file
from science_cases import small_config as training_config

from eigen_core.common.errors import InputError
from eigen_core.common.process import default_cache_root
from eigen_core.config import Config, MarketConfig
from eigen_core.market import Panel, build_panel, panel_of_prices
from eigen_core.market.features import PanelFeatures
from eigen_core.market.panel import Splits, episode_starts
from eigen_core.market.report import DataReport
from eigen_core.market.trading_days import refuse_longer_bars
from eigen_core.trading.prices import Prices


def cached_file(cache: Path) -> Path:
    (path,) = (cache / "panels").iterdir()
    return path


def file_mapped_at(address: int) -> str:
    """The file that is mapped at an address of this process, empty if it is other memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if begin <= address < end:
            return " ".join(line.split()[5:])
    return ""


@pytest.fixture
def prices_file(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "prices.csv", random_bars(["AAA", "BBB", "IDX"], 400, seed=1))


def test_bundled_prices(tmp_path: Path) -> None:
    panel, report = build_panel(Config(), tmp_path)
    # Stored runs expect the fingerprints of earlier versions.
    assert panel.fingerprint.startswith("320fcd8e5c20ea6b")
    assert panel.features.shape[:2] == panel.close.shape == (8_313, 20)
    assert (str(panel.dates[0]), str(panel.dates[-1])) == ("1990-01-02", "2022-12-28")
    assert panel.symbols[0] == "AAPL"
    assert panel.close[0, 0] == 0.264
    assert panel.valid.all()
    assert np.isnan(panel.open).all()
    assert (panel.splits.train.stop, panel.splits.validation.stop) == (8_313 - 503, 8_313 - 251)
    assert not {"range", "volume"} & set(panel.feature_names)
    assert (report.days, report.gap_days) == (8_313, 0)


@pytest.mark.parametrize("feature_set", ["returns", "classic"])
def test_normalised_by_mean_and_deviation_of_train_days(tmp_path: Path, prices_file: Path, feature_set: str) -> None:
    config = small_config(prices_file, features=feature_set, validation=80)
    panel, _ = build_panel(config, tmp_path / "cache")
    prices, _ = cleaned(prices_file)
    assert panel.splits.train == range(400 - 86)
    for column in range(3):
        raw = PanelFeatures(prices, config.market).of_column(column)
        np.testing.assert_allclose(panel.features[:, column], scaled(raw, raw[: 400 - 86]), atol=1e-5)


def test_column_with_few_train_days_takes_the_scale_of_all(tmp_path: Path) -> None:
    bars = random_bars(["AAA", "BBB", "NEW"], 400, seed=2)
    late = (bars["symbol"] == "NEW") & (bars["date"] < bars["date"].iloc[300])
    path = write_csv(tmp_path / "p.csv", bars[~late])
    config = small_config(path)
    panel, _ = build_panel(config, tmp_path / "cache")
    features = PanelFeatures(cleaned(path)[0], config.market)
    raw = np.stack([features.of_column(column) for column in range(3)], axis=1)
    for feature in ("log_return_60", "mean_distance_60", "volume"):
        index = panel.feature_names.index(feature)
        train = raw[: panel.splits.train.stop, :, index]
        assert 0 < (~np.isnan(train[:, 2])).sum() < 60
        np.testing.assert_allclose(panel.features[:, 2, index], scaled(raw[:, 2, index], train.ravel()), atol=1e-5)


def test_cache_gives_the_same_panel_mapped_and_read_only(tmp_path: Path, prices_file: Path) -> None:
    config = small_config(prices_file, context=["IDX"])
    built, report = build_panel(config, tmp_path / "cache")
    written = cached_file(tmp_path / "cache").stat().st_mtime_ns
    loaded, loaded_report = build_panel(config, tmp_path / "cache")
    assert_equal_panels(built, loaded)
    assert report == loaded_report
    assert cached_file(tmp_path / "cache").stat().st_mtime_ns == written
    for panel in (built, loaded):
        for field in ("features", "valid", "open", "high", "low", "close"):
            array = getattr(panel, field)
            assert str(tmp_path / "cache" / "panels") in file_mapped_at(array.ctypes.data)
            assert not array.flags.writeable
    fresh, _ = build_panel(config, tmp_path / "other")
    assert_equal_panels(built, fresh)


def sealed(path: Path, metadata: dict[str, str] | None) -> None:
    """Replace the metadata of a cached panel, and name the file by its new SHA-256."""
    with safe_open(path, "numpy") as file:
        arrays = file.get_tensors()
    path.unlink()
    save_file(arrays, path, metadata)
    path.rename(path.with_stem(f"{path.stem.partition('-')[0]}-{hashlib.sha256(path.read_bytes()).hexdigest()}"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped last byte": lambda path: path.write_bytes((data := path.read_bytes())[:-1] + bytes([data[-1] ^ 1])),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "garbage": lambda path: path.write_bytes(b"\x93NUMPY" * 50),
    "larger than memory": lambda path: os.truncate(path, 1 << 42),
    "FIFO": lambda path: replace_by(path, "FIFO"),
    "device": lambda path: replace_by(path, "link to a device without end"),
    "no metadata": lambda path: sealed(path, None),
    "brackets": lambda path: path.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000),
}


def test_a_change_of_the_cached_file_does_not_reach_a_mapped_panel(tmp_path: Path, prices_file: Path) -> None:
    panel, _ = build_panel(small_config(prices_file), tmp_path)
    fresh, _ = build_panel(small_config(prices_file), tmp_path / "other")
    path = cached_file(tmp_path)
    with path.open("r+b") as file:
        file.write(b"\x01" * path.stat().st_size)
    assert_equal_panels(panel, fresh)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_noticed_and_built_again(
    tmp_path: Path, prices_file: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    config = small_config(prices_file)
    cache = tmp_path / "cache"
    _, report = build_panel(config, cache)
    path = cached_file(cache)
    DAMAGE[damage](path)
    with caplog.at_level(logging.WARNING):
        again, report_again = build_panel(config, cache)
    assert "is damaged" in caplog.text
    assert_equal_panels(again, build_panel(config, tmp_path / "other")[0])
    assert report_again == report
    caplog.clear()
    build_panel(config, cache)
    assert not caplog.records
    assert cached_file(cache) == path


@pytest.mark.parametrize(
    "outdate",
    [
        lambda content: content["report"].pop("universe"),
        lambda content: content.update(reading=1),
        lambda content: content.pop("symbols"),
        lambda content: content.update(feature_names=[1]),
        lambda content: content["symbols"].pop(),
    ],
)
def test_panel_of_another_version_is_built_again(
    tmp_path: Path, prices_file: Path, caplog: pytest.LogCaptureFixture, outdate: Callable[[dict[str, Any]], object]
) -> None:
    config = small_config(prices_file)
    built, report = build_panel(config, tmp_path)
    path = cached_file(tmp_path)
    with safe_open(path, "numpy") as file:
        content = json.loads(file.metadata()["content"])
    outdate(content)
    sealed(path, {"content": json.dumps(content)})
    again, report_again = build_panel(config, tmp_path)
    assert_equal_panels(built, again)
    assert report_again == report
    assert "rebuilding it" in caplog.text


def test_file_of_another_panel_is_not_believed(tmp_path: Path, prices_file: Path) -> None:
    cache = tmp_path / "cache"
    one, _ = build_panel(small_config(prices_file), cache)
    cached_file(cache).unlink()
    other, _ = build_panel(small_config(prices_file, features="classic"), cache)
    path = cached_file(cache)
    path.rename(path.with_name(path.name.replace(other.fingerprint, one.fingerprint)))
    again, _ = build_panel(small_config(prices_file), cache)
    assert "log_return_1" in again.feature_names


def test_fingerprint_depends_on_prices_and_settings_of_the_panel_alone(tmp_path: Path, prices_file: Path) -> None:
    def fingerprint(path: Path = prices_file, **market: object) -> str:
        return build_panel(small_config(path, **market), tmp_path / "cache")[0].fingerprint

    same = fingerprint()
    assert fingerprint(window=20) == same
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copy(prices_file, tmp_path / "elsewhere"))
    assert fingerprint(copy) == same
    assert build_panel(small_config(copy), tmp_path / "cache")[1].source == str(copy)
    different = [
        fingerprint(features="classic"),
        fingerprint(context=["IDX"]),
        fingerprint(validation=9),
        fingerprint(holdout=7),
        fingerprint(purge=5),
        fingerprint(first_date="2020-03-07"),
        fingerprint(last_date="2020-09-30"),
        fingerprint(last_date="2020-10-01"),
    ]
    prices_file.write_text(prices_file.read_text().replace("1", "2", 1))
    different.append(fingerprint())
    assert len({same, *different}) == 10


def test_the_hash_of_the_content_depends_on_prices_levels_and_ranges(tmp_path: Path, prices_file: Path) -> None:
    def content(bars: pd.DataFrame, **market: object) -> str:
        path = write_csv(tmp_path / f"{len(list(tmp_path.iterdir()))}.csv", bars)
        return build_panel(small_config(path, context=["IDX"], **market), tmp_path / "cache")[0].origin["content"]

    bars = pd.read_csv(prices_file)
    levels = bars.assign(close=bars["close"].where(bars.index < 1_100, bars["close"] + 0.5))
    closes = bars.assign(open=bars["close"], high=bars["close"], low=bars["close"])
    hashes = [
        *(content(table, levels=levels_) for table in (bars, levels) for levels_ in ([], ["IDX"])),
        content(closes),
        # The same prices, but no range to observe.
        content(closes.drop(columns=["high", "low"])),
        content(bars.assign(high=bars["high"] + 0.5)),
        content(bars.assign(mood=1.0), own_features=["columns"]),
        content(bars.assign(mood=2.0), own_features=["columns"]),
    ]
    assert len(set(hashes)) == len(hashes)
    assert content(bars.sample(frac=1.0, random_state=1)) == hashes[0]


def test_files_of_a_folder_count_in_the_fingerprint(tmp_path: Path) -> None:
    for symbol, own in random_bars(["AAA", "BBB"], 60, seed=5).groupby("symbol"):
        write_csv(tmp_path / f"{symbol}.csv", own.drop(columns="symbol"))
    one, _ = build_panel(small_config(tmp_path), tmp_path / "cache")
    (tmp_path / "BBB.csv").rename(tmp_path / "CCC.csv")
    other, _ = build_panel(small_config(tmp_path), tmp_path / "cache")
    assert one.fingerprint != other.fingerprint
    assert other.symbols == ("AAA", "CCC")


def test_cached_panel_is_still_checked_against_the_configuration(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["AAA"], 30, seed=6))
    build_panel(small_config(path), tmp_path / "cache")
    with pytest.raises(InputError, match="the panel has 30"):
        build_panel(small_config(path, window=12), tmp_path / "cache")


def test_cache_folder_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prices_file: Path) -> None:
    monkeypatch.delenv("EIGEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_root() == tmp_path / ".cache" / "eigen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_root() == tmp_path / "xdg" / "eigen"
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path / "own"))
    panel, _ = build_panel(small_config(prices_file))
    assert panel.fingerprint in cached_file(tmp_path / "own").name


def _build(path: str, cache: str) -> str:
    return build_panel(small_config(path), Path(cache))[0].fingerprint


@pytest.mark.thorough
def test_processes_may_build_the_same_panel_at_once(tmp_path: Path, prices_file: Path) -> None:
    cache = tmp_path / "cache"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        fingerprints = pool.starmap(_build, [(str(prices_file), str(cache))] * 6, chunksize=1)
    assert len(set(fingerprints)) == 1
    assert fingerprints[0] in cached_file(cache).name


def test_panel_of_prices() -> None:
    generator = np.random.default_rng(1)
    close = 10.0 + generator.random((40, 2))
    close[5, 1] = np.nan
    features = generator.standard_normal((40, 3, 4)).astype(np.float32)
    dates = business_days(40).to_numpy()
    market = small_config().market

    def panel(prices: np.ndarray = close, days: np.ndarray = dates) -> Panel:
        return panel_of_prices(features[: len(days)], prices, prices, prices, prices, days, "ABC", "wxyz", market)

    made = panel()
    assert (made.days, made.columns, made.assets) == (40, 3, 2)
    assert not made.valid[5, 1]
    assert made.valid.sum() == 119
    assert made.splits.holdout == range(34, 40)
    assert panel().fingerprint == made.fingerprint
    assert panel(prices=close + 1e-9).fingerprint != made.fingerprint
    with pytest.raises(ValueError, match="must increase"):
        panel(days=dates[::-1])
    with pytest.raises(ValueError, match="do not fit"):
        panel(prices=close[:30])
    with pytest.raises(InputError, match="none to train on"):
        panel(close[:14], dates[:14])
    assert str(made.dates[0]) == "2020-01-01"


DAILY = np.datetime64("2000-01-03") + np.arange(1_000)
FIRST, LAST = "2020-03-07", "2020-09-30"


@st.composite
def split_days(draw: st.DrawFn) -> tuple[int, Config]:
    """A configuration whose purge is at least a window and a trade, and days that suffice for it."""
    window, holding = draw(st.integers(1, 40)), draw(st.integers(1, 10))
    trading = {
        "trading_bars": draw(st.integers(1, 20)),
        "settlement_bars": holding + draw(st.integers(0, 5)),
        "holding_bars": holding,
    }
    episode = trading["trading_bars"] + trading["settlement_bars"]
    market = {
        "window": window,
        "validation": episode + draw(st.integers(0, 30)),
        "holdout": draw(st.sampled_from([0, episode, episode + 17])),
        "purge": window + holding + draw(st.integers(0, 9)),
    }
    config = Config.model_validate({"market": market, "trading": trading, "network": {"linear_scales": [1]}})
    purged = market["purge"] * (2 if market["holdout"] else 1)
    needed = window + episode + market["validation"] + market["holdout"] + purged
    return needed + draw(st.integers(0, 200)), config


@given(split_days())
def test_splits_never_overlap_and_keep_the_purge(case: tuple[int, Config]) -> None:
    days, config = case
    market = config.market
    splits = Splits.of(DAILY[:days], market)
    splits.require(config)
    assert splits.train.start == 0
    assert (len(splits.validation), len(splits.holdout)) == (market.validation, market.holdout)
    assert splits.validation.start - splits.train.stop == market.purge
    if market.holdout:
        assert splits.holdout.start - splits.validation.stop == market.purge
        assert splits.holdout.stop == days
    else:
        assert splits.validation.stop == days
    # No day is traded in one split and observed or traded in the next.
    window, episode = market.window, config.trading.episode_bars
    used = []
    for split in (splits.train, splits.validation, splits.holdout):
        if split:
            starts = episode_starts(split, window, episode)
            observed, last = starts[0] - window + 1, starts[-1] + episode - 1
            assert split.start <= starts[0]
            assert last < split.stop
            used.append((observed, last))
    for (_, last), (observed, _) in pairwise(used):
        assert last + config.trading.holding_bars < observed


def test_without_a_purge_splits_are_as_they_were() -> None:
    assert Splits.of(DAILY[:100], small_config().market) == Splits(range(86), range(86, 94), range(94, 100))
    Splits.of(DAILY[: 5 + 5 + 8 + 6], small_config().market).require(small_config())
    with pytest.raises(InputError, match="the panel has 23"):
        Splits.of(DAILY[: 5 + 5 + 8 + 6 - 1], small_config().market).require(small_config())


@given(
    gaps=st.lists(st.integers(1, 40), min_size=60, max_size=200),
    hours=st.tuples(*[st.integers(1, 400)] * 3),
    holdout=st.booleans(),
)
def test_spans_of_time_have_the_bars_that_end_within_them(
    gaps: list[int], hours: tuple[int, int, int], holdout: bool
) -> None:
    """Equal to a loop that takes bars back from the last, for bars of an hour with gaps."""
    dates = np.datetime64("2024-01-01T00:00:00") + np.cumsum(gaps) * np.timedelta64(1, "h")
    spans = dict(zip(("holdout", "purge", "validation"), hours, strict=True)) | ({} if holdout else {"holdout": 0})
    names = {name: f"{hour}h" if hour else 0 for name, hour in spans.items()}
    left: list[np.datetime64] = list(dates)
    taken: dict[str, list[np.datetime64]] = {}
    for name in ("holdout", "purge", "validation", "purge") if holdout else ("validation", "purge"):
        last, taken[name] = left[-1:], []
        while left and last[0] - left[-1] < np.timedelta64(spans[name], "h"):
            taken[name].insert(0, left.pop())
    splits = Splits.of(dates, MarketConfig.model_validate(names))
    assert list(dates[splits.validation.start : splits.validation.stop]) == taken["validation"]
    assert list(dates[splits.holdout.start : splits.holdout.stop]) == taken.get("holdout", [])
    assert list(dates[: len(splits.train)]) == left


def panel_of(path: Path, folder: Path, **market: Any) -> Panel:
    return build_panel(small_config(path, **{"suspicious": "keep", **market}), folder / "cache")[0]


@pytest.mark.parametrize(("first", "last"), [(FIRST, LAST), (None, LAST), (FIRST, None)])
def test_a_panel_between_dates_is_that_of_a_file_that_holds_no_others(
    tmp_path: Path, first: str | None, last: str | None
) -> None:
    bars = random_bars(["AAA", "BBB"], 300, seed=11)
    late = random_bars(["NEW"], 300, seed=12)
    bars = pd.concat([bars, late[late["date"] > LAST]], ignore_index=True)
    bars["sentiment"] = np.sin(np.arange(len(bars)))
    kept = bars[(bars["date"] >= (first or "1900")) & (bars["date"] <= (last or "2100"))]
    market = {"own_features": ["columns"], "first_date": first, "last_date": last}
    cut = panel_of(write_csv(tmp_path / "all.csv", bars), tmp_path, **market)
    expected = panel_of(write_csv(tmp_path / "kept.csv", kept), tmp_path, own_features=["columns"])
    assert "sentiment" in cut.feature_names
    assert_equal_panels(cut, expected)
    assert ("NEW" in cut.symbols) == (last is None)


def test_dates_without_any_price_are_refused_with_those_there_are(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "prices.csv", random_bars(["AAA"], 60, seed=1))
    with pytest.raises(InputError, match="no day from its first to 2019-05-01; its days are 2020-01-01 to 2020-03-24"):
        panel_of(path, tmp_path, last_date="2019-05-01")
    with pytest.raises(InputError, match="4 purged before each; the panel has 60"):
        panel_of(path, tmp_path, purge=4, window=50)


DAYS = pd.bdate_range("2015-01-01", "2019-12-31")


def prices_spaced(*spacings: pd.DatetimeIndex) -> pd.DataFrame:
    parts = []
    for number, days in enumerate(spacings):
        bars = random_bars([f"S{number}"], len(days), number)
        parts.append(bars.assign(date=days))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("frequency", "words"),
    [("W-FRI", "7 days apart, like weekly bars"), ("BME", "monthly"), ("BQE", "quarterly"), ("3D", "3-day bars")],
)
def test_longer_bars_are_refused(tmp_path: Path, frequency: str, words: str) -> None:
    days = pd.date_range("2010-01-01", "2019-12-31", freq=frequency)
    # As on holidays.
    moved = days.where(np.arange(len(days)) % 9 != 0, days - pd.Timedelta(days=1)).delete([30, 31])
    for dates in (days, moved) if frequency == "W-FRI" else (days,):
        path = write_csv(tmp_path / "p.csv", prices_spaced(dates, dates[5:], dates))
        with pytest.raises(InputError, match=f"3 of 3 symbols, such as 'S0'.*{words}.*give daily bars"):
            cleaned(path)


def test_weekly_symbols_beside_daily_ones_are_read(tmp_path: Path) -> None:
    weekly = DAYS[DAYS.day_of_week == 2]
    path = write_csv(tmp_path / "p.csv", prices_spaced(DAYS, DAYS, weekly, weekly))
    assert cleaned(path)[0].symbols == ("S0", "S1", "S2", "S3")
    with pytest.raises(InputError, match="2 of 3 symbols, such as 'S1'"):
        cleaned(write_csv(path, prices_spaced(DAYS, weekly, weekly)))
    assert cleaned(path, context=("S1", "S2"))[0].assets == 1


@given(seed=st.integers(0, 10_000), kept=st.floats(0.02, 1.0), always_open=st.booleans())
def test_daily_prices_with_gaps_are_not_refused(seed: int, kept: float, always_open: bool) -> None:
    days = (pd.date_range("2015-01-01", periods=1_500) if always_open else DAYS).to_numpy().astype("datetime64[D]")
    known = np.random.default_rng(seed).random((len(days), 3)) < kept
    refuse_longer_bars(days, known, ("A", "B", "C"), "prices")


def panel_suspended(folder: Path, *tables: pd.DataFrame) -> tuple[Panel, DataReport]:
    path = write_csv(folder / "prices.csv", pd.concat(tables))
    return build_panel(training_config(market={"data": str(path)}), folder / "cache")


def test_nothing_is_filled_on_a_day_with_a_volume_of_zero(tmp_path: Path) -> None:
    """A vendor repeats the last close, with a volume of zero and other prices of zero, while trading is suspended."""
    suspended = random_bars(["AAA"], 200, seed=1)
    days = [1, 60, 61, 62, 100]
    suspended.loc[days, ["open", "high", "low", "volume"]] = 0.0
    suspended["close"] = suspended["close"].mask(suspended["volume"] == 0.0).ffill().fillna(50.0)
    panel, report = panel_suspended(tmp_path, suspended, random_bars(["BBB"], 200, seed=2))
    config = training_config()
    fills = Prices.of_panel(panel, torch.device("cpu")).fills(config.trading)
    for day in days:
        assert fills.entry[day, 0].isnan()
        assert fills.entry[max(day - 1, 0), 0].isnan()
        assert not fills.entry[day, 1].isnan()
    # Decided on day 56, with the purchase of day 57; due on day 61.
    assert (56 + int(fills.exit_offset[56, 0]), float(fills.exit[56, 0])) == (63, panel.open[63, 0])
    assert panel.valid[:, 0].all()
    assert report.suspended_days == len(days)
    assert any("5 days of prices with a volume of zero" in line for line in report.lines())


def test_a_symbol_without_any_volume_is_traded(tmp_path: Path) -> None:
    """As a currency among stocks: its volume is zero on all days."""
    panel, report = panel_suspended(
        tmp_path, random_bars(["EURUSD"], 200, seed=1).assign(volume=0), random_bars(["BBB"], 200, seed=2)
    )
    assert not np.isnan(panel.close).any()
    assert report.suspended_days == 0
