"""Look-ahead: later days are cut off or shuffled, and no value of an earlier day may change."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.market.days import PriceRows
from eigen_core.market.features import Bars, FeatureFunction, PanelFeatures, Series
from eigen_core.randomness import keyed_generator

Values = NDArray[Any]
Future = Literal["cut off", "shuffled"]
FUTURES: tuple[Future, ...] = ("cut off", "shuffled")

TOLERANCE = 1e-8
"""Changes of a feature up to this share of its standard deviation are rounding: a panel's float32 hold none of them."""

_SMALLEST_DEVIATION, _SHUFFLED_DEVIATION = 1e-6, 0.2
_CHECKED_COLUMNS, _CHECKED_DAYS, _FEWEST_DAYS = 8, 3, 30


@dataclass(frozen=True)
class LookAhead:
    """A value that changes with later days.

    Attributes:
        feature: its name, or `open`, `high`, `low` or `close` for a price of the panel.
        normalised: the value changes only once it is normalised: mean or deviation take days after training.
        day: the first day whose value changes, as YYYY-MM-DD.
        last_known: the last day that was left as it was; later ones were cut off or shuffled (`future`).
        symbols: number of symbols of which a value changes, on any of the days tried.
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


def first_changes(before: Values, after: Values, tolerance: Values | float | None = None) -> NDArray[np.int64]:
    """Return the first row in which each column differs by more than `tolerance`, or only one is NaN; -1 if none.

    None: more than rounding, relative to a column's standard deviation or, where it is constant, to its level.
    """
    if tolerance is None:
        values = pd.DataFrame(before)
        level = _SMALLEST_DEVIATION * values.mean().abs().to_numpy()
        tolerance = TOLERANCE * np.maximum(values.std(ddof=0).to_numpy(), level)
    known = ~np.isnan(before)
    differs = (known != ~np.isnan(after)) | (np.abs(np.where(known, before - after, 0.0)) > tolerance)
    return np.where(differs.any(axis=0), differs.argmax(axis=0), -1)


def rows_with_future(rows: PriceRows, last_known: np.datetime64, future: Future) -> PriceRows:
    """Return rows whose days after `last_known` are cut off, or are those of other days of their symbol, scaled."""
    if future == "cut off":
        return rows.between(None, str(last_known))
    generator = keyed_generator(0, 0, "market", "look-ahead", str(last_known))
    later = np.flatnonzero(rows.days > last_known)
    number = (rows.days[later] - last_known).astype(np.int64)
    # Rows of one symbol and day stay alike.
    key = rows.codes[later] * (number.max(initial=0) + 1) + number
    _, first, own = np.unique(key, return_index=True, return_inverse=True)
    taken = later[first][np.lexsort((generator.random(len(first)), rows.codes[later[first]]))]
    scale = np.exp(_SHUFFLED_DEVIATION * generator.standard_normal(len(first)))

    def shuffled(values: Series) -> Series:
        changed = values.copy()
        changed[later] = (values[taken] * scale)[own]
        return changed

    prices = {role: shuffled(values) for role, values in rows.prices.items()}
    return replace(rows, prices=prices, own={name: shuffled(values) for name, values in rows.own.items()})


def look_ahead_of_functions(features: PanelFeatures) -> tuple[LookAhead, ...]:
    """Return the look-ahead of registered functions, one finding a feature, on a few days of a few symbols."""
    symbols = features.prices.symbols
    columns = np.unique(np.linspace(0, len(symbols) - 1, _CHECKED_COLUMNS).round().astype(np.int64))
    return first_of_each_feature(
        finding
        for function in features.functions
        for column in columns
        for finding in look_ahead_of_function(function, features.bars(column).with_price()[1], symbols[column])
    )


def first_of_each_feature(findings: Iterable[LookAhead]) -> tuple[LookAhead, ...]:
    """Return the first finding of each feature, with the number of symbols that it was found for."""
    found: dict[str, list[LookAhead]] = {}
    for finding in findings:
        found.setdefault(finding.feature, []).append(finding)
    return tuple(replace(own[0], symbols=len({finding.symbol for finding in own})) for own in found.values())


def look_ahead_of_function(function: FeatureFunction, bars: Bars, symbol: str) -> Iterator[LookAhead]:
    """Yield the look-ahead of a function on a few days of a symbol's own; none if there are fewer than 30 of them."""
    days = len(bars.close)
    if days < _FEWEST_DAYS:
        return
    generator = keyed_generator(0, 0, "market", "look-ahead", f"{function.name} {symbol}")
    whole = function.features_of(bars, symbol)
    for last in generator.integers(_FEWEST_DAYS // 2, days - 1, _CHECKED_DAYS):
        order = np.concatenate([np.arange(last + 1), last + 1 + generator.permutation(days - last - 1)])
        scale = np.where(np.arange(days) > last, np.exp(_SHUFFLED_DEVIATION), 1.0)
        prices = {name: getattr(bars, name)[order] * scale for name in ("open", "high", "low", "close", "volume")}
        futures = bars.at(slice(last + 1)), Bars(**prices, dates=bars.dates).at(slice(None))
        for future, changed in zip(FUTURES, futures, strict=True):
            values = function.features_of(changed, symbol)
            for name in [name for name in whole if name in values]:
                day = first_changes(whole[name][: last + 1, None], values[name][: last + 1, None])[0]
                if day >= 0:
                    yield LookAhead(name, False, symbol, (), str(bars.dates[day]), str(bars.dates[last]), future)
