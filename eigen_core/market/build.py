"""Build the panel of a configuration: read, clean, compute features, normalise; and cache it."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from io import BufferedRandom
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from eigen_core.common.errors import InputError
from eigen_core.common.progress import report_progress
from eigen_core.common.runtime import default_cache_root
from eigen_core.config import Config, MarketConfig
from eigen_core.machine import release_free_memory
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.features import PanelFeatures, Series, feature_functions, look_ahead_of_functions, uses_columns
from eigen_core.market.files import Source, find_source, require_memory_to_read
from eigen_core.market.layouts import BAR
from eigen_core.market.panel import Panel, Splits, normalise
from eigen_core.market.reading import read_source
from eigen_core.market.report import DataReport
from eigen_core.market.suspicious import distorting, sentences
from eigen_core.market.trading_days import PriceRows, rows_of_days

logger = logging.getLogger(__name__)

# Versions of the procedure, which is part of the fingerprint, and of reading: cached panels of another version are
# rebuilt.
_FORMAT, _READING = 1, 8
_RESULT_BITS, _MOST_DROPPED = 16, 0.05
_PROGRESS, _STEPS = "panel", 100
_ARRAYS = ("features", "valid", *BAR, "dates")
_UNFINISHED, _UNFINISHED_SECONDS, _COPIED_BYTES = ".unfinished-", 86_400.0, 4 << 20


def build_panel(config: Config, cache_root: Path | None = None) -> tuple[Panel, DataReport]:
    """Build the panel of `config.market`, or load it from the cache.

    Its arrays are memory-mapped and read-only. Equal prices and settings give equal bits and the same fingerprint:
    SHA-256 of the price files' names and bytes, of the settings of features and days, of the version of this procedure,
    and of the values of feature functions, to 16 bits each. With feature functions, prices are read each time.
    `cache_root` None is `default_cache_root()`.

    Raises:
        InputError: prices or features are invalid, there are too few days, the cache cannot be written, or values of a
            feature function change with later days and `market.look_ahead` is `refuse`.
    """
    market = config.market
    source = find_source(market.data, market.symbol_from)
    fingerprint = _fingerprint(source, market)
    computed: tuple[PanelFeatures, DataReport] | None = None
    if feature_functions(market):
        # The function's own code does not determine its values: it may call other code that changes.
        computed = _read_features(source, config)
        fingerprint = _with_results(fingerprint, computed[0])
    root = cache_root if cache_root is not None else default_cache_root()
    folder = root / "panels"
    found = _load_cached(folder, fingerprint, market)
    if found is None:
        if computed is None:
            computed = _read_features(source, config)
        features, report = computed
        logger.info("Building a panel of %d days and %d columns from %s.", *features.shape[:2], source.path)
        config.require_days(features.shape[0])
        report = replace(report, look_ahead=tuple(map(str, look_ahead_of_functions(features))))
        panel = panel_of_clean_prices(features.prices, market, fingerprint)
        del features, computed
        _store_cached(folder, panel, report)
        # Return the stored panel: mapped, not a second copy in memory.
        found = _load_cached(folder, fingerprint, market) or (panel, report)
        del panel, report
        _release_free_memory()
    panel, report = found
    _refuse_suspicious(report, market)
    config.require_days(panel.days)
    if report.look_ahead and market.look_ahead == "refuse":
        raise InputError(
            f"{report.look_ahead[0]} A feature must not use later days: correct the function (`eigen audit` tests all "
            "features), or set market.look_ahead to allow."
        )
    return panel, replace(report, source=str(source.path), ignored_files=source.ignored)


def read_market(config: Config) -> CleanPrices:
    """Return the cleaned prices of `config.market`; raise `InputError` if there are too few days."""
    prices = read_prices(config)
    config.require_days(len(prices.days))
    return prices


def read_prices(config: Config) -> CleanPrices:
    return _read_features(find_source(config.market.data, config.market.symbol_from), config)[0].prices


def read_rows(source: Source, config: Config) -> PriceRows:
    """Read the rows of `source` in the period of `config.market`; `InputError` if there are none, or too many."""
    require_memory_to_read(source, config)
    bundled = {} if config.market.data is not None else {"layout": "wide"}
    market = config.market.model_copy(update=bundled)
    parts = []
    for part in read_source(source, market, own_columns=uses_columns(market)):
        parts.append(part)
        report_progress(_PROGRESS, _STEPS // 2 * len(parts) // len(source.files), _STEPS)
    rows = rows_of_days(parts, [file.path.name for file in source.files], market, str(source.path))
    days, first, last = rows.days, market.first_date, market.last_date
    if first or last:
        rows = rows.between(first, last)
        if not len(rows.days):
            raise InputError(
                f"{source.path} has no day from {first or 'its first'} to {last or 'its last'}; its days are "
                f"{days.min()} to {days.max()}: change market.first_date or market.last_date."
            )
    while market.suspicious == "drop":
        _, report = clean_prices(rows, str(source.path), ())
        if not (found := distorting(report.suspicious)):
            break
        if len(found) > _MOST_DROPPED * len(days):
            raise InputError(
                f"{source.path} has {len(found):,} suspicious rows of {len(days):,}, so they are probably no "
                f"prices. {sentences(found)[0]} Name the columns of prices, or do not set market.suspicious."
            )
        rows = rows.without(found)
    return rows


def _read_features(source: Source, config: Config) -> tuple[PanelFeatures, DataReport]:
    market = config.market
    prices, report = clean_prices(read_rows(source, config), str(source.path), market.context)
    _refuse_suspicious(report, market)
    features = PanelFeatures(prices, market)
    _release_free_memory()
    return features, replace(report, own_features=features.own_names)


def _release_free_memory() -> None:
    pyarrow.default_memory_pool().release_unused()
    release_free_memory()


def _refuse_suspicious(report: DataReport, market: MarketConfig) -> None:
    if market.suspicious == "refuse" and (found := distorting(report.suspicious)):
        raise InputError(
            f"{' '.join(sentences(found))} Such rows distort all metrics: correct them, drop them with "
            "`--set market.suspicious=drop`, or keep them with `--set market.suspicious=keep`."
        )


def _fingerprint(source: Source, market: MarketConfig) -> str:
    within_days = market.intraday == "aggregate"
    # `refuse` also drops an unfinished last day of bars.
    counted = ("drop", "refuse") if within_days else ("drop",)
    names = "own_features", "purge_days", "first_date", "last_date", "symbols", "symbol_from", "date_format", "decimal"
    optional = {
        **{name: getattr(market, name) for name in names},
        "columns": market.columns.model_dump(exclude_none=True),
        "suspicious": market.suspicious if market.suspicious in counted else None,
        "intraday": [market.intraday, market.time_zone] if within_days else None,
        "time_zone": None if within_days else market.time_zone,
    }
    inputs = {"format": _FORMAT, "files": [(file.name, file.sha256) for file in source.files]}
    inputs |= {name: getattr(market, name) for name in ("context", "features", "validation_days", "holdout_days")}
    # Only non-default values: older fingerprints do not contain these settings.
    inputs |= {name: value for name, value in optional.items() if value}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _with_results(fingerprint: str, features: PanelFeatures) -> str:
    """Add the values of feature functions to a fingerprint, to 16 bits: CPUs differ in the last bits."""
    digest = hashlib.sha256(fingerprint.encode())
    for column in range(len(features.prices.symbols)):
        for name, values in features.of_functions(column).items():
            unknown = np.isnan(values)
            mantissa, exponent = np.frexp(np.where(unknown, 0.0, values))
            digest.update(name.encode())
            for numbers in (unknown, np.rint(mantissa * 2**_RESULT_BITS).astype(np.int32), exponent.astype(np.int32)):
                digest.update(numbers.tobytes())
    return digest.hexdigest()


def panel_of_clean_prices(prices: CleanPrices, market: MarketConfig, fingerprint: str) -> Panel:
    """Return the panel of clean prices with the features of `market`; raise `InputError` if one fails."""
    features = PanelFeatures(prices, market)
    days, columns, _ = features.shape
    splits = Splits.of_days(days, market)

    def with_progress() -> Iterator[Series]:
        for done, values in enumerate(features.all_columns(), 1):
            yield values
            report_progress(_PROGRESS, _STEPS // 2 + _STEPS // 2 * done // columns, _STEPS)

    tradable = slice(prices.assets)
    suspended = prices.suspended[:, tradable]
    grids = {name: getattr(prices, name)[:, tradable] for name in BAR}
    return Panel(
        features=normalise(with_progress(), features.shape, splits.train),
        valid=~np.isnan(prices.close),
        **{name: np.where(suspended, np.nan, grid) for name, grid in grids.items()},
        dates=prices.days,
        symbols=prices.symbols,
        feature_names=features.names,
        splits=splits,
        fingerprint=fingerprint,
    )


def _load_cached(folder: Path, fingerprint: str, market: MarketConfig) -> tuple[Panel, DataReport] | None:
    """Return the cached panel, its arrays mapped and read-only; None if it is missing or damaged."""
    path = next(folder.glob(f"{fingerprint}-*.safetensors"), None)
    if path is None:
        return None
    try:
        with _private_copy(path) as copy, safe_open(f"/proc/self/fd/{copy.fileno()}", "pt") as file:
            if hashlib.file_digest(copy, "sha256").hexdigest() != path.stem.partition("-")[2]:
                raise ValueError("it is not as it was written")
            content = json.loads(file.metadata()["content"])
            # Torch maps the file: only pages that are read become resident.
            arrays = {name: file.get_tensor(name).numpy() for name in _ARRAYS}
        if content["fingerprint"] != fingerprint:
            raise ValueError("it is another panel")
        if content["reading"] != _READING:
            raise ValueError("its prices were read by another version")
        report = DataReport.of_dict(content["report"])
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        logger.warning("The cached panel %s is damaged or outdated (%s): it is built again.", path, error)
        return None
    for array in arrays.values():
        array.setflags(write=False)
    dates = arrays.pop("dates").astype("datetime64[D]")
    symbols, names = tuple(content["symbols"]), tuple(content["feature_names"])
    splits = Splits.of_days(len(dates), market)
    return Panel(
        **arrays, dates=dates, symbols=symbols, feature_names=names, splits=splits, fingerprint=fingerprint
    ), report


def _private_copy(path: Path) -> BufferedRandom:
    """Return an unnamed copy that later writes do not change, on the same disk or, if that fails, in memory."""
    with path.open("rb") as original:
        try:
            copy = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
            shutil.copyfileobj(original, copy, _COPIED_BYTES)
        except OSError:
            original.seek(0)
            copy = os.fdopen(os.memfd_create(path.name), "w+b")
            shutil.copyfileobj(original, copy, _COPIED_BYTES)
    copy.seek(0)
    return copy


def _store_cached(folder: Path, panel: Panel, report: DataReport) -> None:
    """Write `FINGERPRINT-SHA256.safetensors`, with the hash of the file; several processes may do so at once."""
    arrays = {name: np.ascontiguousarray(getattr(panel, name)) for name in _ARRAYS}
    arrays["dates"] = panel.dates.astype(np.int64)
    content = {name: getattr(panel, name) for name in ("fingerprint", "symbols", "feature_names")}
    content |= {"reading": _READING, "report": asdict(report)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Left over from killed processes.
        for unfinished in folder.glob(f"{_UNFINISHED}*"):
            if time.time() - unfinished.stat().st_mtime > _UNFINISHED_SECONDS:
                shutil.rmtree(unfinished, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED, ignore_cleanup_errors=True) as own:
            new = Path(own, "panel.safetensors")
            save_file(arrays, new, {"content": json.dumps(content)})
            with new.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            for outdated in folder.glob(f"{panel.fingerprint}-*"):
                outdated.unlink(missing_ok=True)
            new.replace(folder / f"{panel.fingerprint}-{sha256}.safetensors")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"The cache folder {folder.parent} cannot be written ({error}): set EIGEN_CACHE to a folder that can."
        ) from error


@dataclass(frozen=True)
class TrainingDays:
    """The training days, by which features are normalised: first and last date (YYYY-MM-DD), and their number."""

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
    """Build a panel of newer prices, with features normalised as in training; all later days are validation days.

    Args:
        config: that of the run, with the newer prices as `market.data`.
        date: last day; None: that of the prices. No later price is used.

    Raises:
        InputError: the prices begin later, end before `date`, or have other symbols, features or training days, or no
            day after training.
    """
    market = config.market.model_copy(update={"first_date": training.first, "last_date": date})
    if date is not None and date <= training.last:
        raise InputError(f"{date} is a training day of the run: act on a day after {training.last}.")
    prices = read_prices(config.model_copy(update={"market": market}))
    first, last = str(prices.days[0]), str(prices.days[-1])
    if first != training.first:
        raise InputError(
            f"The prices begin on {first}, but training began on {training.first}: give prices from then on."
        )
    if date is not None and last != date:
        raise InputError(f"There are no prices of {date}: the last day before it is {last}.")
    missing, new = sorted(set(symbols) - set(prices.symbols)), sorted(set(prices.symbols) - set(symbols))
    differing = [f"{verb} {', '.join(names[:5])}" for verb, names in (("lack", missing), ("also have", new)) if names]
    if differing:
        raise InputError(
            f"The prices {' and '.join(differing)}: give those of the symbols that the run was trained on."
        )
    trained = int(np.searchsorted(prices.days, np.datetime64(training.last, "D"), side="right"))
    if trained != training.number:
        raise InputError(
            f"The prices have {trained:,} days from {training.first} to {training.last}, but training had "
            f"{training.number:,}: features would be normalised otherwise. Give prices of the same days."
        )
    if trained == len(prices.days):
        raise InputError(f"The prices end on {last}, within training: give prices of later days.")
    days = {"validation_days": len(prices.days) - trained, "holdout_days": 0, "purge_days": 0}
    panel, _ = build_panel(config.model_copy(update={"market": market.model_copy(update=days)}))
    if (panel.symbols, panel.feature_names) != (symbols, features):
        raise InputError(
            f"The prices give the features {', '.join(panel.feature_names)} of {', '.join(panel.symbols[:5])}..., but "
            f"agents observe {', '.join(features)} of {', '.join(symbols[:5])}...: give files of the same columns."
        )
    return panel
