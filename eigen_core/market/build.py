"""From the configuration to a panel: read, clean, compute features, normalise, keep."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow

from eigen_core.cache_root import default_cache_root
from eigen_core.config import Config, MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.cache import PanelCache
from eigen_core.market.cleaning import CleanPrices, Grid, clean_prices
from eigen_core.market.days import PriceRows, rows_of_days
from eigen_core.market.files import Source, find_source
from eigen_core.market.look_ahead import look_ahead_of_functions
from eigen_core.market.normalisation import normalised
from eigen_core.market.own_features import feature_functions, uses_columns
from eigen_core.market.panel import Panel, Splits
from eigen_core.market.panel_features import PanelFeatures
from eigen_core.market.reading import read_source
from eigen_core.market.reading_need import require_memory_to_read
from eigen_core.market.report import DataReport
from eigen_core.market.suspicious import absurd, sentences
from eigen_core.memory import release_free_memory
from eigen_core.progress import report_progress

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of how panels are built and kept; a change of either makes all cached ones be built again."""

_RESULT_BITS = 16
_PROGRESS = "panel"
_STEPS = 100
_MOST_DROPPED = 0.05


def build_panel(config: Config, cache_root: Path | None = None) -> tuple[Panel, DataReport]:
    """Build the panel that `config.market` describes, or take it from the cache.

    Args:
        config: `market` says what to read; the days that window, episode and splits need are checked.
        cache_root: folder of the cache; None: `default_cache_root()`.

    Returns:
        The panel, its arrays memory-mapped and read-only, and the report on its data. Equal prices and settings give
        equal bits and the same fingerprint: SHA-256 of the price files' names and bytes, of the settings that choose
        features and days or form days of bars, of the version of this procedure, and of what feature functions return,
        to 16 bits of each value. Prices are read each time where there are feature functions.

    Raises:
        InputError: the prices or a feature cannot be used, there are too few days, the cache cannot be written, or
            values of a feature function change with later days and `market.look_ahead` is `refuse`.
    """
    market = config.market
    source = find_source(market.data, market.symbol_from)
    fingerprint = _fingerprint(source, market)
    cache = PanelCache(cache_root if cache_root is not None else default_cache_root())
    opened: _Opened | None = None
    if feature_functions(market):
        require_memory_to_read(source, config)
        # What a function returns is known once it was called: its code may use other code, and may not have changed.
        opened = _opened(source, market)
        fingerprint = _with_results(fingerprint, opened.features)
    found = cache.load(fingerprint, market)
    if found is None:
        if opened is None:
            require_memory_to_read(source, config)
        panel, report = _build(config, source, opened or _opened(source, market), fingerprint)
        cache.store(panel, report)
        # What is returned is always what was stored: mapped, not a second copy in memory.
        found = cache.load(fingerprint, market) or (panel, report)
        del panel, report, opened
        _release_memory()
    panel, report = found
    _refuse_suspicious(report, market)
    config.require_days(panel.days)
    if report.look_ahead and market.look_ahead == "refuse":
        raise InputError(
            f"{report.look_ahead[0]} A feature may use no later day: correct the function (`eigen audit` tries all "
            "features), or set market.look_ahead to allow to train nevertheless."
        )
    return panel, replace(report, source=str(source.path), ignored_files=source.ignored)


def read_market(config: Config) -> CleanPrices:
    """Read and clean the prices that `config.market` names; nothing is cached.

    Raises:
        InputError: they cannot be used, or there are too few days.
    """
    prices = read_prices(config.market)
    config.require_days(len(prices.days))
    return prices


def panel_of_clean_prices(prices: CleanPrices, market: MarketConfig, fingerprint: str) -> Panel:
    """Return the panel of clean prices and the features that `market` names.

    Raises:
        InputError: a feature cannot be computed.
    """
    return _panel(PanelFeatures.of(prices, market), fingerprint)


def read_prices(market: MarketConfig) -> CleanPrices:
    """Return the cleaned prices that `market` describes; raise `InputError` if they cannot be used."""
    return _opened(find_source(market.data, market.symbol_from), market).prices


def _release_memory() -> None:
    """Return freed memory to the system: both allocators would keep it until the process ends."""
    pyarrow.default_memory_pool().release_unused()
    release_free_memory()


def _fingerprint(source: Source, market: MarketConfig) -> str:
    inputs = {
        "format": FORMAT,
        "files": [(file.name, file.sha256) for file in source.files],
        "context": market.context,
        "features": market.features,
        "validation_days": market.validation_days,
        "holdout_days": market.holdout_days,
    }
    # Only where they are given: fingerprints from before these settings stay as they are.
    for name in ("own_features", "purge_days", "first_date", "last_date", "symbols", "symbol_from", "date_format"):
        if value := getattr(market, name):
            inputs[name] = value
    if named := market.columns.model_dump(exclude_none=True):
        inputs["columns"] = named
    if market.decimal is not None:
        inputs["decimal"] = market.decimal
    if market.suspicious == "drop":
        inputs["suspicious"] = market.suspicious
    if market.intraday == "aggregate":
        inputs["intraday"] = [market.intraday, market.time_zone]
        if market.suspicious == "refuse":
            # An unfinished last day is left out, which was not so before there was this setting.
            inputs["suspicious"] = market.suspicious
    elif market.time_zone is not None:
        inputs["time_zone"] = market.time_zone
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Opened:
    """Prices that were read and cleaned, the report on them, and the features that they give."""

    prices: CleanPrices
    report: DataReport
    features: PanelFeatures


def _opened(source: Source, market: MarketConfig) -> _Opened:
    prices, report = clean_prices(
        read_rows(source, market), str(source.path), market.context, market.first_date, market.last_date
    )
    _refuse_suspicious(report, market)
    features = PanelFeatures.of(prices, market)
    time_zone = (market.time_zone or "") if report.bars else ""
    return _Opened(prices, replace(report, own_features=features.own_names, time_zone=time_zone), features)


def _with_results(fingerprint: str, features: PanelFeatures) -> str:
    """Return the fingerprint of `fingerprint` and of what the functions return.

    Processors differ in the last bits of a double: 16 bits of each value are the same on all of them but for rare ones.
    """
    digest = hashlib.sha256(fingerprint.encode())
    for column in range(len(features.prices.symbols)):
        for name, values in features.of_functions(column).items():
            unknown = np.isnan(values)
            mantissa, exponent = np.frexp(np.where(unknown, 0.0, values))
            digest.update(name.encode())
            for numbers in (unknown, np.rint(mantissa * 2**_RESULT_BITS).astype(np.int32), exponent.astype(np.int32)):
                digest.update(numbers.tobytes())
    return digest.hexdigest()


def _build(config: Config, source: Source, opened: _Opened, fingerprint: str) -> tuple[Panel, DataReport]:
    days, columns = opened.prices.close.shape
    logger.info("Building a panel of %d days and %d columns from %s.", days, columns, source.path)
    config.require_days(days)
    panel = _panel(opened.features, fingerprint)
    return panel, replace(opened.report, look_ahead=tuple(map(str, look_ahead_of_functions(opened.features))))


def _panel(features: PanelFeatures, fingerprint: str) -> Panel:
    prices = features.prices
    days, columns = prices.close.shape
    splits = Splits.of_days(days, features.market)
    values = normalised(
        features.of_column,
        days=days,
        columns=columns,
        features=len(features.names),
        train=splits.train,
        progress=lambda done: report_progress(_PROGRESS, _STEPS // 2 + _STEPS // 2 * done // columns, _STEPS),
    )
    tradable = slice(0, prices.assets)
    suspended = prices.suspended[:, tradable]

    def traded(grid: Grid) -> Grid:
        return np.where(suspended, np.nan, grid[:, tradable]) if suspended.any() else grid[:, tradable]

    return Panel(
        features=values,
        valid=~np.isnan(prices.close),
        open=traded(prices.open),
        high=traded(prices.high),
        low=traded(prices.low),
        close=traded(prices.close),
        dates=prices.days,
        symbols=prices.symbols,
        feature_names=features.names,
        splits=splits,
        fingerprint=fingerprint,
    )


def read_rows(source: Source, market: MarketConfig) -> PriceRows:
    """Read the files of `source` as `market` says, with progress, into rows of days.

    Where `market.suspicious` is `drop`, rows that make figures absurd are not among them.

    Raises:
        InputError: they cannot be read.
    """
    if market.data is None:
        market = market.model_copy(update={"layout": "wide"})
    parts = []
    for part in read_source(source, market, own_columns=uses_columns(market)):
        parts.append(part)
        report_progress(_PROGRESS, _STEPS // 2 * len(parts) // len(source.files), _STEPS)
    rows = rows_of_days(parts, [file.path.name for file in source.files], market, str(source.path))
    while market.suspicious == "drop":
        _, report = clean_prices(rows, str(source.path), (), market.first_date, market.last_date)
        found = absurd(report.suspicious)
        if not found:
            break
        if len(found) > _MOST_DROPPED * len(rows.codes):
            raise InputError(
                f"{source.path} has {len(found):,} suspicious rows of {len(rows.codes):,}, so they are probably no "
                f"prices. {sentences(found)[0]} Name the columns that are, or leave market.suspicious out."
            )
        rows = rows.without(found)
    return rows


def _refuse_suspicious(report: DataReport, market: MarketConfig) -> None:
    found = absurd(report.suspicious)
    if found and market.suspicious == "refuse":
        raise InputError(
            f"{' '.join(sentences(found))} Such rows make figures absurd: correct them, or leave them out with "
            "`--set market.suspicious=drop`, or train on them with `--set market.suspicious=keep`."
        )
