"""The panel: built, normalised from train days, split, cached, and built again when the cache is damaged."""

import errno
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from market_cases import assert_equal_panels, business_days, cleaned, random_bars, small_config, write_csv
from safetensors import safe_open
from safetensors.numpy import save_file

from eigen_core.common.errors import InputError
from eigen_core.common.runtime import default_cache_root
from eigen_core.config import Config
from eigen_core.market import Panel, build_panel, panel_of_prices
from eigen_core.market.features import PanelFeatures

FIELDS = ("features", "valid", "open", "high", "low", "close", "dates")


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


def test_real_long_file_with_context(tmp_path: Path) -> None:
    config = Config.model_validate({"market": {"data": "us5", "context": ["IBM"]}})
    panel, report = build_panel(config, tmp_path)
    assert panel.symbols == ("AAPL", "FB", "GOOG", "MSFT", "IBM")
    assert panel.close.shape == (3_270, 4)
    np.testing.assert_array_equal(panel.valid[:, :4], ~np.isnan(panel.close))
    assert panel.valid[:, 4].all()
    assert {"range", "volume"} <= set(panel.feature_names)
    first_of_goog = int(np.argmax(panel.valid[:, 2]))
    assert not panel.features[: first_of_goog + 1, 2, 0].any()
    assert panel.features[first_of_goog + 1 :, 2].any(axis=1).all()
    assert report.symbols[4].tradable is False


def scaled(raw: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return values scaled by mean and deviation of train days, NaN ignored, as features are normalised."""
    deviations = (raw - np.nanmean(train, axis=0)) / np.nanstd(train, axis=0)
    return np.nan_to_num(np.clip(deviations, -10.0, 10.0))


@pytest.mark.parametrize("feature_set", ["returns", "classic"])
def test_normalised_by_mean_and_deviation_of_train_days(tmp_path: Path, prices_file: Path, feature_set: str) -> None:
    config = small_config(prices_file, features=feature_set, validation_days=80)
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
        for field in FIELDS[:-1]:
            array = getattr(panel, field)
            assert str(tmp_path / "cache" / "panels") in file_mapped_at(array.ctypes.data)
            assert not array.flags.writeable
    fresh, _ = build_panel(config, tmp_path / "other")
    assert_equal_panels(built, fresh)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped last byte": lambda path: path.write_bytes((data := path.read_bytes())[:-1] + bytes([data[-1] ^ 1])),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "garbage": lambda path: path.write_bytes(b"\x93NUMPY" * 50),
    "brackets": lambda path: path.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000),
}


@pytest.mark.parametrize("writable", [True, False])
def test_what_happens_to_the_cache_does_not_reach_what_is_mapped(
    tmp_path: Path, prices_file: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    if not writable:
        monkeypatch.setattr(tempfile, "TemporaryFile", forbidden)
    panel, _ = build_panel(small_config(prices_file), tmp_path)
    fresh, _ = build_panel(small_config(prices_file), tmp_path / "other")
    path = cached_file(tmp_path)
    with path.open("r+b") as file:
        file.write(b"\x01" * path.stat().st_size)
    assert_equal_panels(panel, fresh)


def forbidden(**_: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


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
    "outdate", [lambda content: content["report"].pop("universe"), lambda content: content.update(reading=1)]
)
def test_panel_of_another_version_is_built_again(
    tmp_path: Path, prices_file: Path, caplog: pytest.LogCaptureFixture, outdate: Callable[[dict[str, Any]], object]
) -> None:
    config = small_config(prices_file)
    built, report = build_panel(config, tmp_path)
    path = cached_file(tmp_path)
    with safe_open(path, "numpy") as file:
        content, arrays = json.loads(file.metadata()["content"]), file.get_tensors()
    outdate(content)
    save_file(arrays, path, {"content": json.dumps(content)})
    path.rename(path.with_stem(f"{built.fingerprint}-{hashlib.sha256(path.read_bytes()).hexdigest()}"))
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


def test_fingerprint_covers_what_matters_and_nothing_else(tmp_path: Path, prices_file: Path) -> None:
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
        fingerprint(validation_days=9),
        fingerprint(holdout_days=7),
        fingerprint(purge_days=5),
        fingerprint(first_date="2020-03-07"),
        fingerprint(last_date="2020-09-30"),
        fingerprint(last_date="2020-10-01"),
    ]
    prices_file.write_text(prices_file.read_text().replace("1", "2", 1))
    different.append(fingerprint())
    assert len({same, *different}) == 10


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
