"""Where the linear part of actors begins (`network.linear_scales`): at a ridge regression on the training days."""

import numpy as np
import torch

from eigen_core.config import BatchLearnerConfig, Config
from eigen_core.market.panel import Panel
from eigen_core.networks.actions import LinearStart
from eigen_core.networks.encoders import LinearInputs
from eigen_core.task.outcome_table import OutcomeTable
from eigen_core.trading.equity import Values
from eigen_core.trading.prices import Prices
from eigen_core.trading.ridge import fit_grouped_ridge

_SMALLEST, _DIGITS = 1e-6, 6


def linear_start(panel: Panel, prices: Prices, config: Config, table: OutcomeTable | None = None) -> LinearStart | None:
    """Return the linear part with which actors begin, a `fit_grouped_ridge`; None without `network.linear_scales`.

    The score reads `LinearInputs`: the first, and a group of further ones if these predict better. For actors that
    predict the outcomes of `table`, it is multiplied by a number for each sale target: the slope of the target's
    rewards, scaled as learners see them, on the score, within days. It is fitted to the training days of `table`.
    Without any outcome there, all is 0.
    """
    if not config.network.linear_scales:
        return None
    features, device = panel.features[:, : panel.assets], torch.device("cpu")
    # In a long market none are kept: the regression reads them in a few passes.
    inputs = LinearInputs(features, device, panel.splits.training_rows, config.network, torch.arange(0))
    score = fit_grouped_ridge(panel, prices, config, inputs, inputs.groups)
    coefficients = score.coefficients
    if np.isnan(score.intercept):
        return LinearStart.unknown(len(coefficients), 1 if table is None else table.rewards.shape[2])
    if table is None:
        return LinearStart(_rounded(coefficients[:, None]), _rounded(np.array([score.intercept])))
    return _of_outcomes(coefficients, score.intercept, score.of(panel, inputs), config, table)


def _of_outcomes(
    coefficients: Values, intercept: float, scores: Values, config: Config, table: OutcomeTable
) -> LinearStart:
    learner = config.learner
    assert isinstance(learner, BatchLearnerConfig)
    rewards = table.rewards.cpu().numpy().astype(np.float64) * learner.reward_scale
    known = ~np.isnan(rewards[..., 0])
    if not known.any():
        return LinearStart.unknown(len(coefficients), rewards.shape[2])
    if learner.reward_clip is not None:
        rewards = rewards.clip(-learner.reward_clip, learner.reward_clip)
    scores = scores[table.days.cpu().numpy()]

    def within_days(values: Values) -> Values:
        number = known.sum(axis=1)[:, None, None].clip(1)
        centred: Values = (values - np.where(known[..., None], values, 0.0).sum(axis=1, keepdims=True) / number)[known]
        return centred

    ranks, gains = within_days(scores[..., None]), within_days(rewards)
    slopes = (ranks * gains).sum(axis=0) / max(float((ranks * ranks).sum()), _SMALLEST)
    means = rewards[known].mean(axis=0)
    best = (scores[known][:, None] * slopes + means).max(axis=1)
    spread = max(float(best.std()), _SMALLEST)
    return LinearStart(
        weight=_rounded(np.outer(coefficients, slopes)),
        bias=_rounded(intercept * slopes + means),
        shares=_rounded(table.shares.double().cpu().numpy()[known].mean(axis=0)),
        mean=float(_rounded(best.mean() / spread)),
        spread=float(_rounded(np.array(spread))),
    )


def _rounded(values: Values) -> Values:
    """Drop the digits by which processors differ, so that agents begin with the same bits on all of them."""
    rounded: Values = np.vectorize(lambda value: float(f"{value:.{_DIGITS}g}"), otypes=[float])(values)
    return rounded
