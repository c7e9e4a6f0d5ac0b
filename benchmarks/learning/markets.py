"""Markets whose edge is known, and what an oracle knows of each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices
from eigen_core.market.resampled import prices_fingerprint
from eigen_core.market.synthetic import random_walk_prices
from eigen_core.trading.planted import planted_signal, with_planted_edge

DAYS, ASSETS = 4_752, 20
HOLDOUT_DAYS = 1_500


@dataclass(frozen=True)
class MarketKind:
    """What distinguishes a market.

    Attributes:
        holding_days: of a position (days).
        factor: whether assets have a part of their returns in common.
    """

    holding_days: int = 20
    factor: bool = False


MARKETS = {
    "plain": MarketKind(),
    "factor": MarketKind(factor=True),
}


@dataclass(frozen=True)
class KnownMarket:
    """A market and its edge.

    Attributes:
        panel: what agents observe and trade.
        signal: what an oracle ranks assets by after the close of a day, float64 `[days, assets]`.
    """

    panel: Panel
    signal: NDArray[np.float64]


def known_market(
    kind: MarketKind, config: Config, edge: float, seed: int, days: int = DAYS, assets: int = ASSETS
) -> KnownMarket:
    """Return a market in which a feature's information coefficient with the coming returns is `edge`.

    Args:
        kind: the market.
        config: features, days and trading rules.
        edge: the information coefficient, from 0 to 1; 0: the feature is noise.
        seed: of prices and feature.
        days, assets: size.
    """
    prices = random_walk_prices(days, assets, seed, kind.factor)
    panel = panel_of_clean_prices(prices, config.market, prices_fingerprint(prices))
    signal = planted_signal(panel, config.trading, edge, seed)
    return KnownMarket(with_planted_edge(panel, config.trading, edge, seed), signal)
