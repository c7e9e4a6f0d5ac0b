"""A linear score of assets: a ridge regression of what purchases earned on the features that agents see on a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config, TradingConfig
from eigen_core.market import Panel
from eigen_core.trading.equity import Values
from eigen_core.trading.orders import batch_slices
from eigen_core.trading.prices import Prices

PENALTIES = tuple(10.0**power for power in range(7))
FACTORS = (1.0, 10.0, 100.0)
"""Factors on the penalty of further features."""
FOLDS, _FEWEST_FOLDS = 5, 2
_PRIOR_ASSETS, _SMALLEST = 5.0, 1e-12


@dataclass(frozen=True)
class LinearScore:
    """A score of assets, the higher the better: a linear function of their normalised features of a day.

    On the training days it has mean 0 and standard deviation 1; `coefficients` are float64 `[features]`.
    """

    coefficients: Values
    intercept: float

    def of(self, panel: Panel, features: "Features | None" = None) -> Values:
        """Return the scores of all days, float64 `[days, assets]`; `features` None: by those of the panel."""
        read = _of_assets(panel) if features is None else features
        parts = [_float64(read[days]) @ self.coefficients for days in _blocks(read, range(panel.days))]
        return np.concatenate(parts) + self.intercept


class Features(Protocol):
    """Features of assets, float32 `[days, assets, features]`, as an array that is read in slices of days."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, days: slice, /) -> NDArray[np.float32] | Tensor: ...


def _of_assets(panel: Panel) -> NDArray[np.float32]:
    return panel.features[:, : panel.assets]


def _float64(values: NDArray[np.float32] | Tensor) -> Values:
    return np.asarray(values).astype(np.float64)


def _blocks(features: Features, days: range) -> list[slice]:
    """Return the days in blocks: in float64, the features of all of them could take more memory than a training."""
    blocks = batch_slices(len(days), features.shape[1] * features.shape[2])
    return [slice(days[block].start, days[block].stop) for block in blocks]


def relative_gains(
    panel: Panel, prices: Prices, trading: TradingConfig
) -> tuple[Values, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the gains of purchases after costs, by the sale that ends the holding time, less the day's mean.

    With one asset the mean is not subtracted. Also returned are which gains are known, and the days of the sales; all
    are `[days, assets]`, by the day of the decision, the gains float64 and NaN where they are not known.
    """
    fills, splits = prices.fills(trading), panel.splits
    costs = prices.costs(trading).to(torch.device("cpu"))
    gains: Values = costs.gain_at_market(fills.entry.cpu(), fills.exit.cpu()).numpy()
    ended = np.arange(prices.days)[:, None] + fills.exit_offset.cpu().numpy()
    # Between pieces of training bars nothing is known, and nothing that ends after its piece.
    unused = np.ones(panel.days, dtype=np.bool_)
    unused[splits.training_bars] = unused[splits.train.stop :] = False
    known = ~np.isnan(gains) & (ended <= panel.last_days()[:, None]) & ~unused[:, None]
    return gains - _means_of_days(gains), known, ended


def _means_of_days(gains: Values) -> Values:
    """Return the mean over the assets of each day, axis 1, which stays; 0 where at most one gain is known."""
    known = ~np.isnan(gains)
    number = known.sum(axis=1, keepdims=True)
    means: Values = np.where(number > 1, np.where(known, gains, 0.0).sum(axis=1, keepdims=True), 0.0) / number.clip(1)
    return means


def standardised(gains: Values, fitted: NDArray[np.bool_]) -> Values:
    """Return gains whose deviations from their day's mean have the same standard deviation on all days.

    It is that of all `fitted` gains. A day's own variance counts as if `_PRIOR_ASSETS` more had the variance of all, as
    that of few assets is mostly chance.

    Args:
        gains: float64 `[days, assets, settings]`, NaN where they are not known.
        fitted: bool `[days, assets]`.
    """
    known, mean = ~np.isnan(gains), _means_of_days(gains)
    squares = np.where(known, gains - mean, 0.0) ** 2
    usual = max(float(squares[fitted].sum()) / max(int(known[fitted].sum()), 1), _SMALLEST)
    number = known.sum(axis=1).mean(axis=-1)
    variance = (squares.sum(axis=1).mean(axis=-1) + _PRIOR_ASSETS * usual) / (number + _PRIOR_ASSETS)
    scaled: Values = mean + (gains - mean) * np.sqrt(usual / variance)[:, None, None]
    return scaled


class _Gains:
    """`relative_gains` and the features of the assets' days, as rows of regressions."""

    def __init__(
        self, panel: Panel, prices: Prices, config: Config, features: Features, *, standardise: bool = False
    ) -> None:
        self._features, self._first = features, config.market.window - 1
        self._gains, self._known, self._ended = relative_gains(panel, prices, config.trading)
        if standardise:
            fitted = self._known & (self._ended < panel.splits.train.stop)
            self._gains = standardised(self._gains[..., None], fitted)[..., 0]

    def products(self, days: range, ended: range) -> Values:
        """Return the sums of products of all pairs of columns (the features, 1 and the gain): `[features + 2] * 2`.

        The rows are the purchases decided on `days`, after the first window, that end on a day of `ended`.
        """
        usable = self._known & (self._ended >= ended.start) & (self._ended < ended.stop)
        width = self._features.shape[2] + 2
        found: Values = np.zeros((width, width))
        for block in _blocks(self._features, range(max(days.start, self._first), days.stop)):
            gained = self._gains[block][usable[block]]
            if not len(gained):
                continue
            rows = np.column_stack([_float64(self._features[block])[usable[block]], np.ones_like(gained), gained])
            # By torch, which has the number of threads that a run has.
            columns = torch.from_numpy(rows)
            found += (columns.T @ columns).numpy()
        return found


class _Fit(NamedTuple):
    """A regression by the sums of products of its rows: coefficients, 0 of features that it does not read."""

    coefficients: Values
    intercept: float
    centred: Values

    @classmethod
    def of(cls, products: Values, penalties: Values, columns: NDArray[np.int64]) -> "_Fit":
        size = len(products) - 2
        means = products[size] / products[size, size]
        centred: Values = products - products[size, size] * np.outer(means, means)
        coefficients = np.zeros(size)
        covariances = torch.from_numpy(centred[np.ix_(columns, columns)] + np.diag(penalties))
        coefficients[columns] = torch.linalg.solve(covariances, torch.from_numpy(centred[columns, -1])).numpy()
        return cls(coefficients, float(means[-1] - means[:size] @ coefficients), centred)

    def squared_error(self, products: Values) -> float:
        """Return the sum of squared errors on the rows of these sums."""
        error = np.array([*self.coefficients, self.intercept, -1.0])
        return float(error @ products @ error)

    def score(self, products: Values) -> LinearScore:
        size = len(self.coefficients)
        covariances, number = self.centred[:size, :size], products[size, size]
        scale = float(self.coefficients @ covariances @ self.coefficients / number) ** 0.5 or 1.0
        return LinearScore(
            self.coefficients / scale, -float(products[size, :size] @ self.coefficients) / number / scale
        )


def fit_ridge(panel: Panel, config: Config) -> LinearScore:
    """Fit the score to the training days.

    All assets and training days are rows of one regression, that of scikit-learn's `Ridge`, whose targets are
    `relative_gains`. Among `PENALTIES` the one with the smallest squared error on the validation
    days is taken; these days are not fitted afterwards. If no such purchase ended within the training days, or none
    within the validation days, the score is NaN, and nothing is bought.
    """
    features, splits = _of_assets(panel), panel.splits
    prices, size = Prices.of_panel(panel, torch.device("cpu")), features.shape[2]
    gains = _Gains(panel, prices, config, features)
    train, validation = (gains.products(days, days) for days in (splits.train, splits.validation))
    if not train[size, size] or not validation[size, size]:
        return LinearScore(np.full(size, np.nan), np.nan)
    fits = (_Fit.of(train, np.full(size, penalty), np.arange(size)) for penalty in PENALTIES)
    return min(fits, key=lambda fit: fit.squared_error(validation)).score(train)


def fit_grouped_ridge(
    panel: Panel, prices: Prices, config: Config, features: Features, groups: Sequence[slice]
) -> LinearScore:
    """Fit a score like that of `fit_ridge`, which reads one of `groups` of further features if they predict better.

    It reads `features`, not the panel's. With `network.linear_standardised` its targets are `standardised`. Each group
    has a penalty of its own, one of `FACTORS` times that of the features before the first group. Features, penalty and
    factor are those with the smallest squared error in cross-validation, but a group must lower it by more than one
    standard error over the folds (Breiman et al. 1984, "Classification and regression trees", section 3.4.3). The folds
    are `FOLDS` consecutive parts of the training days; purchases that end after their fold count in none, and in the
    fit at the end. Without two folds with purchases the score is NaN.
    """
    gains = _Gains(panel, prices, config, features, standardise=config.network.linear_standardised)
    size, train = features.shape[2], panel.splits.train
    edges = np.linspace(max(train.start, config.market.window - 1), train.stop, FOLDS + 1).astype(int).tolist()
    parts = [range(*pair) for pair in pairwise(edges)]
    folds = [products for days in parts if (products := gains.products(days, days))[size, size]]
    if len(folds) < _FEWEST_FOLDS:
        return LinearScore(np.full(size, np.nan), np.nan)
    total: Values = np.sum(folds, axis=0)
    whole = total + sum(gains.products(days, range(days.stop, train.stop)) for days in parts)
    first = np.arange(groups[0].start if groups else size)

    def smallest(group: slice | None) -> tuple[Values, Values, NDArray[np.int64]]:
        further = np.arange(0) if group is None else np.arange(group.start, group.stop)
        columns = np.concatenate([first, further])
        factors = (1.0,) if group is None else FACTORS
        tried = [
            np.concatenate([np.full(len(first), penalty), np.full(len(further), penalty * factor)])
            for penalty in PENALTIES
            for factor in factors
        ]
        errors = [
            np.array([_Fit.of(total - fold, penalties, columns).squared_error(fold) for fold in folds])
            for penalties in tried
        ]
        least = min(range(len(tried)), key=lambda index: float(errors[index].sum()))
        return errors[least], tried[least], columns

    chosen = smallest(None)
    if groups:
        other = min(map(smallest, groups), key=lambda found: float(found[0].sum()))
        lower = chosen[0] - other[0]
        if lower.mean() > lower.std(ddof=1) / len(lower) ** 0.5:
            chosen = other
    return _Fit.of(whole, chosen[1], chosen[2]).score(whole)
