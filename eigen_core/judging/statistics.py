"""Statistics of returns, with intervals and corrections for many looks; equal returns and seeds give equal values."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from arch.bootstrap import SPA, IIDBootstrap, StationaryBootstrap, optimal_block_length
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import trim_mean
from skfolio.measures import expected_max_sharpe_ratio, kurtosis, probabilistic_sharpe_ratio, skew

from eigen_core.common.randomness import keyed_generator
from eigen_core.judging.significance import FEWEST_DAYS

Values = NDArray[np.float64]

CONFIDENCE = 0.95
_DRAWS = 2_000
# Returns that differ by rounding alone have no volatility.
_ROUNDING = 1e-12


def sharpe_ratio(excess: Values) -> float | None:
    """Return the daily Sharpe ratio of returns `[days]` above the risk-free rate; None: too few days, or constant."""
    if len(excess) < FEWEST_DAYS:
        return None
    spread = float(excess.std(ddof=1))
    return float(excess.mean()) / spread if spread > _ROUNDING else None


def sharpe_interval(excess: Values, seed: int) -> tuple[float, float] | None:
    """Return the 95 % interval of `sharpe_ratio`, not annualised; None if the ratio is undefined.

    Percentiles of a stationary bootstrap, whose blocks keep the correlation of neighbouring days (Politis and Romano
    1994, "The stationary bootstrap"); the mean block length follows Patton, Politis and White 2009.
    """
    if sharpe_ratio(excess) is None:
        return None
    bootstrap = StationaryBootstrap(block_length(excess), excess, seed=keyed_generator(seed, "verdict", "sharpe"))
    bounds = bootstrap.conf_int(_sharpe_or_zero, reps=_DRAWS, method="percentile", size=CONFIDENCE)
    return float(bounds[0, 0]), float(bounds[1, 0])


def _sharpe_or_zero(excess: Values) -> Values:
    return np.array([sharpe_ratio(excess) or 0.0])


def block_length(values: Values) -> int:
    """Return the mean length of blocks that a stationary bootstrap of `values` needs (Patton, Politis and White 2009).

    It is 1 at least, and half of the values at most.
    """
    # The length is NaN for returns whose correlations are undefined.
    with np.errstate(divide="ignore", invalid="ignore"):
        length = float(optimal_block_length(values)["stationary"].iloc[0])
    return min(max(round(length), 1), len(values) // 2) if np.isfinite(length) else 1


def deflated_sharpe(
    excess: Values, looks: int, looked_at: Sequence[float] = (), correlation: float = 0.0
) -> float | None:
    """Return the probability that the true Sharpe ratio is above the best by luck; None if it is undefined.

    The best by luck is the expected maximum of `looks` results without skill; it is 0 for one look (Bailey and Lopez de
    Prado 2014, "The deflated Sharpe ratio", equations 1 and 2). The maximum of normal results of which each two have
    the correlation r is sqrt(1 - r) times that of independent ones.

    Args:
        excess: daily returns of the best result less risk-free rates, float64 `[days]`.
        looks: number of results among which it is the best, itself included.
        looked_at: daily Sharpe ratios of those results for which they are known. The test uses their standard deviation
            for all results, but at least that of returns without skill, sqrt((1 - `correlation`) / days) (Lo 2002): a
            few may be alike.
        correlation: mean correlation of two of the results.
    """
    if sharpe_ratio(excess) is None:
        return None
    known = np.asarray(looked_at, dtype=np.float64)
    least = ((1.0 - correlation) / len(excess)) ** 0.5
    deviation = max(float(known.std(ddof=1)) if len(known) > 1 else 0.0, least)
    # Their approximation is below 0, the expectation of one result, for one.
    best_by_luck = max(expected_max_sharpe_ratio(max(looks, 1), deviation), 0.0)
    probability = float(probabilistic_sharpe_ratio(excess, benchmark_sharpe_ratio=best_by_luck))
    return probability if np.isfinite(probability) else None


def minimum_track_record(excess: Values, benchmark: float = 0.0) -> int | None:
    """Return how many days of such returns show a Sharpe ratio above `benchmark` at 95 % confidence (one-sided).

    Bailey and Lopez de Prado 2012, "The Sharpe ratio efficient frontier": by the ratio, skewness and kurtosis of
    `excess`, daily returns less risk-free rates, float64 `[days]`. `benchmark` is a daily ratio. None: the ratio of
    `excess` is undefined, or not above `benchmark`.
    """
    ratio = sharpe_ratio(excess)
    if ratio is None or ratio <= benchmark:
        return None
    variance = 1.0 - float(skew(excess)) * ratio + (float(kurtosis(excess)) - 1.0) / 4.0 * ratio**2
    return math.ceil(1.0 + variance * (float(ndtri(CONFIDENCE)) / (ratio - benchmark)) ** 2)


def superiority(returns: Values, baselines: Mapping[str, Values], seed: int) -> float | None:
    """Return the p-value of an agent's lead over the best baseline: the greatest p-value over all baselines.

    For each baseline, Hansen's test of the hypothesis that the agent's `returns` have no greater mean (Hansen 2005, "A
    test for superior predictive ability", consistent p-value). All returns are daily, float64 `[days]`. None: every
    baseline has the agent's returns, or there are fewer than `FEWEST_DAYS`.
    """
    if len(returns) < FEWEST_DAYS:
        return None
    pvalues = []
    for name, baseline in baselines.items():
        if (returns - baseline).std() <= _ROUNDING:
            continue
        length = block_length(returns - baseline)
        generator = keyed_generator(seed, "verdict", "superiority", name)
        test = SPA(-baseline, -returns[:, None], block_size=length, reps=_DRAWS // 2, seed=generator)
        test.compute()
        pvalues.append(float(test.pvalues["consistent"]))
    return max(pvalues, default=None)


def interquartile_mean(values: Values, seed: int) -> tuple[float, float, float]:
    """Return the interquartile mean of `values`, one result for each training seed, and its 95 % interval.

    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.3;
    percentiles of a bootstrap over the values, which `seed` seeds.
    """

    def middle(drawn: Values) -> Values:
        return np.array([trim_mean(drawn, 0.25)])

    bootstrap = IIDBootstrap(values, seed=keyed_generator(seed, "verdict", "interquartile mean"))
    bounds = bootstrap.conf_int(middle, reps=_DRAWS, method="percentile", size=CONFIDENCE)
    return float(middle(values)[0]), float(bounds[0, 0]), float(bounds[1, 0])


def corrected(pvalue: float, looks: int) -> float:
    """Return the p-value of the best of `looks` independent results, corrected for their number (Sidak 1967)."""
    return float(-np.expm1(max(looks, 1) * np.log1p(-min(pvalue, 1.0 - 1e-15))))
