"""The panel: a market's prices and features as arrays over days and symbols, its cache, and its normalisation."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from eigen_core.common.errors import InputError
from eigen_core.common.files import open_regular_file
from eigen_core.config import Config, MarketConfig
from eigen_core.config.instruments import Instrument, instruments_of
from eigen_core.config.model import MemoryConfig
from eigen_core.config.registry import seconds_of
from eigen_core.machine.memory_usage import headroom_bytes
from eigen_core.market.calendars import Calendar, calendar_of
from eigen_core.market.cross_validation import group_bounds
from eigen_core.market.features import PanelFeatures, Series, forward_fill
from eigen_core.market.formats import BAR
from eigen_core.market.report import DataReport

logger = logging.getLogger(__name__)

FEATURE_BOUND = 10.0
"""Bound of a normalised feature, in standard deviations."""

_FEWEST_DAYS = 60
_SMALLEST_DEVIATION = 1e-8
_RESULT_BITS = 16
# `_FORMAT` is part of the fingerprint; a cached panel with another `_READING` is rebuilt.
_FORMAT, _READING = 1, 15
_ARRAYS = ("features", "valid", *BAR, "volume", "dates")
_UNFINISHED, _UNFINISHED_SECONDS, _COPIED_BYTES = ".unfinished-", 86_400.0, 1 << 18
# A cached panel of this size is read even if less memory is available: it is mapped.
_ALWAYS_READ_BYTES = 1 << 30

_TEXTS = TypeAdapter(tuple[str, ...])

RowIndex = slice | NDArray[np.int64]
"""Rows of an array, which a slice does not copy."""


@dataclass(frozen=True)
class Splits:
    """Indices of the bars of training, validation and holdout; `market.purge` bars in between are unused.

    The bars that an agent observes may reach back into the previous split, its episodes may not. Purging and embargo:
    Lopez de Prado 2018, "Advances in Financial Machine Learning", chapter 7.

    Attributes:
        train: from the first training bar to the last.
        tests: the test groups of cross-validation (`market.test_groups`).
        pieces: consecutive bars of `train` with no unused bar and no test group in between.
    """

    train: range
    validation: range
    holdout: range
    tests: tuple[range, ...] = ()
    pieces: tuple[range, ...] = ()

    def __post_init__(self) -> None:
        if not self.pieces:
            object.__setattr__(self, "pieces", (self.train,))

    @classmethod
    def of(cls, dates: NDArray[np.datetime64], market: MarketConfig) -> "Splits":
        """Return the splits of bars with the dates or ends `dates`; with too few bars none is left for training."""
        if market.groups is not None:
            return cls._of_groups(dates, market, market.groups)
        holdout = _first_within(market.holdout, dates, len(dates))
        chosen = _first_within(market.purge, dates, holdout) if market.holdout else holdout
        validation = _first_within(market.validation, dates, chosen)
        trained = _first_within(market.purge, dates, validation)
        return cls(range(trained), range(validation, chosen), range(holdout, len(dates)))

    @classmethod
    def _of_groups(cls, dates: NDArray[np.datetime64], market: MarketConfig, groups: int) -> "Splits":
        bars = len(dates)
        bounds = group_bounds(bars, groups)
        tests = tuple(bounds[number] for number in sorted(market.test_groups))
        pieces: list[range] = []
        stops = [*(test.start for test in tests), bars]
        for start, stop in zip((0, *(test.stop for test in tests)), stops, strict=True):
            purged = _stop_within(market.purge, dates, start)
            first = _stop_within(market.embargo, dates, purged) if start else 0
            pieces.append(range(first, _first_within(market.purge, dates, stop) if stop < bars else bars))
        *earlier, last = [piece for piece in pieces if piece] or [range(0)]
        chosen = _first_within(market.validation, dates, last.stop)
        validation = range(chosen if chosen > last.start else last.stop, last.stop)
        last = range(last.start, _first_within(market.purge, dates, validation.start))
        trained = tuple(piece for piece in (*earlier, last) if piece) or (range(0),)
        return cls(range(trained[0].start, trained[-1].stop), validation, range(bars, bars), tests, trained)

    @property
    def training_bars(self) -> NDArray[np.int64]:
        """Indices of the bars of all `pieces`, int64 `[bars]`."""
        return np.concatenate([np.arange(piece.start, piece.stop) for piece in self.pieces])

    @property
    def training_rows(self) -> RowIndex:
        """The training bars as an index of arrays: a slice if they are consecutive."""
        return slice(self.train.start, self.train.stop) if len(self.pieces) == 1 else self.training_bars

    def require(self, config: Config) -> None:
        """Raise `InputError` if no window and episode fit into the training bars, or no episode into the others."""
        market, fewest = config.market, config.market.window + config.trading.episode_bars
        longest = max(self.pieces, key=len)
        if market.groups is not None and (len(longest) < fewest or not self.validation):
            raise InputError(
                f"market.window {market.window} and one training episode of {config.trading.episode_bars} need "
                f"{fewest:,} consecutive training bars; of {market.groups} groups of {len(self.tests[0]):,} bars, with "
                f"{market.purge} purged beside tests and {market.validation} of validation, no more than "
                f"{len(longest):,} are left. Give at least {market.groups * (fewest - len(longest)):,} bars more, or "
                "lower market.groups, market.window, market.validation or market.purge."
            )
        if market.groups is None and len(self.train) < fewest:
            purged = f", and {market.purge} purged before each" if market.purge else ""
            bars = (self.holdout or self.validation).stop
            raise InputError(
                f"window {market.window} needs at least {bars + fewest - self.train.stop:,} bars for a window, one "
                f"training episode of {config.trading.episode_bars}, {market.validation} validation and "
                f"{market.holdout} holdout bars{purged}; the panel has {bars:,}. Give more data or lower "
                "market.window, market.validation or market.holdout."
            )
        try:
            config.require_episode("validation", len(self.validation))
            if self.holdout:
                config.require_episode("holdout", len(self.holdout))
        except ValueError as error:
            raise InputError(f"{error}.") from None


def _first_within(span: int | str, dates: NDArray[np.datetime64], stop: int) -> int:
    """Return the index of the first of `span` bars, or of the bars within a duration, that end before index `stop`."""
    if isinstance(span, int):
        return stop - span
    if stop < 1:
        return stop
    ends = dates[:stop].astype("datetime64[s]")
    return int(np.searchsorted(ends, ends[-1] - np.timedelta64(seconds_of(span), "s"), side="right"))


def _stop_within(span: int | str, dates: NDArray[np.datetime64], start: int) -> int:
    """Return the index after `span` bars, or after the bars within a duration, from index `start` on."""
    if isinstance(span, int):
        return start + span
    if not 0 < start <= len(dates):
        return start
    ends = dates.astype("datetime64[s]")
    return int(np.searchsorted(ends, ends[start - 1] + np.timedelta64(seconds_of(span), "s"), side="right"))


def episode_starts(split: range, window: int, episode_bars: int) -> range:
    """Return the indices of bars in `split` on which an episode can start after a full window; `InputError` if none."""
    starts = range(max(split.start, window - 1), split.stop - episode_bars + 1)
    if not starts:
        raise InputError(
            f"no episode of {episode_bars} bars with a window of {window} fits into bars {split.start} to "
            f"{split.stop} of the panel: give more data or lower market.window or trading.trading_bars."
        )
    return starts


@dataclass(frozen=True)
class Panel:
    """Prices and features of a market, day by day; a column is a symbol.

    The first columns are the assets, which agents can trade. They only observe the others (`market.context`).

    Attributes:
        features: float32 `[days, columns, features]`, normalised; zero where unknown.
        valid: bool `[days, columns]`: the column has a price on that day.
        open, high, low, close: float64 `[days, assets]`, prices of the tradable columns; NaN without a price or with a
            volume of zero.
        dates: datetime64[D] `[days]`, increasing; of bars within a day the ends, datetime64[s], in UTC if known.
        fingerprint: SHA-256 of all inputs of the panel, by which caches and runs tell panels apart.
        origin: if it was built from price files: SHA-256 of these (`files`) and of their prices and settings
            (`content`), `first` and `last` day. Another file with the same prices on these days has the same `content`.
        volume: float64 `[days, assets]`, volumes of the tradable columns; None or NaN: not known.
        instruments: costs and order rules of each asset (`market.instruments`); empty: the single rates of `trading`.
        calendar: that of `market.calendar`; None: only prices show sessions.
    """

    features: NDArray[np.float32]
    valid: NDArray[np.bool_]
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    dates: NDArray[np.datetime64]
    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    splits: Splits
    fingerprint: str
    origin: Mapping[str, str] = field(default_factory=dict)
    volume: NDArray[np.float64] | None = None
    instruments: tuple[Instrument, ...] = ()
    calendar: Calendar | None = None

    @property
    def days(self) -> int:
        return int(self.features.shape[0])

    @property
    def time(self) -> NDArray[np.int64]:
        """`dates` in seconds since 1970, int64 `[days]`."""
        return self.dates.astype("datetime64[s]").astype(np.int64)

    @property
    def columns(self) -> int:
        return int(self.features.shape[1])

    @property
    def assets(self) -> int:
        return int(self.close.shape[1])

    def last_days(self) -> NDArray[np.int64]:
        """Return the index of the last day of each day's split, int64 `[days]`; for purged days that of the panel."""
        last, splits = np.full(self.days, self.days - 1), self.splits
        for split in (*splits.pieces, splits.validation, *splits.tests, splits.holdout):
            last[split.start : split.stop] = split.stop - 1
        return last

    def starts(self, split: range, config: Config) -> range:
        return episode_starts(split, config.market.window, config.trading.episode_bars)

    def observed(self, config: Config) -> tuple[range, ...]:
        """Return the training bars of each piece on which a whole window of its bars is observed."""
        window = config.market.window - 1
        return tuple(range(piece.start + window, piece.stop) for piece in self.splits.pieces)

    def training_starts(self, config: Config) -> Sequence[int]:
        """Return the bars on which an episode can start in a piece of the training bars; `InputError` if none."""
        splits, bars = self.splits, config.trading.episode_bars
        if not splits.tests:
            # A range, which takes no memory.
            return self.starts(splits.train, config)
        return [bar for piece in self.observed(config) for bar in range(piece.start, piece.stop - bars + 1)]


def panel_of_prices(
    features: NDArray[np.float32],
    open: Series,
    high: Series,
    low: Series,
    close: Series,
    dates: NDArray[np.datetime64],
    symbols: Sequence[str],
    feature_names: Sequence[str],
    market: MarketConfig,
) -> Panel:
    """Make a panel from arrays; its fingerprint is the SHA-256 of these, all names, and the settings of its splits.

    Features, `[days, columns, features]`, are used without normalisation; prices are `[days, assets]` of the first
    columns, NaN if missing. An asset is valid on days with a close, a column of the context on all days.

    Raises:
        ValueError: the shapes do not match, or the dates do not increase. `InputError`: no day is left for training.
    """
    features = np.ascontiguousarray(features, dtype=np.float32)
    days, columns, _ = shape = features.shape
    given = {"open": open, "high": high, "low": low, "close": close}
    prices = {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in given.items()}
    assets = prices["close"].shape[-1]
    shapes = sorted({values.shape for values in prices.values()})
    if shapes != [(days, assets)] or not 1 <= assets <= columns or (len(symbols), len(feature_names)) != shape[1:]:
        raise ValueError(
            f"prices of shapes {shapes}, {len(symbols)} symbols and {len(feature_names)} feature names do not fit "
            f"features of shape {shape}"
        )
    dates = np.asarray(dates)
    dates = dates.astype("datetime64[s]" if (dates != dates.astype("datetime64[D]")).any() else "datetime64[D]")
    if dates.shape != (days,):
        raise ValueError(f"dates have shape {dates.shape}: give one date for each of the {days} days of features")
    if (unordered := np.flatnonzero(~(dates[1:] > dates[:-1]))).size:
        raise ValueError(f"dates must increase, but {dates[unordered[0] + 1]} follows {dates[unordered[0]]}")
    splits = Splits.of(dates, market)
    if not splits.train:
        raise InputError(
            f"{days:,} bars leave none to train on after {market.validation} of validation and {market.holdout} of "
            f"holdout, and {market.purge} purged before each: give more bars, or lower market.validation, "
            "market.holdout or market.purge."
        )
    valid = np.ones((days, columns), dtype=np.bool_)
    valid[:, :assets] = ~np.isnan(prices["close"])
    arrays: list[NDArray[Any]] = [features, *prices.values(), dates]
    described = [(str(array.dtype), array.shape) for array in arrays]
    optional = [value for value, old in ((market.purge, 0), (market.calendar, "prices")) if value != old]
    header = (described, (*symbols, *feature_names), market.validation, market.holdout, *optional)
    digest = hashlib.sha256(repr(header).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return Panel(
        features=features,
        valid=valid,
        **prices,
        dates=dates,
        symbols=tuple(symbols),
        feature_names=tuple(feature_names),
        splits=splits,
        fingerprint=digest.hexdigest(),
        origin={},
        instruments=instruments_of(market.instruments, symbols[:assets]),
        calendar=calendar_of(market, dates),
    )


def normalise(columns: Iterable[Series], shape: tuple[int, int, int], train: RowIndex) -> NDArray[np.float32]:
    """Normalise features, float64 `[days, features]` of each column, to float32 `shape` `[days, columns, features]`.

    Each feature of a column gets mean 0 and standard deviation 1 over the rows `train` and is clipped at plus or minus
    `FEATURE_BOUND`. A feature of a column that is known on fewer than 60 train days, or constant, uses the mean and
    deviation of all columns. Short gaps are filled (`forward_fill`); unknown values become zero.
    """
    result = np.zeros(shape, dtype=np.float32)
    lacking: list[tuple[int, Series, NDArray[np.bool_]]] = []
    # Count, mean and sum of squared deviations of all columns.
    pooled = np.zeros((3, shape[2]))
    for index, values in enumerate(columns):
        trained, carried = values[train], forward_fill(values)
        known = ~np.isnan(trained)
        count = known.sum(axis=0).astype(np.float64)
        mean = np.where(known, trained, 0.0).sum(axis=0) / np.maximum(count, 1.0)
        squares = (np.where(known, trained - mean, 0.0) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / np.maximum(count, 1.0))
        own = (count >= _FEWEST_DAYS) & (deviation > _SMALLEST_DEVIATION * (1.0 + np.abs(mean)))
        result[:, index, own] = _scaled(carried[:, own], mean[own], deviation[own])
        if not own.all():
            lacking.append((index, carried[:, ~own], ~own))
        # Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
        total, step = pooled[0] + count, mean - pooled[1]
        share = count / np.maximum(total, 1.0)
        pooled = np.stack([total, pooled[1] + step * share, pooled[2] + squares + step**2 * pooled[0] * share])
    deviation = np.sqrt(pooled[2] / np.maximum(pooled[0], 1.0))
    deviation = np.where(deviation > _SMALLEST_DEVIATION, deviation, 1.0)
    for index, values, missing in lacking:
        result[:, index, missing] = _scaled(values, pooled[1, missing], deviation[missing])
    return result


def _scaled(values: Series, mean: Series, deviation: Series) -> NDArray[np.float32]:
    return np.nan_to_num(np.clip((values - mean) / deviation, -FEATURE_BOUND, FEATURE_BOUND)).astype(np.float32)


def panel_fingerprint(
    files: Sequence[tuple[str, str]], market: MarketConfig, features: PanelFeatures | None = None
) -> str:
    """Return the SHA-256 (hexadecimal) of a panel's inputs: names and SHA-256 of its files, settings, own features.

    `features` None: those that `market.own_features` name are left out.
    """
    within_days = market.bar == "1d"
    # `refuse` also drops an unfinished last day of bars.
    counted = ("drop", "refuse") if within_days else ("drop",)
    plain = "own_features levels first_date last_date symbols symbol_from date_format decimal"
    optional = {
        **{name: getattr(market, name) for name in plain.split()},
        "purge_days": market.purge,
        "columns": market.columns.model_dump(exclude_none=True),
        "suspicious": market.suspicious if market.suspicious in counted else None,
        "intraday": ["aggregate", market.time_zone] if within_days else None,
        "groups": [market.groups, market.test_groups, market.embargo] if market.groups else None,
        "bar": market.bar if market.bar not in ("auto", "1d") else None,
        "bar_stamp": market.bar_stamp,
        "time_zone": None if within_days else market.time_zone,
        "events": [str(one) for one in market.price_events],
        "calendar": [market.calendar, market.session] if market.calendar != "prices" else None,
    }
    # The names of these settings in earlier versions: fingerprints stay.
    inputs = {"format": _FORMAT, "files": files, "validation_days": market.validation, "holdout_days": market.holdout}
    inputs |= {name: getattr(market, name) for name in ("context", "features")}
    # Only non-default values: older fingerprints do not contain these settings.
    inputs |= {name: value for name, value in optional.items() if value}
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if features is None:
        return fingerprint
    # Hash the values of functions, not their code, which may call other code that changes. CPUs differ in last bits.
    digest = hashlib.sha256(fingerprint.encode())
    for column in range(len(features.prices.symbols)):
        for name, values in features.of_functions(column).items():
            unknown = np.isnan(values)
            mantissa, exponent = np.frexp(np.where(unknown, 0.0, values))
            digest.update(name.encode())
            for numbers in (unknown, np.rint(mantissa * 2**_RESULT_BITS).astype(np.int32), exponent.astype(np.int32)):
                digest.update(numbers.tobytes())
    return digest.hexdigest()


def load_panel(folder: Path, fingerprint: str, config: Config) -> tuple[Panel, DataReport] | None:
    """Return the cached panel, its arrays memory-mapped and read-only; None if missing, damaged, outdated or larger
    than the available memory."""
    if (path := next(folder.glob(f"{fingerprint}-*.safetensors"), None)) is None:
        return None
    try:
        copy, sha256 = _private_copy(path, config.memory)
        with copy, safe_open(f"/proc/self/fd/{copy.fileno()}", "pt") as file:
            if sha256 != path.stem.partition("-")[2]:
                raise ValueError("its checksum is wrong")
            content = json.loads(file.metadata()["content"])
            # Torch maps the file: only pages that are read become resident.
            arrays = {name: file.get_tensor(name).numpy() for name in _ARRAYS}
        if content["fingerprint"] != fingerprint:
            raise ValueError("it contains another fingerprint")
        if content["reading"] != _READING:
            raise ValueError("another version of Eigen read its prices")
        report = TypeAdapter(DataReport).validate_python(content["report"])
        symbols, names = (_TEXTS.validate_python(content[key]) for key in ("symbols", "feature_names"))
        origin = TypeAdapter(dict[str, str]).validate_python(content["origin"])
        if arrays["features"].shape != (len(arrays["dates"]), len(symbols), len(names)):
            raise ValueError("its names do not fit its features")
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        logger.warning("The cached panel %s is damaged or outdated (%s): rebuilding it from the prices.", path, error)
        return None
    for array in arrays.values():
        array.setflags(write=False)
    dates = arrays.pop("dates").astype("datetime64[s]" if report.bar_stamp else "datetime64[D]")
    splits = Splits.of(dates, config.market)
    panel = Panel(
        **arrays,
        dates=dates,
        symbols=symbols,
        feature_names=names,
        splits=splits,
        fingerprint=fingerprint,
        origin=origin,
        calendar=calendar_of(config.market, dates),
    )
    return panel, report


def _private_copy(path: Path, memory: MemoryConfig) -> tuple[IO[bytes], str]:
    """Return an unnamed copy, which no other process can change, and its SHA-256; ValueError if it does not fit."""
    with open_regular_file(path, follow=False) as original:
        size = os.fstat(original.fileno()).st_size
        if size > _ALWAYS_READ_BYTES and size > headroom_bytes(memory):
            raise ValueError("it is larger than the available memory")
        copy = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_COPIED_BYTES))
        while length := original.readinto(buffer):
            digest.update(buffer[:length])
            copy.write(buffer[:length])
    copy.flush()
    return copy, digest.hexdigest()


def store_panel(folder: Path, panel: Panel, report: DataReport) -> None:
    """Write `FINGERPRINT-SHA256.safetensors`, with the SHA-256 of the file; `InputError` if that fails."""
    arrays = {name: np.ascontiguousarray(getattr(panel, name)) for name in _ARRAYS}
    arrays["dates"] = panel.dates.astype(np.int64)
    content = {name: getattr(panel, name) for name in ("fingerprint", "symbols", "feature_names", "origin")}
    content |= {"reading": _READING, "report": asdict(report)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Remove what killed processes left.
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
            f"The cache folder {folder.parent} cannot be written ({error}): set EIGEN_CACHE to a writable folder."
        ) from error
