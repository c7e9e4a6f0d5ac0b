"""Indicators of one column: what is known of it on the evening of each day, and nothing later.

All of them are computed on the column's own days, those with a price, one after the other; a gap is no day. No value
depends on how long the series goes on after its day.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import talib
from numpy.typing import NDArray

FeatureSet = Literal["returns", "classic", "columns"]
Series = NDArray[np.float64]

CARRIED_DAYS = 10
"""Days without a price for which a column's last features still stand; after them they are unknown. Without a bound, a
series that has ended would seem to continue; that it has ended is known only later."""

_RETURN_DAYS = (1, 5, 20, 60, 120)
_VOLATILITY_DAYS = (20, 60)
_MEAN_DAYS = (20, 60, 200)
_VOLUME_DAYS = 60
_RSI_DAYS, _TRIX_DAYS = 14, 30
_MACD_DAYS = (12, 26, 9)


@dataclass(frozen=True)
class Bars:
    """The prices of one column.

    Attributes:
        open, high, low, close, volume: float64 `[days]`; `close` NaN where there is no price, `high` and `low` known
            wherever `close` is, `open` and `volume` NaN where unknown.
        dates: datetime64[D] `[days]`, increasing.
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


def feature_names(feature_set: FeatureSet, has_range: bool, has_volume: bool) -> tuple[str, ...]:
    """Return the names of the features that are computed from prices, in their order; `columns` has none.

    Args:
        feature_set: `config.market.features`.
        has_range: the source has highs and lows; without them a day's range is no feature.
        has_volume: the source has volumes.
    """
    return tuple(_recipes(feature_set, has_range, has_volume))


def column_features(bars: Bars, feature_set: FeatureSet, has_range: bool, has_volume: bool) -> Series:
    """Compute the features of one column, before normalisation.

    Returns:
        float64 `[days, features]`, NaN where unknown: on days without a price, and while an indicator warms up.

    `classic`: open (the close where there is no open), close, high, low, RSI over 14 days, MACD 12/26 and its 9-day
    signal, TRIX over 30 days, distance to the 20-day mean (close / mean - 1).

    `returns`, free of the price level: log returns over 1, 5, 20, 60 and 120 days, range (high - low) / close,
    standard deviation of the daily log return over 20 and 60 days, RSI / 100 - 0.5, MACD and signal / close, distance
    to the 20-, 60- and 200-day means, and how many standard deviations the logarithm of the volume lies above its
    60-day mean.

    RSI, MACD, TRIX and means are TA-Lib's (Wilder's smoothing and exponential means begin with the series).
    """
    recipes = _recipes(feature_set, has_range, has_volume)
    values = np.full((len(bars.close), len(recipes)), np.nan)
    days, own = bars.with_price()
    if not days.size:
        return values
    shared = _Indicators(own)
    for position, recipe in enumerate(recipes.values()):
        values[days, position] = recipe(own, shared)
    return values


def carry_forward(values: Series, days: int = CARRIED_DAYS) -> Series:
    """Fill unknown values of `[days, features]` with the last known one if it is at most `days` days old."""
    row = np.arange(len(values))[:, None]
    last = np.where(np.isnan(values), -1, row)
    np.maximum.accumulate(last, axis=0, out=last)
    carried = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    return np.where((last >= 0) & (row - last <= days), carried, np.nan)


class _Indicators:
    """What several features of one column share, on the column's own days."""

    def __init__(self, bars: Bars) -> None:
        # Relative to the first close, so that no threshold inside an indicator depends on the price level.
        self.close = bars.close / bars.close[0]
        self.log_close = np.log(bars.close)
        self.daily = np.full(len(bars.close), np.nan)
        self.daily[1:] = np.diff(self.log_close)
        self.macd, self.signal, _ = talib.MACD(self.close, *_MACD_DAYS)


_Recipe = Callable[[Bars, _Indicators], Series]


def _recipes(feature_set: FeatureSet, has_range: bool, has_volume: bool) -> Mapping[str, _Recipe]:
    if feature_set == "columns":
        return {}
    if feature_set == "classic":
        return _CLASSIC
    recipes: dict[str, _Recipe] = {f"log_return_{days}": _log_return(days) for days in _RETURN_DAYS}
    if has_range:
        recipes["range"] = lambda bars, _: (bars.high - bars.low) / bars.close
    recipes |= {f"volatility_{days}": _volatility(days) for days in _VOLATILITY_DAYS}
    recipes["rsi"] = lambda _, shared: _relative_strength(shared.close)
    recipes["macd"] = lambda _, shared: shared.macd / shared.close
    recipes["macd_signal"] = lambda _, shared: shared.signal / shared.close
    recipes |= {f"mean_distance_{days}": _mean_distance(days) for days in _MEAN_DAYS}
    if has_volume:
        recipes["volume"] = lambda bars, _: _volume_score(bars.volume)
    return recipes


def _log_return(days: int) -> _Recipe:
    def recipe(_: Bars, shared: _Indicators) -> Series:
        result = np.full(len(shared.log_close), np.nan)
        result[days:] = shared.log_close[days:] - shared.log_close[:-days]
        return result

    return recipe


def _volatility(days: int) -> _Recipe:
    def recipe(_: Bars, shared: _Indicators) -> Series:
        result = np.full(len(shared.daily), np.nan)
        result[1:] = _rolling_mean_and_deviation(shared.daily[1:], days)[1]
        return result

    return recipe


def _mean_distance(days: int) -> _Recipe:
    def recipe(_: Bars, shared: _Indicators) -> Series:
        distance: Series = shared.close / talib.SMA(shared.close, days) - 1.0
        return distance

    return recipe


def _relative_strength(close: Series) -> Series:
    strength: Series = talib.RSI(close, _RSI_DAYS) / 100.0 - 0.5
    # TA-Lib calls a price that has never moved as weak as one that has only fallen.
    has_moved = np.logical_or.accumulate(close != close[0])
    return np.where(has_moved | np.isnan(strength), strength, 0.0)


def _volume_score(volume: Series) -> Series:
    known = np.flatnonzero(~np.isnan(volume))
    amount = np.log1p(volume[known])
    mean, deviation = _rolling_mean_and_deviation(amount, _VOLUME_DAYS)
    result = np.full(len(volume), np.nan)
    result[known] = (amount - mean) / np.maximum(deviation, 1e-6)
    return result


def _rolling_mean_and_deviation(values: Series, days: int) -> tuple[Series, Series]:
    """Mean and standard deviation of the last `days` values, NaN before there are as many.

    Summed value by value in the same order for each window: a running sum would carry the rounding of large values
    along for ever.
    """
    mean, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    windows = len(values) - days + 1
    if windows < 1:
        return mean, deviation
    total = np.zeros(windows)
    for offset in range(days):
        total += values[offset : offset + windows]
    mean[days - 1 :] = total / days
    squares = np.zeros(windows)
    for offset in range(days):
        squares += (values[offset : offset + windows] - mean[days - 1 :]) ** 2
    deviation[days - 1 :] = np.sqrt(squares / days)
    return mean, deviation


def _macd_of_prices(bars: Bars) -> tuple[Series, Series]:
    macd, signal, _ = talib.MACD(bars.close, *_MACD_DAYS)
    return macd, signal


_CLASSIC: Mapping[str, _Recipe] = {
    "open": lambda bars, _: np.where(np.isnan(bars.open), bars.close, bars.open),
    "close": lambda bars, _: bars.close,
    "high": lambda bars, _: bars.high,
    "low": lambda bars, _: bars.low,
    "rsi": lambda bars, _: talib.RSI(bars.close, _RSI_DAYS),
    "macd": lambda bars, _: _macd_of_prices(bars)[0],
    "macd_signal": lambda bars, _: _macd_of_prices(bars)[1],
    "trix": lambda bars, _: talib.TRIX(bars.close, _TRIX_DAYS),
    "mean_distance_20": lambda bars, _: bars.close / talib.SMA(bars.close, 20) - 1.0,
}
