"""A linear score of assets: a ridge regression of what purchases earned on the features that agents see on a day."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.config import Config, TradingConfig
from eigen_core.market import Panel
from eigen_core.trading.equity import Values
from eigen_core.trading.order_fills import OrderCosts
from eigen_core.trading.orders import batch_slices
from eigen_core.trading.prices import Prices

PENALTIES = tuple(10.0**power for power in range(7))


@dataclass(frozen=True)
class LinearScore:
    """A score of assets, the higher the better: a linear function of their normalised features of a day.

    On the training days it has mean 0 and standard deviation 1; `coefficients` are float64 `[features]`, `error` is the
    sum of the squared errors of the regression on the validation days.
    """

    coefficients: Values
    intercept: float
    error: float

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


def relative_gains(panel: Panel, trading: TradingConfig) -> tuple[Values, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the gains of purchases after costs, by the sale that ends the holding time, less the day's mean.

    With one asset the mean is not subtracted. Also returned are which gains are known, and the days of the sales; all
    are `[days, assets]`, by the day of the decision, the gains float64 and NaN where they are not known.
    """
    fills = Prices.of_panel(panel, torch.device("cpu")).fills(trading)
    gains: Values = OrderCosts.of(trading).gain_at_market(fills.entry, fills.exit).numpy()
    known = ~np.isnan(gains)
    number = known.sum(axis=1, keepdims=True)
    mean = np.where(number > 1, np.where(known, gains, 0.0).sum(axis=1, keepdims=True), 0.0) / number.clip(1)
    return gains - mean, known, np.arange(panel.days)[:, None] + fills.exit_offset.numpy()


def fit_ridge(panel: Panel, config: Config) -> LinearScore:
    """Fit the score to the training days.

    All assets and training days are rows of one regression, that of scikit-learn's `Ridge`, whose targets are
    `relative_gains`. Among `PENALTIES` the one with the smallest squared error on the validation
    days is taken; these days are not fitted afterwards. If no such purchase ended within the training days, or none
    within the validation days, the score is NaN, and nothing is bought.
    """
    targets, known, ended = relative_gains(panel, config.trading)
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
        return LinearScore(np.full(size, np.nan), np.nan, np.inf)
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
    return LinearScore(best / scale, -float(means[:size] @ best) / scale, least)
