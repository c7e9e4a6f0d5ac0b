"""Statistics of returns against obvious versions, known answers and their own promises."""

import numpy as np
import pytest
from scipy.stats import norm

from eigen_core.judging.statistics import (
    Values,
    corrected,
    daily_alpha,
    deflated_sharpe,
    interquartile_mean,
    sharpe_interval,
    sharpe_ratio,
    superiority,
)


def returns_of(seed: int, days: int = 252, mean: float = 0.0005, spread: float = 0.01) -> Values:
    return np.random.default_rng(seed).normal(mean, spread, days)


@pytest.mark.thorough
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(120):
        interval = sharpe_interval(returns_of(seed), seed)
        assert interval is not None
        held += interval[0] <= 0.05 <= interval[1]
    # Of 120 intervals of 95 %, fewer than 105 or all of them are rarer than 1 in 1,000.
    assert 105 <= held <= 120


def test_equal_returns_give_equal_intervals() -> None:
    assert sharpe_interval(returns_of(1), 4) == sharpe_interval(returns_of(1), 4)
    assert sharpe_interval(np.full(100, 0.001), 4) is None
    assert sharpe_ratio(np.zeros(3)) is None


def test_more_looks_deflate_the_ratio() -> None:
    excess = returns_of(3, mean=0.001)
    probabilities = [deflated_sharpe(excess, looks) for looks in (1, 2, 10, 400)]
    known = [probability for probability in probabilities if probability is not None]
    assert len(known) == 4
    assert known == sorted(known, reverse=True)
    ratio = sharpe_ratio(excess)
    assert ratio is not None
    # With one look it is the probability that a normal estimate is above 0.
    assert known[0] == pytest.approx(norm.cdf(ratio * np.sqrt(251)), abs=0.02)
    # Known ratios that are apart deflate more than those that are alike.
    alike, apart = deflated_sharpe(excess, 10, [0.05, 0.051]), deflated_sharpe(excess, 10, [-0.2, 0.2])
    assert alike is not None
    assert apart is not None
    assert apart < alike == deflated_sharpe(excess, 10)


def test_alpha_is_what_the_market_does_not_explain() -> None:
    market = returns_of(1, mean=0.002)
    assert daily_alpha(1.5 * market + 0.001, market) == pytest.approx(0.001)
    assert daily_alpha(1.5 * market, np.zeros(252)) is None


def test_superiority_is_that_over_the_best_baseline() -> None:
    weak, strong = returns_of(1, mean=-0.001), returns_of(2, mean=0.003)
    ours = returns_of(3, mean=0.003)
    against_weak, against_both = superiority(ours, {"weak": weak}, 0), superiority(ours, {"a": weak, "b": strong}, 0)
    assert against_weak is not None
    assert against_both is not None
    assert against_weak < 0.05 < against_both
    assert superiority(ours, {"itself": ours}, 0) is None


def test_the_middle_half_of_seeds_ignores_one_that_failed() -> None:
    mean, low, high = interquartile_mean(np.array([1.0, 1.1, 0.9, 1.0, -50.0, 1.05, 0.95, 1.0]), 0)
    assert mean == pytest.approx(0.9875, abs=0.02)
    assert low <= mean <= high


@pytest.mark.parametrize(("pvalue", "looks", "expected"), [(0.05, 1, 0.05), (0.05, 2, 0.0975), (0.001, 400, 0.3298)])
def test_looks_correct_a_pvalue(pvalue: float, looks: int, expected: float) -> None:
    assert corrected(pvalue, looks) == pytest.approx(expected, abs=1e-4)
