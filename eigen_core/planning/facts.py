"""What a plan needs to know about a panel and about an agent, without a network over the whole panel."""

from dataclasses import dataclass

import numpy as np
import torch

from eigen_core.config import Config
from eigen_core.learners import learner_class
from eigen_core.market.features import feature_names
from eigen_core.market.panel import Panel, Splits
from eigen_core.networks import AgentNetwork


@dataclass(frozen=True)
class PanelFacts:
    """The size of a panel.

    Attributes:
        days, columns, assets, features: its dimensions; `assets` of the columns are tradable.
        mapped: its arrays are mapped from the files of the cache, so that only what is read becomes resident.
    """

    days: int
    columns: int
    assets: int
    features: int
    mapped: bool = True

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
        """The facts of a panel that is not there: its prices have a day's range and a volume, so all features."""
        features = feature_names(config.market.features, has_range=True, has_volume=True)
        return cls(days=days, columns=columns, assets=assets, features=len(features))

    def train_days(self, config: Config) -> int:
        """Days that agents learn from."""
        return len(Splits.of_days(self.days, config.market).train)


def agent_parameters(config: Config, features: int) -> tuple[int, int]:
    """Return how many values of one agent the critic's loss trains, and how many the actor's.

    They depend on the number of features, not on days or columns: the network of a panel of one column says it.
    """
    days = 2
    prices = np.ones((days, 1))
    tiny = Panel(
        features=np.zeros((days, 1, features), dtype=np.float32),
        valid=np.ones((days, 1), dtype=np.bool_),
        open=prices,
        high=prices,
        low=prices,
        close=prices,
        dates=np.arange(days).astype("datetime64[D]"),
        symbols=("one",),
        feature_names=tuple(f"feature{index}" for index in range(features)),
        splits=Splits(range(days), range(days, days), range(days, days)),
        fingerprint="",
    )
    network = AgentNetwork(tiny, config, torch.device("cpu"), learner_class(config.learner).heads(config))
    return network.critic_layout.size, network.actor_layout.size
