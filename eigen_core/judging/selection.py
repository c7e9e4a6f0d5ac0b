"""Statistics of choosing the best of several trials by returns that all of them earned on the same bars.

Returns are those of one bar less risk-free rates, float64 `[bars, trials]`. Sharpe ratios are those of one bar, and 0
where returns are constant. Equal returns and seeds give equal values; so does another order of the trials.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from arch.bootstrap import MCS
from numpy.typing import NDArray
from scipy.stats import rankdata

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.judging.significance import FEWEST_DAYS, SIGNIFICANCE
from eigen_core.judging.statistics import Values, block_length, deflated_sharpe, sharpe_ratio
from eigen_core.market.cross_validation import group_bounds

MOST_BLOCKS = 16
"""Most blocks of `probability_of_overfitting`: they can be halved in 12,870 ways."""
_DRAWS = 1_000
# Returns whose deviation is a smaller part of their size are constant; ratios and returns that differ less are equal.
_CONSTANT, _DECIMALS = 1e-6, 12


@dataclass(frozen=True, eq=False)
class Overfitting:
    """How the trial that is best on one half of the bars does on the other half, for each way to halve the bars.

    Attributes:
        probability: share of the ways in which it is below the median there; those at the median count by half. It is
            0.5 on average if no trial has skill, but between 0.17 and 0.81 in nine of ten tables of 20 trials.
        logits: float64 `[ways]`: ln(r / (1 - r)) with r = rank / (trials + 1); the worst trial there has rank 1. Equal
            trials share the mean of their ranks, and so do trials that are equally good on the first half.
        inside, outside: float64 `[ways]`: its Sharpe ratio on the half where it is the best, and on the other.
    """

    probability: float
    logits: Values
    inside: Values
    outside: Values


def probability_of_overfitting(returns: Values, blocks: int = MOST_BLOCKS) -> Overfitting | None:
    """Return how the best trial of half of the bars does on the others; None: fewer than 2 trials, or too few bars.

    Combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado and Zhu 2017, "The probability of
    backtest overfitting"): the bars are cut into `blocks` of consecutive bars, an even number, and every half of the
    blocks chooses the trial with the greatest Sharpe ratio. A block needs 2 bars, and a half `FEWEST_DAYS`.

    Raises:
        InputError: `blocks` is odd, or not in 2 to `MOST_BLOCKS`; or a return is not a finite number.
    """
    if blocks % 2 or not 2 <= blocks <= MOST_BLOCKS:
        raise InputError(f"{blocks} blocks of bars: give an even number from 2 to {MOST_BLOCKS}.")
    bars, trials = _checked(returns).shape
    if trials < 2 or bars < 2 * max(blocks, FEWEST_DAYS):
        return None
    inside = _ratios_of_halves(returns, blocks)
    # In their order, the last way to choose a half leaves what the first way chooses.
    outside = inside[::-1]
    best = inside == inside.max(axis=1, keepdims=True)
    best = best / best.sum(axis=1, keepdims=True)
    rank = (best * rankdata(outside, axis=1)).sum(axis=1)
    logits = np.log(rank / (trials + 1.0 - rank))
    below = np.where(logits == 0.0, 0.5, logits < 0.0)
    return Overfitting(float(below.mean()), logits, inside.max(axis=1), (best * outside).sum(axis=1))


def _checked(returns: Values) -> Values:
    if not np.isfinite(returns).all():
        trial = int(np.argmin(np.isfinite(returns).all(axis=0)))
        raise InputError(f"trial {trial} of the compared ones has a return that is not a finite number: leave it out.")
    return returns


def _ratios_of_halves(returns: Values, blocks: int) -> Values:
    """Return the Sharpe ratio of each trial on each half of the blocks, `[ways, trials]`, by sums of the blocks."""
    bounds = group_bounds(len(returns), blocks)
    starts = [bound.start for bound in bounds]
    ways = list(combinations(range(blocks), blocks // 2))
    chosen: NDArray[np.bool_] = np.zeros((len(ways), blocks, 1), dtype=np.bool_)
    chosen[np.arange(len(ways))[:, None], ways] = True

    def sums(values: Values) -> Values:
        # Not as a product of matrices: equal trials have equal bits here.
        total = np.zeros((len(ways), values.shape[1]))
        for block, each in enumerate(np.add.reduceat(values, starts)):
            total += chosen[:, block] * each
        return total

    bars = sums(np.ones((len(returns), 1)))
    mean, square = sums(returns) / bars, sums(returns**2) / bars
    variance = square - mean**2
    constant = variance <= _CONSTANT**2 * square
    ratios = np.where(constant, 0.0, mean / np.sqrt(np.where(constant, 1.0, variance * bars / (bars - 1.0))))
    return ratios.round(_DECIMALS)


def mean_correlation(returns: Values) -> float:
    """Return the mean correlation of the returns of two trials, 0 if it is below 0; that with constant returns is 0."""
    trials = returns.shape[1]
    moving = _checked(returns)[:, np.ptp(returns, axis=0) > 0.0]
    if trials < 2 or not moving.shape[1]:
        return 0.0
    scaled = (moving - moving.mean(axis=0)) / moving.std(axis=0)
    # The variance of the sum is the sum of the correlations of all pairs, each trial with itself included.
    mean = (scaled.sum(axis=1).var() - moving.shape[1]) / (trials * (trials - 1))
    return float(np.clip(mean, 0.0, 1.0))


def deflated_sharpe_of(chosen: int, returns: Values) -> float | None:
    """Return `deflated_sharpe` of the trial in column `chosen` among all, by their ratios and `mean_correlation`."""
    ratios = [sharpe_ratio(trial) or 0.0 for trial in _checked(returns).T]
    return deflated_sharpe(returns[:, chosen], len(ratios), ratios, mean_correlation(returns))


def model_confidence_set(returns: Values, seed: int) -> tuple[int, ...]:
    """Return the trials, by column, whose mean return cannot be told apart from the best; all, if the bars are too few.

    The best trial is among them with a probability of 95 % or more (Hansen, Lunde and Nason 2011, "The model confidence
    set", by the statistic of the maximum). `seed` keys a stationary bootstrap of the bars. The mean length of its
    blocks is the median over trials of what `block_length` gives for their lead over the mean of all trials.
    """
    different, columns = np.unique(_checked(returns).round(_DECIMALS), axis=1, return_inverse=True)
    if different.shape[1] < 2 or len(returns) < FEWEST_DAYS:
        return tuple(range(returns.shape[1]))
    leads = different - different.mean(axis=1, keepdims=True)
    length = round(float(np.median([block_length(lead) for lead in leads.T])))
    generator = keyed_generator(seed, "selection", "model confidence set")
    test = MCS(-different, SIGNIFICANCE, reps=_DRAWS, block_size=length, method="max", seed=generator)
    test.compute()
    included = set(test.included)
    return tuple(trial for trial, column in enumerate(columns.ravel()) if int(column) in included)
