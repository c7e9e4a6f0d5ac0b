"""Features of each symbol: from prices, from other numeric columns of the files, and from registered functions. They
are computed on the days on which the symbol has a price. No value depends on later days."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, Literal

import numpy as np
import pandas as pd
import talib
from numpy.typing import ArrayLike, NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import MarketConfig
from eigen_core.market.cleaning import CleanPrices

FeatureSet = Literal["returns", "classic", "columns"]
Series = NDArray[np.float64]

FORWARD_FILL_DAYS = 10
"""Consecutive days without a price on which a symbol keeps its last features; on further ones they are unknown."""

_GROUP = "eigen.features"
_DAY_SECONDS = 86_400.0
_COLUMNS, _LEVEL = "columns", "level"
_RETURN_DAYS, _VOLATILITY_DAYS, _MEAN_DAYS = (1, 5, 20, 60, 120), (20, 60), (20, 60, 200)
_RSI_DAYS, _MACD_DAYS, _TRIX_DAYS, _VOLUME_DAYS = 14, (12, 26, 9), 30, 60
_SAMPLE_DAYS = 400

Future = Literal["cut off", "shuffled"]
FUTURES: tuple[Future, ...] = ("cut off", "shuffled")
SHUFFLED_DEVIATION = 0.2
TOLERANCE = 1e-8
"""Largest change of a feature, as a share of its standard deviation, that counts as rounding and not as look-ahead."""
_SMALLEST_DEVIATION = 1e-6
_CHECKED_COLUMNS, _CHECKED_DAYS, _FEWEST_DAYS = 8, 3, 30


@dataclass(frozen=True)
class Bars:
    """Daily bars of one symbol, float64 `[days]`, NaN if unknown; a day with a close has a high and a low, too."""

    open: Series
    high: Series
    low: Series
    close: Series
    volume: Series
    dates: NDArray[np.datetime64]

    def at(self, days: "NDArray[np.intp] | slice") -> "Bars":
        """Return a read-only copy of the bars at positions `days`."""
        chosen = {field.name: np.array(getattr(self, field.name)[days]) for field in fields(self)}
        for array in chosen.values():
            array.setflags(write=False)
        return Bars(**chosen)

    def with_price(self) -> tuple[NDArray[np.intp], "Bars"]:
        days = np.flatnonzero(~np.isnan(self.close))
        return days, self.at(days)


def _returns(bars: Bars) -> dict[str, Series]:
    """Return features by name; none depends on the price level. RSI, MACD and moving averages are computed by TA-Lib;
    `volume` is the z-score of the volume's logarithm over 60 days."""
    # Divide by the first close: indicators contain thresholds that must not depend on the price level.
    close, log_close = bars.close / bars.close[0], pd.Series(np.log(bars.close))
    macd, signal, _ = talib.MACD(close, *_MACD_DAYS)
    strength = talib.RSI(close, _RSI_DAYS) / 100.0 - 0.5
    # TA-Lib's RSI is 0 for a price that has never moved, as if it had only fallen.
    has_moved = np.logical_or.accumulate(close != close[0])
    returns = {days: np.asarray(log_close.diff(days), dtype=np.float64) for days in _RETURN_DAYS}
    traded = ~np.isnan(bars.volume)
    amount, score = np.log1p(bars.volume[traded]), np.full(len(close), np.nan)
    mean, deviation = _rolling_moments(amount, _VOLUME_DAYS)
    score[traded] = (amount - mean) / np.maximum(deviation, 1e-6)
    return {
        **{f"log_return_{days}": values for days, values in returns.items()},
        "range": (bars.high - bars.low) / bars.close,
        **{f"volatility_{days}": _rolling_moments(returns[1], days)[1] for days in _VOLATILITY_DAYS},
        "rsi": np.where(has_moved | np.isnan(strength), strength, 0.0),
        "macd": macd / close,
        "macd_signal": signal / close,
        **{f"mean_distance_{days}": close / talib.SMA(close, days) - 1.0 for days in _MEAN_DAYS},
        "volume": score,
    }


def _classic(bars: Bars) -> dict[str, Series]:
    macd, signal, _ = talib.MACD(bars.close, *_MACD_DAYS)
    return {
        "open": np.where(np.isnan(bars.open), bars.close, bars.open),
        "close": bars.close,
        "high": bars.high,
        "low": bars.low,
        "rsi": talib.RSI(bars.close, _RSI_DAYS),
        "macd": macd,
        "macd_signal": signal,
        "trix": talib.TRIX(bars.close, _TRIX_DAYS),
        "mean_distance_20": bars.close / talib.SMA(bars.close, 20) - 1.0,
    }


_SETS: Mapping[str, Callable[[Bars], dict[str, Series]]] = {
    "returns": _returns,
    "classic": _classic,
    _COLUMNS: lambda _: {},
}


@cache
def feature_names(feature_set: FeatureSet, has_range: bool, has_volume: bool) -> tuple[str, ...]:
    """Return the names of a feature set; `range` needs files with highs and lows, `volume` files with volumes."""
    missing = {name for name, known in (("range", has_range), ("volume", has_volume)) if not known}
    return tuple(name for name in _SETS[feature_set](_sample_bars()) if name not in missing)


def column_features(bars: Bars, feature_set: FeatureSet, has_range: bool, has_volume: bool) -> Series:
    """Return the features `feature_names` of one symbol: float64 `[days, features]`, NaN without enough prices."""
    names = feature_names(feature_set, has_range, has_volume)
    values = np.full((len(bars.close), len(names)), np.nan)
    days, own = bars.with_price()
    if days.size and names:
        computed = _SETS[feature_set](own)
        values[days] = np.column_stack([computed[name] for name in names])
    return values


def forward_fill(values: Series) -> Series:
    """Fill unknown values (NaN) of `[days, features]` with the last known one, for `FORWARD_FILL_DAYS` days at most."""
    return pd.DataFrame(values).ffill(limit=FORWARD_FILL_DAYS).to_numpy()


def _rolling_moments(values: Series, days: int) -> tuple[Series, Series]:
    mean, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    windows = len(values) - days + 1
    if windows > 0:
        # Sum each window anew: a running sum would accumulate rounding errors.
        parts = [values[offset : offset + windows] for offset in range(days)]
        mean[days - 1 :] = sum(parts, np.zeros(windows)) / days
        squares = ((part - mean[days - 1 :]) ** 2 for part in parts)
        deviation[days - 1 :] = np.sqrt(sum(squares, np.zeros(windows)) / days)
    return mean, deviation


def _sample_bars() -> Bars:
    steps = keyed_generator(0, 0, "market", "own features", "names").standard_normal(_SAMPLE_DAYS)
    close = 100.0 * np.exp(np.cumsum(0.01 * steps))
    dates = np.busday_offset("2000-01-03", np.arange(_SAMPLE_DAYS), roll="forward")
    return Bars(close, close * 1.01, close * 0.99, close, np.full(_SAMPLE_DAYS, 1e6), dates).at(slice(None))


FeatureValues = Callable[[Bars], ArrayLike | Mapping[str, ArrayLike]]
"""A feature function: takes read-only bars of a symbol's days with a price, and returns one number a day, or a mapping
of names to arrays of these. Infinity and NaN mean unknown. It must not use later days; `eigen audit` tests this."""


@dataclass(frozen=True)
class FeatureFunction:
    """A feature function, `compute`: one feature `name`, or, if it returns a mapping, `name.key` for each key."""

    name: str
    compute: FeatureValues

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features that the function returns when it is called with a random walk."""
        return tuple(self.features_of(_sample_bars(), "a random walk"))

    def features_of(self, bars: Bars, symbol: str) -> dict[str, Series]:
        """Call the function; return features by name, float64 `[days]`, NaN if unknown; `InputError` if it fails."""
        try:
            returned = self.compute(bars)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"The feature function '{self.name}' failed on the {len(bars.close):,} days of {symbol}: "
                f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})."
            ) from error
        if isinstance(returned, Mapping):
            named = {f"{self.name}.{key}": values for key, values in returned.items()}
        else:
            named = {self.name: returned}
        features: dict[str, Series] = {}
        for name, values in named.items():
            series = np.asarray(values)
            if series.shape != bars.close.shape or series.dtype.kind not in "biuf":
                raise InputError(
                    f"The feature function '{self.name}' returned {series.dtype} values of shape {series.shape} for "
                    f"the {len(bars.close):,} days of {symbol}: return an array with one number a day, or a mapping of "
                    "names to such arrays."
                )
            numbers = series.astype(np.float64)
            features[name] = np.where(np.isfinite(numbers), numbers, np.nan)
        return features


def feature_functions(market: MarketConfig) -> tuple[FeatureFunction, ...]:
    """Import the functions that `market.own_features` names; `InputError` if one cannot be imported."""
    names = dict.fromkeys(market.own_features)
    return tuple(FeatureFunction(name, _registered_function(name)) for name in names if name != _COLUMNS)


def clock(bars: Bars) -> dict[str, Series]:
    """Return sine and cosine of the time of day and of the time of the week at which bars end, in UTC if known."""
    seconds = bars.dates.astype("datetime64[s]").astype(np.int64)
    # 1970 began on a Thursday: weeks begin on Monday.
    day, week = (2.0 * np.pi * turns for turns in (seconds / _DAY_SECONDS, (seconds / _DAY_SECONDS + 3.0) / 7.0))
    return {"day_sine": np.sin(day), "day_cosine": np.cos(day), "week_sine": np.sin(week), "week_cosine": np.cos(week)}


_OF_EIGEN: Mapping[str, FeatureValues] = {"clock": clock}


def _registered_function(name: str) -> FeatureValues:
    if name in _OF_EIGEN:
        return _OF_EIGEN[name]
    if name in _SETS:
        raise InputError(f"market.own_features names '{name}', which is a feature set: write market.features={name}.")
    found = {point.value: point for point in entry_points(group=_GROUP, name=name)}
    if not found:
        known = sorted({point.name for point in entry_points(group=_GROUP)})
        raise InputError(
            f"market.own_features names '{name}', but no installed package registers it as an entry point of "
            f"{_GROUP}; {'registered: ' + ', '.join(known) if known else 'none is registered'}."
        )
    if len(found) > 1:
        raise InputError(
            f"market.own_features names '{name}', but several entry points of {_GROUP} have this name "
            f"({', '.join(sorted(found))}): rename all but one."
        )
    (point,) = found.values()
    try:
        function: object = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"The feature function '{name}' ({point.value}) cannot be imported: {error}.") from error
    if not callable(function):
        raise InputError(f"The entry point '{name}' of {_GROUP} ({point.value}) is no function: register a function.")
    return function


class PanelFeatures:
    """The features that `market` selects, for each symbol (column of `prices`), before normalisation.

    `of_column` computes the values of one symbol. `names` has all features, and ends with `own_names`: other numeric
    columns of the files (`columns.NAME` if another feature is called NAME), then features of feature functions. `shape`
    is (days, symbols, features).

    Raises:
        InputError: a function is not registered or fails, the files lack columns that `market` needs, or names repeat.
    """

    def __init__(self, prices: CleanPrices, market: MarketConfig) -> None:
        self.prices, self.market, self.functions = prices, market, feature_functions(market)
        self._columns = tuple(prices.own) if market.uses_columns else ()
        if market.uses_columns and not self._columns:
            raise InputError(
                "market.features or market.own_features names columns, but the data has no numeric column except date, "
                "symbol, prices and volume: add one to each file, or name other features."
            )
        of_set = feature_names(market.features, prices.has_range, prices.has_volume)
        of_set += (_LEVEL,) if prices.levels else ()
        computed = tuple(name for function in self.functions for name in function.names)
        columns = (f"{_COLUMNS}.{name}" if name in {*of_set, *computed} else name for name in self._columns)
        self.own_names = (*columns, *computed)
        self.names = (*of_set, *self.own_names)
        self.shape: tuple[int, int, int] = (*prices.close.shape, len(self.names))
        if repeated := [name for name, count in Counter(self.names).items() if count > 1]:
            raise InputError(f"Several features are called '{repeated[0]}': rename the column or the function.")

    def of_column(self, column: int) -> Series:
        """Return all features of one symbol, float64 `[days, features]`; NaN if unknown or on days without a price."""
        bars, prices = self.bars(column), self.prices
        of_set = column_features(bars, self.market.features, prices.has_range, prices.has_volume)
        priced = ~np.isnan(bars.close)
        if prices.levels:
            level = prices.levels.get(prices.symbols[column])
            of_set = of_set if level is None else np.full_like(of_set, np.nan)
            of_set = np.column_stack([of_set, np.full(len(priced), np.nan) if level is None else level])
        own = [np.where(priced, prices.own[name][:, column], np.nan) for name in self._columns]
        return np.column_stack([of_set, *own, *self.of_functions(column).values()])

    def all_columns(self) -> Iterator[Series]:
        return map(self.of_column, range(len(self.prices.symbols)))

    def of_functions(self, column: int) -> dict[str, Series]:
        """Return the features that feature functions compute for one symbol, float64 `[days]`, by name."""
        days, bars = self.bars(column).with_price()
        symbol, unknown = self.prices.symbols[column], np.full(len(self.prices.days), np.nan)
        features: dict[str, Series] = {}
        for function in self.functions:
            if symbol in self.prices.levels:
                features |= dict.fromkeys(function.names, unknown)
                continue
            values = function.features_of(bars, symbol)
            if set(values) != set(function.names):
                raise InputError(
                    f"The feature function '{function.name}' returned {', '.join(values)} for {symbol}, but "
                    f"{', '.join(function.names)} when Eigen tried it on a random walk: return the same names for all "
                    "prices."
                )
            for name in function.names:
                features[name] = unknown.copy()
                features[name][days] = values[name]
        return features

    def bars(self, column: int) -> Bars:
        names = ("open", "high", "low", "close", "volume")
        return Bars(**{name: getattr(self.prices, name)[:, column] for name in names}, dates=self.prices.days)


@dataclass(frozen=True)
class LookAhead:
    """A price or feature of a symbol whose value on a day changed when prices of later days were changed.

    Attributes:
        normalised: only the normalised value changes: its mean or deviation uses days after training.
        files: the symbol's price files; empty if not known.
        day: first day whose value changes (YYYY-MM-DD).
        last_known: last day whose prices were kept; those of later days were cut off or shuffled (`future`).
        symbols: number of symbols whose values of this feature change.
    """

    feature: str
    normalised: bool
    symbol: str
    files: tuple[str, ...]
    day: str
    last_known: str
    future: Future
    symbols: int = 1

    def __str__(self) -> str:
        where = f"{self.symbol} ({', '.join(self.files)})" if self.files else self.symbol
        value = f"normalised {self.feature}" if self.normalised else self.feature
        more = f", and so do values of {self.symbols - 1:,} more symbols" if self.symbols > 1 else ""
        changed = f"changes when the days after {self.last_known} are {self.future}{more}"
        return f"The {value} of {where} on {self.day} {changed}."


def first_changes(
    before: NDArray[Any], after: NDArray[Any], tolerance: Series | float | None = None
) -> NDArray[np.int64]:
    """Return, int64 `[columns]`, the first row in which `before` and `after`, `[rows, columns]`, differ: one is NaN, or
    the difference is over `tolerance` (None: what rounding can cause); -1 if there is none."""
    if tolerance is None:
        # Tolerate rounding, relative to a column's standard deviation or, if it is constant, to its level.
        values = pd.DataFrame(before)
        level = _SMALLEST_DEVIATION * values.mean().abs().to_numpy()
        tolerance = TOLERANCE * np.maximum(values.std(ddof=0).to_numpy(), level)
    known = ~np.isnan(before)
    differs = (known != ~np.isnan(after)) | (np.abs(np.where(known, before - after, 0.0)) > tolerance)
    return np.where(differs.any(axis=0), differs.argmax(axis=0), -1)


def look_ahead_of_functions(features: PanelFeatures) -> tuple[LookAhead, ...]:
    """Test feature functions on a few days of a few symbols; return one finding per feature that has look-ahead."""
    symbols = features.prices.symbols
    columns = np.unique(np.linspace(0, len(symbols) - 1, _CHECKED_COLUMNS).round().astype(np.int64))
    return first_of_each_feature(
        finding
        for function in features.functions
        for column in columns
        for finding in look_ahead_of_function(function, features.bars(column).with_price()[1], symbols[column])
    )


def first_of_each_feature(findings: Iterable[LookAhead]) -> tuple[LookAhead, ...]:
    found: dict[str, list[LookAhead]] = {}
    for finding in findings:
        found.setdefault(finding.feature, []).append(finding)
    return tuple(replace(own[0], symbols=len({finding.symbol for finding in own})) for own in found.values())


def look_ahead_of_function(function: FeatureFunction, bars: Bars, symbol: str) -> Iterator[LookAhead]:
    """Cut off or shuffle the days after a few days of a symbol; yield features that change. None below 30 days."""
    days = len(bars.close)
    if days < _FEWEST_DAYS:
        return
    generator = keyed_generator(0, 0, "market", "look-ahead", f"{function.name} {symbol}")
    whole = function.features_of(bars, symbol)
    for last in generator.integers(_FEWEST_DAYS // 2, days - 1, _CHECKED_DAYS):
        order = np.concatenate([np.arange(last + 1), last + 1 + generator.permutation(days - last - 1)])
        scale = np.where(np.arange(days) > last, np.exp(SHUFFLED_DEVIATION), 1.0)
        prices = {name: getattr(bars, name)[order] * scale for name in ("open", "high", "low", "close", "volume")}
        futures = bars.at(slice(last + 1)), Bars(**prices, dates=bars.dates).at(slice(None))
        for future, changed in zip(FUTURES, futures, strict=True):
            values = function.features_of(changed, symbol)
            for name in [name for name in whole if name in values]:
                day = first_changes(whole[name][: last + 1, None], values[name][: last + 1, None])[0]
                if day >= 0:
                    yield LookAhead(name, False, symbol, (), str(bars.dates[day]), str(bars.dates[last]), future)
