"""Rules by which a score of assets trades, as the baseline `ridge` does. No day of the holdout chooses one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config
from eigen_core.learning.fitness import spread_starts
from eigen_core.market import Panel
from eigen_core.trading.environment import EpisodeSummary, TradingEnvironment
from eigen_core.trading.equity import Values
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.orders import batch_slices
from eigen_core.trading.portfolio import Rebalancing, smooth_scores, target_weights
from eigen_core.trading.prices import Prices

_THRESHOLDS = (-10.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)
_EPISODES, _TARGETS = 30, 4
_SHARPNESS, _SPEEDS = (0.5, 1.0, 2.0, 4.0, 8.0), (0.05, 0.1, 0.2, 0.5)
_INVESTED = 15.0
"""Added to all scores of a portfolio, so that almost nothing is in cash."""


@dataclass(frozen=True)
class BuyingRule:
    """Buys, at full size, the assets with the highest scores from `threshold` on, with the sale target `target`."""

    threshold: float
    target: float


def tuned_buying(scores: Values, panel: Panel, config: Config) -> BuyingRule:
    """Return the rule with the highest mean reward over episodes of the training days; `scores`: `[days, assets]`."""
    starts = spread_starts(panel.training_starts(config), _EPISODES)
    targets = np.linspace(config.trading.min_target, config.trading.max_target, _TARGETS).tolist()
    rules = [BuyingRule(threshold, target) for threshold, target in product(_THRESHOLDS, targets)]
    rewards = play_rules(rules, scores, panel, config, starts).reward.reshape(len(rules), -1).mean(dim=1)
    return rules[int(rewards.argmax())]


def play_rules(
    rules: Sequence[BuyingRule], scores: Values, panel: Panel, config: Config, starts: NDArray[np.int64]
) -> EpisodeSummary:
    """Return the accounts of an episode of each rule from each start, `[rules * starts]`."""
    trading = config.trading.model_copy(update={"observe_portfolio": True})
    environment = TradingEnvironment(Prices.of_panel(panel, torch.device("cpu")), trading)
    environment.reset(torch.from_numpy(np.tile(starts, len(rules))))
    ranked = torch.from_numpy(np.where(panel.close > 0.0, scores, np.nan))
    threshold, target = (
        torch.tensor(values, dtype=torch.float64).repeat_interleave(len(starts)).unsqueeze(1)
        for values in zip(*((rule.threshold, rule.target) for rule in rules), strict=True)
    )
    size, purchases = trading.max_coefficient or 1.0, min(trading.purchases_per_bar, panel.assets)
    while not environment.done:
        seen = ranked[environment.days]
        held = environment.portfolio()[..., 0] > 0.0
        wanted = torch.where((seen >= threshold) & ~held, seen, -torch.inf)
        best, asset = wanted.topk(purchases, dim=1)
        coefficients = torch.zeros_like(seen).scatter_(1, asset, size * (best > -torch.inf).double())
        environment.step(coefficients, target.expand_as(seen))
    return environment.summary()


@dataclass(frozen=True)
class HoldingRule:
    """Holds the softmax of the scores times `sharpness`; these move by the share `speed` towards the day's, daily."""

    sharpness: float
    speed: float

    def weights(self, scores: Values, closes: Values, short: float = 0.0) -> Tensor:
        """Return target weights after the close of each day; all are float64 `[days, assets]`."""
        wanted = self.sharpness * torch.from_numpy(scores) + _INVESTED
        return target_weights(
            smooth_scores(wanted, torch.full_like(wanted, self.speed)), torch.from_numpy(closes > 0.0), short
        )


def tuned_holding(scores: Values, panel: Panel, config: Config) -> HoldingRule:
    """Return the rule whose account grows most, after costs, over the training days; `scores`: `[days, assets]`."""
    table = Rebalancing.of(Prices.of_panel(panel, torch.device("cpu")), config.trading)
    short, rules = config.portfolio.short, [HoldingRule(*values) for values in product(_SHARPNESS, _SPEEDS)]
    pieces = []
    for observed in panel.observed(config):
        days = slice(observed.start, max(observed.stop - fill_offset(config.trading) - 1, observed.start))
        closes = np.asarray(panel.close[days])
        parts = batch_slices(len(rules), max(closes.size, 1))
        weights = (torch.stack([rule.weights(scores[days], closes, short) for rule in rules[part]]) for part in parts)
        pieces.append(torch.cat([table.on(days).growth(each)[0] for each in weights]))
    return rules[int(torch.cat(pieces, dim=1).mean(dim=1).argmax())]
