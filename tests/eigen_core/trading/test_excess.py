"""The excess of trades and days over the market, its alpha, and their errors."""

import numpy as np
import pytest
from numpy.typing import NDArray
from trading_cases import Array

from eigen_core.trading.excess import alpha_of, alpha_of_days, excess_of_days, mean_excess


def sum_of_pairs(values: Array, day: NDArray[np.int64], lags: int) -> float:
    """The products of all pairs of observations, weighted by the days between them."""
    weights = np.maximum(0.0, 1.0 - np.abs(day[:, None] - day) / (lags + 1))
    return float(values @ weights @ values)


@pytest.mark.parametrize("starts", [[0, 11, 22], [7, 7, 300], [90, 40, 0]])
def test_mean_and_error_are_those_of_all_pairs_of_days(starts: list[int]) -> None:
    random = np.random.default_rng(starts)
    excess, bought = random.normal(0.01, 0.05, (3, 25)), random.random((3, 25)) < 0.6
    found = mean_excess(np.where(bought, excess, 0.0), bought.astype(np.float64), np.array(starts), lags=7)
    assert found is not None
    assert found.trades == bought.sum()
    assert found.mean == pytest.approx(100.0 * excess[bought].mean(), rel=1e-12)
    day = (np.array(starts)[:, None] + np.arange(25))[bought]
    error = sum_of_pairs(excess[bought] - excess[bought].mean(), day, 7) ** 0.5 / bought.sum()
    assert found.standard_error == pytest.approx(100.0 * error, rel=1e-9)


def test_alpha_is_the_intercept_of_the_excess_on_the_market_with_the_error_of_all_pairs() -> None:
    random = np.random.default_rng(1)
    day = np.sort(random.integers(0, 90, 70))
    market, excess = random.normal(0.01, 0.03, 70), random.normal(0.002, 0.02, 70)
    slope, intercept = np.polyfit(market, excess, 1)
    of_intercept = 1.0 / 70 - market.mean() * (market - market.mean()) / ((market - market.mean()) ** 2).sum()
    error = sum_of_pairs(of_intercept * (excess - slope * market - intercept), day, 6) ** 0.5
    found, of_year = alpha_of(excess, market, day, 6), alpha_of(excess, market, day, 6, 252.0)
    assert found is not None
    assert of_year is not None
    assert (found.mean, found.standard_error) == pytest.approx((100.0 * intercept, 100.0 * error))
    assert (found.trades, found.per, of_year.per) == (70, "trade", "year")
    assert of_year.mean == pytest.approx(252.0 * found.mean)
    # Neither few trades nor a market that does not move have one.
    assert alpha_of(excess[:9], market[:9], day[:9], 1) is None
    assert alpha_of_days(excess, np.full(70, 0.01), 252.0) is None


def test_the_excess_of_a_year_is_the_mean_difference_of_days_with_the_lags_of_newey_and_west() -> None:
    returns, benchmark = np.random.default_rng(3).normal(0.001, 0.01, (2, 251))
    difference = (returns - benchmark)[None]
    expected = mean_excess(difference, np.ones((1, 251)), np.array([0]), lags=4, periods_per_year=252)
    assert excess_of_days(returns, benchmark, 252) == expected
    assert expected is not None
    assert (expected.trades, expected.per) == (251, "year")
    assert expected.mean == pytest.approx(252 * 100.0 * difference.mean())
    assert excess_of_days(np.zeros(1), np.zeros(1), 252) is None


def test_the_interval_is_wider_where_trades_are_of_few_stretches_of_days() -> None:
    excess, number = np.zeros((1, 120)), np.zeros((1, 120))
    traded = [0, 1, 2, 60, 61, 100]
    number[0, traded], excess[0, traded] = 1.0, [0.1, -0.2, 0.3, 0.1, 0.0, -0.1]
    found = mean_excess(excess, number, np.array([5]), lags=20)
    assert found is not None
    # Three stretches: Student's t with two degrees of freedom.
    assert found.interval[1] - found.mean == pytest.approx(4.303 * 1.5**0.5 * found.standard_error, rel=1e-3)
