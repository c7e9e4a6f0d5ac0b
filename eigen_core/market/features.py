"""Features of each column: computed from prices, columns of the data, and registered functions.

A feature is known on the evening of its day. All of them are computed on a column's own days, those with a price, one
after the other; a gap is no day. No value depends on how long the series goes on after its day.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Literal, Self

import numpy as np
import pandas as pd
import talib
from numpy.typing import ArrayLike, NDArray

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.cleaning import CleanPrices
from eigen_core.randomness import keyed_generator

FeatureSet = Literal["returns", "classic", "columns"]
Series = NDArray[np.float64]

GROUP = "eigen.features"
"""Group of the entry points of feature functions."""

COLUMNS = "columns"
"""Name in `market.own_features` that stands for the numeric columns of the data."""

CARRIED_DAYS = 10
"""Days without a price for which a column's last features still stand; after them they are unknown. Without a bound, a
series that has ended would seem to continue; that it has ended is known only later."""

_RETURN_DAYS = (1, 5, 20, 60, 120)
_VOLATILITY_DAYS = (20, 60)
_MEAN_DAYS = (20, 60, 200)
_VOLUME_DAYS = 60
_RSI_DAYS, _TRIX_DAYS = 14, 30
_MACD_DAYS = (12, 26, 9)
_SAMPLE_DAYS = 400


@dataclass(frozen=True)
class Bars:
    """The prices of one column, float64 `[days]`; `dates` are datetime64[D], increasing.

    `close` is NaN where there is no price, `high` and `low` are known wherever it is, `open` and `volume` are NaN where
    unknown.
    """

    open: Series
    high: Series
    low: Series
    close: Series
    volume: Series
    dates: NDArray[np.datetime64]

    def at(self, days: "NDArray[np.intp] | slice") -> "Bars":
        """Return the bars of some days, as arrays of their own that cannot be written to."""
        chosen = {field.name: np.array(getattr(self, field.name)[days]) for field in fields(self)}
        for array in chosen.values():
            array.setflags(write=False)
        return Bars(**chosen)

    def with_price(self) -> tuple[NDArray[np.intp], "Bars"]:
        """Return the column's own days, those with a price, and the bars of these."""
        days = np.flatnonzero(~np.isnan(self.close))
        return days, self.at(days)


def _returns(bars: Bars) -> dict[str, Series]:
    """Return features that are free of the price level.

    RSI, MACD, TRIX and means are TA-Lib's (Wilder's smoothing and exponential means begin with the series). `volume` is
    by how many standard deviations the logarithm of the volume lies above its 60-day mean.
    """
    # Relative to the first close, so that no threshold inside an indicator depends on the price level.
    close, log_close = bars.close / bars.close[0], np.log(bars.close)
    macd, signal, _ = talib.MACD(close, *_MACD_DAYS)
    strength = talib.RSI(close, _RSI_DAYS) / 100.0 - 0.5
    # TA-Lib calls a price that has never moved as weak as one that has only fallen.
    has_moved = np.logical_or.accumulate(close != close[0])
    moves = {days: _rolling_moments(_changes(log_close, 1)[1:], days)[1] for days in _VOLATILITY_DAYS}
    traded = ~np.isnan(bars.volume)
    amount, score = np.log1p(bars.volume[traded]), np.full(len(close), np.nan)
    mean, deviation = _rolling_moments(amount, _VOLUME_DAYS)
    score[traded] = (amount - mean) / np.maximum(deviation, 1e-6)
    return {
        **{f"log_return_{days}": _changes(log_close, days) for days in _RETURN_DAYS},
        "range": (bars.high - bars.low) / bars.close,
        **{f"volatility_{days}": np.insert(values, 0, np.nan) for days, values in moves.items()},
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
    "columns": lambda _: {},
}


@cache
def feature_names(feature_set: FeatureSet, has_range: bool, has_volume: bool) -> tuple[str, ...]:
    """Return the names of the features of a set; without highs and lows no `range`, without volumes no `volume`."""
    missing = {name for name, known in (("range", has_range), ("volume", has_volume)) if not known}
    return tuple(name for name in _SETS[feature_set](_sample_bars()) if name not in missing)


def column_features(bars: Bars, feature_set: FeatureSet, has_range: bool, has_volume: bool) -> Series:
    """Return the features of one column before normalisation, float64 `[days, features]`.

    They are NaN on days without a price, and while an indicator warms up.
    """
    names = feature_names(feature_set, has_range, has_volume)
    values = np.full((len(bars.close), len(names)), np.nan)
    days, own = bars.with_price()
    if days.size and names:
        computed = _SETS[feature_set](own)
        values[days] = np.column_stack([computed[name] for name in names])
    return values


def carry_forward(values: Series, days: int = CARRIED_DAYS) -> Series:
    """Fill unknown values of `[days, features]` with the last known one if it is at most `days` days old."""
    return pd.DataFrame(values).ffill(limit=days).to_numpy()


def _changes(values: Series, days: int) -> Series:
    changes = np.full(len(values), np.nan)
    changes[days:] = values[days:] - values[:-days]
    return changes


def _rolling_moments(values: Series, days: int) -> tuple[Series, Series]:
    """Return mean and standard deviation of the last `days` values, NaN before there are as many."""
    mean, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    windows = len(values) - days + 1
    if windows > 0:
        # In the same order for each window: a running sum would carry the rounding of large values along for ever.
        parts = [values[offset : offset + windows] for offset in range(days)]
        mean[days - 1 :] = sum(parts, np.zeros(windows)) / days
        squares = ((part - mean[days - 1 :]) ** 2 for part in parts)
        deviation[days - 1 :] = np.sqrt(sum(squares, np.zeros(windows)) / days)
    return mean, deviation


def _sample_bars() -> Bars:
    """Return a random walk, for the names of features."""
    steps = keyed_generator(0, 0, "market", "own features", "names").standard_normal(_SAMPLE_DAYS)
    close = 100.0 * np.exp(np.cumsum(0.01 * steps))
    dates = np.busday_offset("2000-01-03", np.arange(_SAMPLE_DAYS), roll="forward")
    return Bars(close, close * 1.01, close * 0.99, close, np.full(_SAMPLE_DAYS, 1e6), dates).at(slice(None))


FeatureValues = Callable[[Bars], ArrayLike | Mapping[str, ArrayLike]]
"""A feature function: the bars of one symbol's own days, those with a price, to one value a day, or several by name.

It must give each day what is known on its evening: `eigen audit` says whether it does. What is not finite is unknown.
The arrays of the bars cannot be written to.
"""


@dataclass(frozen=True)
class FeatureFunction:
    """A registered function; its features are called `name`, or `name.key` where it returns several by key."""

    name: str
    compute: FeatureValues

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its features: it is called with bars of a random walk."""
        return tuple(self.features_of(_sample_bars(), "a random walk"))

    def features_of(self, bars: Bars, symbol: str) -> dict[str, Series]:
        """Return the features of a symbol's own days by name, float64 `[days]`, NaN where unknown.

        Raises:
            InputError: the function fails, or does not return one number a day.
        """
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
                    f"the {len(bars.close):,} days of {symbol}: return one number a day, or a mapping of such arrays."
                )
            numbers = series.astype(np.float64)
            features[name] = np.where(np.isfinite(numbers), numbers, np.nan)
        return features


def uses_columns(market: MarketConfig) -> bool:
    """Return whether the numeric columns of the data are features."""
    return COLUMNS in (market.features, *market.own_features)


def feature_functions(market: MarketConfig) -> tuple[FeatureFunction, ...]:
    """Return the functions that `market.own_features` names; raise `InputError` if one is not there or not unique."""
    names = dict.fromkeys(name for name in market.own_features if name != COLUMNS)
    return tuple(FeatureFunction(name, _registered_function(name)) for name in names)


def _registered_function(name: str) -> FeatureValues:
    if name in _SETS:
        raise InputError(f"market.own_features names '{name}', which is a feature set: write market.features={name}.")
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        known = sorted({point.name for point in entry_points(group=GROUP)})
        raise InputError(
            f"market.own_features names '{name}', but no installed package registers it as an entry point of "
            f"{GROUP}; {'registered: ' + ', '.join(known) if known else 'none is registered'}."
        )
    if len(found) > 1:
        raise InputError(
            f"market.own_features names '{name}', which several entry points of {GROUP} are called "
            f"({', '.join(sorted(found))}): rename one of them."
        )
    (point,) = found.values()
    try:
        function: object = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"The feature function '{name}' ({point.value}) cannot be imported: {error}.") from error
    if not callable(function):
        raise InputError(f"The entry point '{name}' of {GROUP} ({point.value}) is no function: register a function.")
    return function


@dataclass(frozen=True)
class PanelFeatures:
    """The features of each column of prices before normalisation: those that `market` names."""

    prices: CleanPrices
    market: MarketConfig
    functions: tuple[FeatureFunction, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, prices: CleanPrices, market: MarketConfig) -> Self:
        """Return the features that `market` names.

        Raises:
            InputError: a function is not registered or fails, the data lacks columns that are named, or names repeat.
        """
        columns = tuple(prices.own) if uses_columns(market) else ()
        if uses_columns(market) and not columns:
            raise InputError(
                "market.features or market.own_features names columns, but the data has no numeric column beside date, "
                "symbol, prices and volume: add one to each file, or name other features."
            )
        features = cls(prices, market, feature_functions(market), columns)
        repeated = [name for name, count in Counter(features.names).items() if count > 1]
        if repeated:
            raise InputError(f"Several features are called '{repeated[0]}': rename the column or the function.")
        return features

    @property
    def names(self) -> tuple[str, ...]:
        of_set = feature_names(self.market.features, self.prices.has_range, self.prices.has_volume)
        return (*of_set, *self.own_names)

    @property
    def own_names(self) -> tuple[str, ...]:
        return (*self.columns, *(name for function in self.functions for name in function.names))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Days, columns, features."""
        return (*self.prices.close.shape, len(self.names))

    def of_column(self, column: int) -> Series:
        """Return the features of one column, float64 `[days, features]`, NaN where unknown and on days without a price.

        Raises:
            InputError: a function fails, or does not return one number a day under the names it has for others.
        """
        bars, prices = self.bars(column), self.prices
        of_set = column_features(bars, self.market.features, prices.has_range, prices.has_volume)
        priced = ~np.isnan(bars.close)
        own = [np.where(priced, prices.own[name][:, column], np.nan) for name in self.columns]
        return np.column_stack([of_set, *own, *self.of_functions(column).values()])

    def all_columns(self) -> Iterator[Series]:
        """Yield the features of each column; see `of_column`."""
        return map(self.of_column, range(len(self.prices.symbols)))

    def of_functions(self, column: int) -> dict[str, Series]:
        """Return the functions' features of one column by name, float64 `[days]`; see `of_column`."""
        days, bars = self.bars(column).with_price()
        features: dict[str, Series] = {}
        for function in self.functions:
            values = function.features_of(bars, self.prices.symbols[column])
            if set(values) != set(function.names):
                raise InputError(
                    f"The feature function '{function.name}' returned {', '.join(values)} for "
                    f"{self.prices.symbols[column]}, but {', '.join(function.names)} for others: return the same names "
                    "for every symbol."
                )
            for name in function.names:
                features[name] = np.full(len(self.prices.days), np.nan)
                features[name][days] = values[name]
        return features

    def bars(self, column: int) -> Bars:
        """Return the prices of one column."""
        names = ("open", "high", "low", "close", "volume")
        return Bars(**{name: getattr(self.prices, name)[:, column] for name in names}, dates=self.prices.days)
