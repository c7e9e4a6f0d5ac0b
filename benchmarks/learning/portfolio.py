"""Growth of portfolios of weights over equal weights, and an oracle whose weights follow the signal."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.markets import YEAR, KnownMarket, known_market
from eigen_core.config import Config
from eigen_core.trading import Prices
from eigen_core.trading.portfolio import Rebalancing, smoothed_scores, target_weights

_SHARPNESS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SPEEDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_TUNING_SEEDS = range(1_000_001, 1_000_009)
_INVESTED = 15.0
"""Added to all scores of the oracle, so that next to nothing is in cash."""


@dataclass(frozen=True)
class WeightsOracle:
    """Weights are the softmax of the signal times a sharpness, the scores smoothed against turnover.

    Attributes:
        sharpness: score of a signal of 1.
        speed: share of the way to the wanted score that scores go in a day.
        expected: growth over equal weights in the mean over the markets that it was tuned on (percent a year).
    """

    sharpness: float
    speed: float
    expected: float = 0.0

    def weights(self, market: KnownMarket, span: range) -> Tensor:
        """Target weights after the close of each day, float64 `[days, assets]`."""
        days = slice(span.start, span.stop)
        wanted = self.sharpness * torch.from_numpy(market.signal[days]) + _INVESTED
        scores = smoothed_scores(wanted, torch.full_like(wanted, self.speed))
        return target_weights(scores, torch.from_numpy(market.panel.close[days] > 0.0))


def tuned_weights_oracle(name: str, edge: float, config: Config) -> WeightsOracle:
    """Return the oracle whose accounts grow most in the mean over several markets like the one that is judged.

    Growth over some years of one market says too little: there, the best is the one whose few assets had luck.

    Args:
        name: of the market.
        edge: its information coefficient.
        config: costs and fills.
    """
    return _tuned(name, edge, Config(market=config.market, trading=config.trading, account=config.account))


@cache
def _tuned(name: str, edge: float, config: Config) -> WeightsOracle:
    """The same for all seeds and learners."""
    oracles = [WeightsOracle(sharpness, speed) for sharpness, speed in product(_SHARPNESS, _SPEEDS)]
    growth = np.zeros(len(oracles))
    for seed in _TUNING_SEEDS:
        market = known_market(name, config, edge, seed)
        span = range(market.panel.days)
        growth += yearly_excess(market, config, span, torch.stack([oracle.weights(market, span) for oracle in oracles]))
    best = int(growth.argmax())
    return replace(oracles[best], expected=float(growth[best]) / len(_TUNING_SEEDS))


def yearly_excess(market: KnownMarket, config: Config, span: range, weights: Tensor) -> NDArray[np.float64]:
    """Return the log growth of accounts over that of daily-rebalanced equal weights, both after costs (percent a year).

    Args:
        market: what is traded.
        config: costs, fills, days of a year.
        span: days of the decisions; the last is left out where its growth would reach beyond the prices.
        weights: target weights, `[accounts, days, assets]`.

    Returns float64 `[accounts]`.
    """
    table = Rebalancing.of(Prices.of_panel(market.panel, torch.device("cpu")), config.trading)
    last = min(span.stop, len(table.returns))
    table = table.on(slice(span.start, last))
    tradable = torch.from_numpy(market.panel.close[span.start : last] > 0.0).double()
    equal = tradable / tradable.sum(dim=1, keepdim=True).clamp(min=1.0)
    daily, _ = table.grown(torch.cat([equal[None], weights.double()[:, : last - span.start]]))
    growth = daily.mean(dim=1).numpy()
    excess: NDArray[np.float64] = YEAR * (growth[1:] - growth[0])
    return excess
