"""The baseline `ridge`: a ridge regression of what purchases earned on the features that agents see on the same day.

It ranks assets by a score, and trades by the rules of agents. No day of the holdout is used to fit or to choose.
"""

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
from eigen_core.trading.order_fills import OrderCosts, fill_offset
from eigen_core.trading.orders import batch_slices
from eigen_core.trading.portfolio import Rebalancing, smooth_scores, target_weights
from eigen_core.trading.prices import Prices

PENALTIES = tuple(10.0**power for power in range(7))
_THRESHOLDS = (-10.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)
_EPISODES, _TARGETS = 30, 4
_SHARPNESS, _SPEEDS = (0.5, 1.0, 2.0, 4.0, 8.0), (0.05, 0.1, 0.2, 0.5)
_INVESTED = 15.0
"""Added to all scores of a portfolio, so that almost nothing is in cash."""


@dataclass(frozen=True)
class LinearScore:
    """A score of assets, the higher the better: a linear function of their normalised features of a day.

    On the training days it has mean 0 and standard deviation 1; `coefficients` are float64 `[features]`.
    """

    coefficients: Values
    intercept: float

    def of(self, panel: Panel) -> Values:
        """Return the scores of all days, float64 `[days, assets]`."""
        parts = [_features(panel, days) @ self.coefficients for days in _blocks(panel, range(panel.days))]
        return np.concatenate(parts) + self.intercept


def _features(panel: Panel, days: slice) -> Values:
    return panel.features[days, : panel.assets].astype(np.float64)


def _blocks(panel: Panel, days: range) -> list[slice]:
    """Return the days in blocks: in float64, the features of all of them could take more memory than a training."""
    blocks = batch_slices(len(days), panel.assets * panel.features.shape[2])
    return [slice(days[block].start, days[block].stop) for block in blocks]


def fit_ridge(panel: Panel, config: Config) -> LinearScore:
    """Fit the score to the training days.

    All assets and training days are rows of one regression, that of scikit-learn's `Ridge`. The target is the gain of a
    purchase decided on that day, after costs, by the sale that ends its holding time, less the mean of all assets on
    that day (of one asset: without it). Among `PENALTIES` the one with the smallest squared error on the validation
    days is taken; these days are not fitted afterwards. If no such purchase ended within the training days, or none
    within the validation days, the score is NaN, and nothing is bought.
    """
    fills = Prices.of_panel(panel, torch.device("cpu")).fills(config.trading)
    gains: Values = OrderCosts.of(config.trading).gain_at_market(fills.entry, fills.exit).numpy()
    known = ~np.isnan(gains)
    number = known.sum(axis=1, keepdims=True)
    targets = gains - np.where(number > 1, np.where(known, gains, 0.0).sum(axis=1, keepdims=True), 0.0) / number.clip(1)
    ended = np.arange(panel.days)[:, None] + fills.exit_offset.numpy()
    size = panel.features.shape[2]

    def products(split: range) -> Values:
        """Return the sums of products of all pairs of columns: the features, 1 and the target."""
        usable = known & (ended < split.stop)
        found: Values = np.zeros((size + 2, size + 2))
        for days in _blocks(panel, range(max(split.start, config.market.window - 1), split.stop)):
            gained = targets[days][usable[days]]
            rows = np.column_stack([_features(panel, days)[usable[days]], np.ones_like(gained), gained])
            found += rows.T @ rows
        return found

    train, validation = products(panel.splits.train), products(panel.splits.validation)
    if not train[size, size] or not validation[size, size]:
        return LinearScore(np.full(size, np.nan), np.nan)
    means = train[size] / train[size, size]
    centred = train - train[size, size] * np.outer(means, means)
    covariances = centred[:size, :size]
    best: Values = np.zeros(size)
    least = np.inf
    for penalty in PENALTIES:
        fitted: Values = np.linalg.solve(covariances + penalty * np.eye(size), centred[:size, -1]).astype(np.float64)
        error = np.array([*fitted, means[-1] - means[:size] @ fitted, -1.0])
        if (squared := float(error @ validation @ error)) < least:
            best, least = fitted, squared
    scale = float(best @ covariances @ best / train[size, size]) ** 0.5 or 1.0
    return LinearScore(best / scale, -float(means[:size] @ best) / scale)


@dataclass(frozen=True)
class BuyingRule:
    """Buys, at full size, the assets with the highest scores from `threshold` on, with the sale target `target`."""

    threshold: float
    target: float


def tuned_buying(scores: Values, panel: Panel, config: Config) -> BuyingRule:
    """Return the rule with the highest mean reward over episodes of the training days; `scores`: `[days, assets]`."""
    starts = spread_starts(panel.starts(panel.splits.train, config), _EPISODES)
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
    size, purchases = trading.max_coefficient or 1.0, min(trading.purchases_per_day, panel.assets)
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
    train = panel.splits.train
    days = slice(max(train.start, config.market.window - 1), train.stop - fill_offset(config.trading) - 1)
    table = Rebalancing.of(Prices.of_panel(panel, torch.device("cpu")), config.trading).on(days)
    closes, short = np.asarray(panel.close[days]), config.portfolio.short
    rules = [HoldingRule(*values) for values in product(_SHARPNESS, _SPEEDS)]
    growth = torch.cat(
        [
            table.growth(torch.stack([rule.weights(scores[days], closes, short) for rule in rules[part]]))[0].mean(-1)
            for part in batch_slices(len(rules), closes.size)
        ]
    )
    return rules[int(growth.argmax())]
