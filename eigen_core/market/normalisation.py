"""Features on one scale, learned from train days alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.market.features import Series, carry_forward

LIMIT = 10.0
"""Bound of a normalised feature, in standard deviations."""

FEWEST_DAYS = 60
"""Train days on which a column must know a feature to be normalised by its own mean and deviation."""

_SMALLEST_DEVIATION = 1e-8


@dataclass(frozen=True)
class _Moments:
    """Number, mean and sum of squared deviations of each feature's known values; float64 `[features]` each."""

    count: Series
    mean: Series
    squares: Series

    @classmethod
    def of(cls, values: Series) -> "_Moments":
        known = ~np.isnan(values)
        count = known.sum(axis=0).astype(np.float64)
        mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1.0)
        return cls(count, mean, (np.where(known, values - mean, 0.0) ** 2).sum(axis=0))

    def merged(self, other: "_Moments") -> "_Moments":
        """Moments of both sets of values together (Chan, Golub and LeVeque 1979, "Updating formulae")."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        step = other.mean - self.mean
        return _Moments(count, self.mean + step * share, self.squares + other.squares + step**2 * self.count * share)

    @property
    def deviation(self) -> Series:
        return np.sqrt(self.squares / np.maximum(self.count, 1.0))

    @property
    def sufficient(self) -> NDArray[np.bool_]:
        """Features that are known often enough and vary."""
        return (self.count >= FEWEST_DAYS) & (self.deviation > _SMALLEST_DEVIATION * (1.0 + np.abs(self.mean)))


def normalised(
    column: Callable[[int], Series],
    days: int,
    columns: int,
    features: int,
    train: range,
    progress: Callable[[int], None],
) -> NDArray[np.float32]:
    """Return all features as the panel holds them, float32 `[days, columns, features]`.

    Args:
        column: gives the features of a column, float64 `[days, features]`, NaN where unknown.
        days, columns, features: size of the result.
        train: the days that mean and deviation are taken from.
        progress: called with the number of columns done.

    Each feature of a column has mean 0 and standard deviation 1 over its train days and is cut off at plus or minus
    `LIMIT`. A column that knows the feature on fewer than `FEWEST_DAYS` train days, or always at the same value, takes
    mean and deviation of all columns' train days together. Short gaps are filled by the last known value
    (`carry_forward`); what is unknown is zero.
    """
    result = np.zeros((days, columns, features), dtype=np.float32)
    pooled = _Moments.of(np.full((1, features), np.nan))
    lacking: list[tuple[int, Series, NDArray[np.bool_]]] = []
    for index in range(columns):
        values = column(index)
        moments = _Moments.of(values[train.start : train.stop])
        pooled = pooled.merged(moments)
        carried = carry_forward(values)
        own = moments.sufficient
        result[:, index, own] = _scaled(carried[:, own], moments.mean[own], moments.deviation[own])
        if not own.all():
            lacking.append((index, carried[:, ~own], ~own))
        progress(index + 1)
    for index, values, missing in lacking:
        spread = np.where(pooled.deviation > _SMALLEST_DEVIATION, pooled.deviation, 1.0)
        result[:, index, missing] = _scaled(values, pooled.mean[missing], spread[missing])
    return result


def _scaled(values: Series, mean: Series, deviation: Series) -> NDArray[np.float32]:
    scaled = np.clip((values - mean) / deviation, -LIMIT, LIMIT)
    return np.where(np.isnan(scaled), 0.0, scaled).astype(np.float32)
