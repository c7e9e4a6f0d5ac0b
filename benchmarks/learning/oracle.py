"""An oracle that ranks assets by the signal that was planted, with a tuned threshold and sale target."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.learning.markets import KnownMarket
from eigen_core.config import Config
from eigen_core.learning.method import spread_starts
from eigen_core.trading import EpisodeSummary, Prices, TradingEnvironment

THRESHOLDS = (-10.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)
_TUNING_EPISODES = 30
_TARGETS = 4


@dataclass(frozen=True)
class Oracle:
    """Buys the free assets with the highest signals, as much as is allowed, where a signal reaches a threshold.

    Attributes:
        threshold: smallest signal that is bought (standard deviations over the assets of a day).
        target: sale target (a fraction).
    """

    threshold: float
    target: float


def tuned_oracle(market: KnownMarket, config: Config) -> Oracle:
    """Return the oracle that earns most in training episodes."""
    starts = spread_starts(market.panel.training_starts(config), _TUNING_EPISODES)
    targets = np.linspace(config.trading.min_target, config.trading.max_target, _TARGETS).tolist()
    oracles = [Oracle(threshold, target) for threshold, target in product(THRESHOLDS, targets)]
    rewards = play_oracles(oracles, market, config, starts).reward.reshape(len(oracles), -1).mean(dim=1)
    return oracles[int(rewards.argmax())]


def play_oracles(
    oracles: Sequence[Oracle], market: KnownMarket, config: Config, starts: NDArray[np.int64]
) -> EpisodeSummary:
    """Return the account of an episode of each oracle from each start, oracles first: `[oracles * starts]`."""
    trading = config.trading.model_copy(update={"observe_portfolio": True})
    environment = TradingEnvironment(Prices.of_panel(market.panel, torch.device("cpu")), trading)
    environment.reset(torch.from_numpy(np.tile(starts, len(oracles))))
    signal = torch.from_numpy(market.signal)
    threshold, target = (
        torch.tensor(values, dtype=torch.float64).repeat_interleave(len(starts)).unsqueeze(1)
        for values in zip(*((oracle.threshold, oracle.target) for oracle in oracles), strict=True)
    )
    size, purchases = trading.max_coefficient or 1.0, min(trading.purchases_per_day, market.panel.assets)
    while not environment.done:
        seen = signal[environment.days]
        wanted = seen.masked_fill(environment.portfolio()[..., 0] > 0.0, -torch.inf)
        wanted = wanted.masked_fill(seen < threshold, -torch.inf)
        best, asset = wanted.topk(purchases, dim=1)
        coefficients = torch.zeros_like(seen).scatter_(1, asset, size * (best > -torch.inf).double())
        environment.step(coefficients, target.expand_as(seen))
    return environment.summary()
