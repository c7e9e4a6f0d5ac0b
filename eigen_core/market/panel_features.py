"""All features of a panel: those computed from prices, the data's own columns, and registered functions."""

from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.cleaning import CleanPrices
from eigen_core.market.features import Bars, Series, column_features, feature_names
from eigen_core.market.own_features import FeatureFunction, feature_functions, uses_columns


@dataclass(frozen=True)
class PanelFeatures:
    """The features of each column, before normalisation.

    Attributes:
        prices: what they are computed from.
        market: which of them.
        functions: the registered functions, with the names of the features of each.
        columns: names of the data's columns that are features.
    """

    prices: CleanPrices
    market: MarketConfig
    functions: tuple[tuple[FeatureFunction, tuple[str, ...]], ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, prices: CleanPrices, market: MarketConfig) -> Self:
        """Return the features that `market` names.

        Raises:
            InputError: a function is not registered or fails, the data has no numeric column beside prices though
                `market` names them, or two features have the same name.
        """
        columns = tuple(prices.own) if uses_columns(market) else ()
        if uses_columns(market) and not columns:
            raise InputError(
                "market.features or market.own_features names columns, but the data has no numeric column beside date, "
                "symbol, prices and volume: add one to each file, or name other features."
            )
        functions = tuple((function, function.names()) for function in feature_functions(market))
        features = cls(prices, market, functions, columns)
        repeated = [name for name, count in Counter(features.names).items() if count > 1]
        if repeated:
            raise InputError(f"Several features are called '{repeated[0]}': rename the column or the function.")
        return features

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all features, in their order: those of the set, the data's columns, the functions'."""
        of_set = feature_names(self.market.features, self.prices.has_range, self.prices.has_volume)
        return (*of_set, *self.own_names)

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the data's columns and of the functions' features."""
        return (*self.columns, *(name for _, names in self.functions for name in names))

    def of_column(self, column: int) -> Series:
        """Return the features of one column, float64 `[days, features]`, NaN where unknown and on days without a price.

        Raises:
            InputError: a function fails, or does not return one number a day under the names it has for others.
        """
        bars, prices = self.bars(column), self.prices
        of_set = column_features(bars, self.market.features, prices.has_range, prices.has_volume)
        priced = ~np.isnan(bars.close)
        own = [np.where(priced, prices.own[name][:, column], np.nan) for name in self.columns]
        own += self.of_functions(column).values()
        return np.column_stack([of_set, *own])

    def of_functions(self, column: int) -> dict[str, Series]:
        """Return the functions' features of one column by name, float64 `[days]`; see `of_column`."""
        days, bars = self.bars(column).with_price()
        features: dict[str, Series] = {}
        for function, names in self.functions:
            values = _under(names, function, bars, self.prices.symbols[column])
            for name in names:
                features[name] = np.full(len(self.prices.days), np.nan)
                features[name][days] = values[name]
        return features

    def bars(self, column: int) -> Bars:
        """Return the prices of one column."""
        prices = self.prices
        opened, high, low, close, volume = (
            grid[:, column] for grid in (prices.open, prices.high, prices.low, prices.close, prices.volume)
        )
        return Bars(opened, high, low, close, volume, prices.days)


def _under(names: tuple[str, ...], function: FeatureFunction, bars: Bars, symbol: str) -> dict[str, Series]:
    values = function.features_of(bars, symbol)
    if set(values) != set(names):
        raise InputError(
            f"The feature function '{function.name}' returned {', '.join(values)} for {symbol}, but "
            f"{', '.join(names)} for others: return the same names for every symbol."
        )
    return values
