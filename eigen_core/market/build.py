"""From the configuration to a panel: read, clean, compute features, normalise, keep."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow

from eigen_core.config import Config, MarketConfig
from eigen_core.market.cache import PanelCache, default_cache_root
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.features import Bars, Series, column_features, feature_names
from eigen_core.market.files import Source, find_source
from eigen_core.market.normalisation import normalised
from eigen_core.market.panel import Panel, Splits
from eigen_core.market.report import DataReport
from eigen_core.market.sources import PriceRows, read_source
from eigen_core.memory import release_free_memory
from eigen_core.progress import report_progress

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of how panels are built and kept; a change of either makes all cached ones be built again."""

_PROGRESS = "panel"
_STEPS = 100


def build_panel(config: Config, cache_root: Path | None = None) -> tuple[Panel, DataReport]:
    """Build the panel that `config.market` describes, or take it from the cache.

    Args:
        config: `market` says what to read; the days that window, episode and splits need are checked.
        cache_root: folder of the cache; None: `default_cache_root()`.

    Returns:
        The panel, its arrays memory-mapped and read-only, and the report on its data. Equal prices and settings give
        equal bits and the same fingerprint: SHA-256 of the price files' names and bytes, of `market.context`,
        `market.features`, `market.validation_days` and `market.holdout_days`, and of the version of this procedure.

    Raises:
        InputError: the prices cannot be used, are too few days, or the cache cannot be written.
    """
    market = config.market
    source = find_source(market.data)
    fingerprint = _fingerprint(source, market)
    cache = PanelCache(cache_root if cache_root is not None else default_cache_root())
    found = cache.load(fingerprint, market)
    if found is None:
        panel, report = _build(config, source, fingerprint)
        cache.store(panel, report)
        # What is returned is always what was stored: mapped, not a second copy in memory.
        found = cache.load(fingerprint, market) or (panel, report)
        del panel, report
        _release_memory()
    panel, report = found
    config.require_days(panel.days)
    return panel, replace(report, source=str(source.path), ignored_files=source.ignored)


def _release_memory() -> None:
    """Return freed memory to the system: both allocators would keep it until the process ends."""
    pyarrow.default_memory_pool().release_unused()
    release_free_memory()


def panel_features(prices: CleanPrices, column: int, market: MarketConfig) -> Series:
    """Return the features of one column before normalisation, float64 `[days, features]`, NaN where unknown."""
    bars = Bars(*(grid[:, column] for grid in (prices.open, prices.high, prices.low, prices.close, prices.volume)))
    return column_features(bars, market.features, prices.has_range, prices.has_volume)


def _fingerprint(source: Source, market: MarketConfig) -> str:
    inputs = {
        "format": FORMAT,
        "files": [(file.name, file.sha256) for file in source.files],
        "context": market.context,
        "features": market.features,
        "validation_days": market.validation_days,
        "holdout_days": market.holdout_days,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _build(config: Config, source: Source, fingerprint: str) -> tuple[Panel, DataReport]:
    market = config.market
    prices, report = clean_prices(_read(source), str(source.path), market.context)
    days, columns = prices.close.shape
    logger.info("Building a panel of %d days and %d columns from %s.", days, columns, source.path)
    config.require_days(days)
    splits = Splits.of_days(days, market)
    names = feature_names(market.features, prices.has_range, prices.has_volume)
    features = normalised(
        lambda column: panel_features(prices, column, market),
        days=days,
        columns=columns,
        features=len(names),
        train=splits.train,
        progress=lambda done: report_progress(_PROGRESS, _STEPS // 2 + _STEPS // 2 * done // columns, _STEPS),
    )
    tradable = slice(0, prices.assets)
    panel = Panel(
        features=features,
        valid=~np.isnan(prices.close),
        open=prices.open[:, tradable],
        high=prices.high[:, tradable],
        low=prices.low[:, tradable],
        close=prices.close[:, tradable],
        dates=prices.days,
        symbols=prices.symbols,
        feature_names=names,
        splits=splits,
        fingerprint=fingerprint,
    )
    return panel, report


def _read(source: Source) -> Iterator[PriceRows]:
    for done, rows in enumerate(read_source(source), 1):
        yield rows
        report_progress(_PROGRESS, _STEPS // 2 * done // len(source.files), _STEPS)
