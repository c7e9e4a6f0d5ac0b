"""Small configurations and price files for the tests of the market."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.market import Bars
from eigen_core.market.build import read_prices, read_rows
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.panel import Panel
from eigen_core.market.reading import find_source
from eigen_core.market.report import DataReport


def small_config(data: Path | str | None = None, **market: object) -> Config:
    """Return a configuration that 24 days suffice for: window 5, episodes 3 + 2, validation 8, holdout 6."""
    settings: dict[str, Any] = {"window": 5, "validation": 8, "holdout": 6, **market}
    return Config.model_validate(
        {
            "market": settings | {"data": None if data is None else str(data)},
            "trading": {"trading_bars": 3, "settlement_bars": 2, "holding_bars": 2},
            "network": {"scales": [1, 5], "linear_scales": [1, 5]},
        }
    )


def business_days(days: int, start: str = "2020-01-01") -> pd.DatetimeIndex:
    return pd.bdate_range(start, periods=days)


def random_bars(symbols: list[str], days: int, seed: int) -> pd.DataFrame:
    """Return long prices (date, symbol, open, high, low, close, volume) of random walks, ordered by symbol and date."""
    generator = np.random.default_rng(seed)
    parts = []
    for symbol in symbols:
        close = 50.0 * np.exp(np.cumsum(0.02 * generator.standard_normal(days)))
        opened = close * np.exp(0.01 * generator.standard_normal(days))
        high = np.maximum(opened, close) * np.exp(0.01 * generator.random(days))
        low = np.minimum(opened, close) * np.exp(-0.01 * generator.random(days))
        bars = {"open": opened, "high": high, "low": low, "close": close, "volume": generator.integers(1, 1_000, days)}
        parts.append(pd.DataFrame({"date": business_days(days), "symbol": symbol, **bars}))
    return pd.concat(parts, ignore_index=True)


def bars_of(frame: pd.DataFrame) -> Bars:
    """Return the bars of one symbol from rows of `random_bars`."""
    names = ("open", "high", "low", "close", "volume")
    prices = {name: frame[name].to_numpy(dtype=np.float64) for name in names}
    return Bars(**prices, dates=frame["date"].to_numpy().astype("datetime64[D]"))


def scaled(raw: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return values scaled by mean and deviation of train days, NaN ignored, as features are normalised."""
    deviations = (raw - np.nanmean(train, axis=0)) / np.nanstd(train, axis=0)
    return np.asarray(np.nan_to_num(np.clip(deviations, -10.0, 10.0)))


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def write_csv(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def cleaned(path: Path | str, **market: object) -> tuple[CleanPrices, DataReport]:
    config = Config.model_validate({"market": {"data": str(path), **market}})
    rows = read_rows(find_source(config.market), config)
    return clean_prices(rows, str(path), config.market.context)


def read(path: Path, *given: str) -> CleanPrices:
    return read_prices(load_config(None, [f"market.data={path}", *given]))


def assert_equal_panels(one: Panel, other: Panel) -> None:
    for name in ("features", "valid", "open", "high", "low", "close", "dates"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    assert (one.symbols, one.feature_names, one.splits) == (other.symbols, other.feature_names, other.splits)


def refused(path: Path, words: str, **market: object) -> None:
    with pytest.raises(InputError, match=words) as caught:
        cleaned(path, **market)
    assert "\n" not in str(caught.value)
