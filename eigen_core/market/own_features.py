"""Feature functions that other packages register, as entry points of the group `eigen.features`."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np
from numpy.typing import ArrayLike

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.features import Bars, Series
from eigen_core.randomness import keyed_generator

GROUP = "eigen.features"
"""Group of the entry points."""

COLUMNS = "columns"
"""Name in `market.own_features` that stands for the numeric columns of the data."""

_RESERVED = ("returns", "classic", COLUMNS)
_SHAPE_DAYS = 400

OwnFunction = Callable[[Bars], ArrayLike | Mapping[str, ArrayLike]]
"""A feature function: the bars of one symbol's own days, those with a price, to one value a day, or several by name.

It must give each day what is known on its evening: `eigen audit` says whether it does. What is not finite is unknown.
The arrays of the bars cannot be written to.
"""


@dataclass(frozen=True)
class FeatureFunction:
    """A registered function; its features are called `name`, or `name.key` where it returns several by key."""

    name: str
    compute: OwnFunction

    def features_of(self, bars: Bars, symbol: str) -> dict[str, Series]:
        """Return the features of a symbol by name, float64 `[days]`, NaN where unknown.

        Args:
            bars: of its own days.
            symbol: for messages.

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
            return {f"{self.name}.{key}": self._series(values, bars, symbol) for key, values in returned.items()}
        return {self.name: self._series(returned, bars, symbol)}

    def names(self) -> tuple[str, ...]:
        """Return the names of its features, which it is called for with bars of a random walk."""
        return tuple(self.features_of(_random_walk(), "a random walk"))

    def _series(self, values: ArrayLike, bars: Bars, symbol: str) -> Series:
        series = np.asarray(values)
        if series.shape != bars.close.shape or series.dtype.kind not in "biuf":
            raise InputError(
                f"The feature function '{self.name}' returned {series.dtype} values of shape {series.shape} for the "
                f"{len(bars.close):,} days of {symbol}: return one number a day, or a mapping of such arrays."
            )
        numbers = series.astype(np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)


def uses_columns(market: MarketConfig) -> bool:
    """Whether the numeric columns of the data are features."""
    return COLUMNS in (market.features, *market.own_features)


def feature_functions(market: MarketConfig) -> tuple[FeatureFunction, ...]:
    """Return the functions that `market.own_features` names.

    Raises:
        InputError: a name is not registered, is registered several times, or its function cannot be imported.
    """
    names = dict.fromkeys(name for name in market.own_features if name != COLUMNS)
    return tuple(FeatureFunction(name, _registered(name)) for name in names)


def _registered(name: str) -> OwnFunction:
    if name in _RESERVED:
        raise InputError(f"market.own_features names '{name}', which is a feature set: write market.features={name}.")
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        known = sorted({point.name for point in entry_points(group=GROUP)})
        raise InputError(
            f"market.own_features names '{name}', but no installed package registers it as an entry point of "
            f"{GROUP}; {'registered: ' + _listed(known) if known else 'none is registered'}."
        )
    if len(found) > 1:
        raise InputError(
            f"market.own_features names '{name}', which several entry points of {GROUP} are called "
            f"({_listed(sorted(found))}): rename one of them."
        )
    (point,) = found.values()
    try:
        function: object = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"The feature function '{name}' ({point.value}) cannot be imported: {error}.") from error
    if not callable(function):
        raise InputError(f"The entry point '{name}' of {GROUP} ({point.value}) is no function: register a function.")
    return function


def _random_walk() -> Bars:
    steps = keyed_generator(0, 0, "market", "own features", "names").standard_normal(_SHAPE_DAYS)
    close = 100.0 * np.exp(np.cumsum(0.01 * steps))
    dates = np.busday_offset("2000-01-03", np.arange(_SHAPE_DAYS), roll="forward")
    return Bars(close, close * 1.01, close * 0.99, close, np.full(_SHAPE_DAYS, 1e6), dates).at(slice(None))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
