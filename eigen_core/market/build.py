"""Build the panel of a configuration: read, clean, compute features, normalise; and cache it."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow

from eigen_core.common.errors import InputError
from eigen_core.common.process import default_cache_root
from eigen_core.common.progress import report_progress
from eigen_core.config import Config, MarketConfig
from eigen_core.config.instruments import instruments_of
from eigen_core.machine.memory_usage import headroom_bytes, release_free_memory
from eigen_core.market.calendars import calendar_of
from eigen_core.market.cleaning import CleanPrices, clean_prices, prices_fingerprint
from eigen_core.market.events import apply_events, refuse_suspicious, undecided_rows
from eigen_core.market.features import PanelFeatures, Series, feature_functions, look_ahead_of_functions
from eigen_core.market.formats import BAR, dates_of
from eigen_core.market.panel import Panel, Splits, load_panel, normalise, panel_fingerprint, store_panel
from eigen_core.market.reading import Source, find_source, read_source
from eigen_core.market.report import DataReport, describe_rows
from eigen_core.market.trading_days import PriceRows, rows_of_days

logger = logging.getLogger(__name__)

_MOST_DROPPED = 0.05
_PROGRESS, _STEPS = "panel", 100


def build_panel(config: Config, cache_root: Path | None = None) -> tuple[Panel, DataReport]:
    """Build the panel of `config.market`, or load it from the cache.

    The panel's arrays are memory-mapped and read-only. Equal prices and settings give equal bits and the same
    fingerprint: SHA-256 of the price files' names and bytes, the settings of features and days, a format version, and
    the values of feature functions (`market.own_features`), rounded to 16 bits. With such functions each call reads the
    prices, even if the panel is cached. `cache_root` defaults to `default_cache_root()`.

    Raises:
        InputError: prices or features are invalid, there are too few days, the cache cannot be written, or values of a
            feature function change with later days and `market.look_ahead` is `refuse`.
    """
    market = config.market
    source = find_source(market)
    computed = _read_features(source, config) if feature_functions(market) else None
    fingerprint = panel_fingerprint(source.hashes, market, computed[0] if computed else None)
    root = cache_root if cache_root is not None else default_cache_root()
    folder = root / "panels"
    found = load_panel(folder, fingerprint, config)
    if found is None:
        features, report = computed or _read_features(source, config)
        logger.info("Building a panel of %d days and %d symbols from %s.", *features.shape[:2], source.path)
        Splits.of(features.prices.days, market).require(config)
        report = replace(report, look_ahead=tuple(map(str, look_ahead_of_functions(features))))
        panel = panel_of_clean_prices(features.prices, market, fingerprint)
        panel = replace(panel, origin=_origin(source, features, market))
        del features, computed
        store_panel(folder, panel, report)
        # Return the stored panel: mapped, not a second copy in memory.
        found = load_panel(folder, fingerprint, config) or (panel, report)
        del panel, report
        _release_free_memory()
    panel, report = found
    # The cache has the prices alone: costs are settings of a run.
    panel = replace(panel, instruments=instruments_of(market.instruments, panel.symbols[: panel.assets]))
    refuse_suspicious(report.suspicious, market)
    panel.splits.require(config)
    if report.look_ahead and market.look_ahead == "refuse":
        raise InputError(
            f"{report.look_ahead[0]} A feature must not use later days: correct the function (`eigen audit` tests all "
            "features), or set market.look_ahead=allow."
        )
    return panel, replace(report, source=str(source.path), ignored_files=source.ignored, events=market.events)


def _origin(source: Source, features: PanelFeatures, market: MarketConfig) -> dict[str, str]:
    days, own = features.prices.days, features if feature_functions(market) else None
    # The prices show what decisions about them have changed.
    of_all_days = market.model_copy(update={"first_date": None, "last_date": None, "events": ()})
    return {
        "files": panel_fingerprint(source.hashes, market),
        "content": panel_fingerprint([("prices", prices_fingerprint(features.prices))], of_all_days, own),
        "first": str(days[0]),
        "last": str(days[-1]),
    }


def files_are_those_of(origin: Mapping[str, object], market: MarketConfig) -> bool:
    """Whether files and settings of `market` are those of a panel with this `origin` (`Panel.origin`)."""
    return panel_fingerprint(find_source(market).hashes, market) == origin.get("files")


def read_prices(config: Config) -> CleanPrices:
    """Return the cleaned prices of `config.market`, however few their days."""
    return _read_features(find_source(config.market), config)[0].prices


def read_rows(source: Source, config: Config) -> PriceRows:
    """Read the rows in the period of `config.market`, changed by `market.events`; with `market.suspicious=drop` without
    those that distort metrics and after which the price comes back. `InputError` if the period has no rows, memory is
    too small for the files, an event does not fit, or over 5 % of rows would be dropped."""
    bundled = {} if config.market.data is not None else {"layout": "wide"}
    market = config.market.model_copy(update=bundled)
    parts = []
    for part in read_source(source, market, headroom_bytes(config.memory)):
        parts.append(part)
        report_progress(_PROGRESS, _STEPS // 2 * len(parts) // len(source.files), _STEPS)
    rows = apply_events(rows_of_days(parts, market, str(source.path)), market, str(source.path))
    days, first, last = rows.days, market.first_date, market.last_date
    if first or last:
        rows = rows.between(first, last)
        if not len(rows.days):
            raise InputError(
                f"{source.path} has no day from {first or 'its first'} to {last or 'its last'}; its days are "
                f"{days.min()} to {days.max()}: change market.first_date or market.last_date."
            )
    while market.suspicious == "drop":
        _, report = clean_prices(rows, str(source.path), (), market.levels)
        if not (found := [row for row in undecided_rows(report.suspicious, market) if row.event == "drop"]):
            break
        if len(found) > _MOST_DROPPED * len(days):
            raise InputError(
                f"{source.path} has {len(found):,} suspicious rows of {len(days):,}, so they are probably not "
                f"prices. {describe_rows(found)[0]} Set market.columns, or do not set market.suspicious=drop."
            )
        rows = rows.without(found)
    return rows


def _read_features(source: Source, config: Config) -> tuple[PanelFeatures, DataReport]:
    market = config.market
    prices, report = clean_prices(read_rows(source, config), str(source.path), market.context, market.levels)
    refuse_suspicious(report.suspicious, market)
    if calendar := calendar_of(market, prices.days):
        report = replace(report, calendar=calendar.describe(prices.days, prices.traded[:, : prices.assets]))
    features = PanelFeatures(prices, market)
    _release_free_memory()
    return features, replace(report, own_features=features.own_names)


def _release_free_memory() -> None:
    pyarrow.default_memory_pool().release_unused()
    release_free_memory()


def panel_of_clean_prices(prices: CleanPrices, market: MarketConfig, fingerprint: str) -> Panel:
    """Return a panel of `prices` with the features of `market`; `InputError` if a feature function fails."""
    features = PanelFeatures(prices, market)
    columns, splits = features.shape[1], Splits.of(prices.days, market)

    def with_progress() -> Iterator[Series]:
        for done, values in enumerate(features.all_columns(), 1):
            yield values
            report_progress(_PROGRESS, _STEPS // 2 + _STEPS // 2 * done // columns, _STEPS)

    tradable = slice(prices.assets)
    traded = prices.traded[:, tradable]
    grids: dict[str, Any] = {
        name: np.where(traded, getattr(prices, name)[:, tradable], np.nan) for name in (*BAR, "volume")
    }
    return Panel(
        features=normalise(with_progress(), features.shape, splits.training_rows),
        valid=~np.isnan(prices.close),
        **grids,
        dates=prices.days,
        symbols=prices.symbols,
        feature_names=features.names,
        splits=splits,
        fingerprint=fingerprint,
        origin={},
        calendar=calendar_of(market, prices.days),
    )


@dataclass(frozen=True)
class TrainingDays:
    """A run's training days, which determine normalisation: first and last day (or bar, its end), and their number."""

    first: str
    last: str
    number: int

    @classmethod
    def of(cls, panel: Panel) -> Self:
        train = panel.splits.train
        return cls(str(panel.dates[train[0]]), str(panel.dates[train[-1]]), len(train))


def inference_panel(
    config: Config, training: TrainingDays, symbols: tuple[str, ...], features: tuple[str, ...], date: str | None
) -> Panel:
    """Build a panel of newer prices to act on: features normalised as in training, later days in `splits.validation`.

    Args:
        config: the run's configuration, with the newer prices as `market.data`; these include the training days.
        training, symbols, features: training days, and names of symbols and features, of the run's panel.
        date: last day to use (YYYY-MM-DD); None: the last day of the prices.

    Raises:
        InputError: the prices begin after the first training day, lack `date`, have other symbols, features or training
            days than the run, or have no day after training; or `date` is a training day.
    """
    if config.market.test_groups:
        raise InputError(
            "The run was trained on some groups of bars for cross-validation (market.test_groups): act with a run that "
            "was trained on all of them."
        )
    market = config.market.model_copy(update={"first_date": training.first, "last_date": date})
    if date is not None and date <= training.last:
        raise InputError(f"{date} is a training day of the run: act on a day after {training.last}.")
    prices = read_prices(config.model_copy(update={"market": market}))
    first, last = str(prices.days[0]), str(prices.days[-1])
    if first != training.first:
        raise InputError(
            f"The prices begin on {first}, but training began on {training.first}: give prices from then on."
        )
    if date is not None and str(dates_of(prices.days[-1:])[0]) != date:
        raise InputError(f"There are no prices of {date}: give them, or act on {last}, the last day before it.")
    missing, new = sorted(set(symbols) - set(prices.symbols)), sorted(set(prices.symbols) - set(symbols))
    differing = [f"{verb} {', '.join(names[:5])}" for verb, names in (("lack", missing), ("also have", new)) if names]
    if differing:
        raise InputError(
            f"The prices {' and '.join(differing)}: give prices of exactly the symbols that the run was trained on."
        )
    trained = int(np.searchsorted(prices.days, np.datetime64(training.last), side="right"))
    if trained != training.number:
        raise InputError(
            f"The prices have {trained:,} days from {training.first} to {training.last}, but training had "
            f"{training.number:,}: features would be normalised differently. Give prices of the same days."
        )
    if trained == len(prices.days):
        raise InputError(f"The prices end on {last}, within training: give prices of later days.")
    days = {"validation": len(prices.days) - trained, "holdout": 0, "purge": 0}
    panel, _ = build_panel(config.model_copy(update={"market": market.model_copy(update=days)}))
    if (panel.symbols, panel.feature_names) != (symbols, features):
        raise InputError(
            f"The prices give the features {', '.join(panel.feature_names)} of {', '.join(panel.symbols[:5])}..., but "
            f"agents observe {', '.join(features)} of {', '.join(symbols[:5])}...: give files with the same columns."
        )
    return panel
