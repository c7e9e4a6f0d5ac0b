"""The size of a panel: all that a memory plan must know of it."""

from dataclasses import dataclass

import numpy as np

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.market.features import feature_names
from eigen_core.market.own_features import feature_functions, uses_columns
from eigen_core.market.panel import Panel, Splits


@dataclass(frozen=True)
class PanelFacts:
    """The size of a panel.

    Attributes:
        days, columns, assets, features: its dimensions; `assets` of the columns are tradable.
        mapped: its arrays are mapped from the files of the cache, so that only what is read becomes resident.
        held_days: most days from a decision to its sale, where sales wait for a price; None: `trading.holding_days`.
    """

    days: int
    columns: int
    assets: int
    features: int
    mapped: bool = True
    held_days: int | None = None

    @classmethod
    def of(cls, panel: Panel) -> "PanelFacts":
        """The facts of a panel; nothing of its arrays is read."""
        return cls(
            days=panel.days,
            columns=panel.columns,
            assets=panel.assets,
            features=len(panel.feature_names),
            mapped=isinstance(panel.features, np.memmap),
        )

    @classmethod
    def of_shape(cls, config: Config, days: int, columns: int, assets: int) -> "PanelFacts":
        """The facts of a panel that is not there: its prices have a day's range and a volume, so all features.

        Raises:
            InputError: features are columns of the data, whose number nothing says, or a function cannot be used.
        """
        market = config.market
        if uses_columns(market):
            raise InputError(
                "How many of the data's columns are features is not known without the data: plan with the data, or "
                "leave columns out of market.features and market.own_features."
            )
        features = len(feature_names(market.features, has_range=True, has_volume=True))
        features += sum(len(function.names()) for function in feature_functions(market))
        return cls(days=days, columns=columns, assets=assets, features=features)

    def train_days(self, config: Config) -> int:
        """Days that agents learn from."""
        return len(Splits.of_days(self.days, config.market).train)

    def block_days(self, config: Config) -> int:
        """Days of the blocks that batches are drawn from, where an encoder computes whole blocks."""
        train_days = self.train_days(config)
        return min(config.learner.block_days or train_days, train_days)

    def __str__(self) -> str:
        """The size in words."""
        return (
            f"{self.days:,} days, {self.columns:,} columns, {self.assets:,} of them tradable, {self.features} features"
        )
