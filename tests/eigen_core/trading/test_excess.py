"""What trades gain beyond the market, and the rules of the baselines."""

import numpy as np
import pytest
from numpy.typing import NDArray
from trading_cases import Array, panel_of, prices_of

from eigen_core.config import Config, merge
from eigen_core.trading import excess_of_days, mean_excess
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.excess import alpha_of, alpha_of_days


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


DAYS = 420
SPAN = range(300, DAYS)
FREE = {
    "trading": {"cost_bps": 0.0, "slippage_bps": 0.0, "holding_days": 2},
    "account": {"periods_per_year": 252},
}


def steady_growth(rates: list[float]) -> np.ndarray:
    """Closes of assets that grow at steady rates, a day."""
    closes: np.ndarray = 100.0 * np.exp(np.outer(np.arange(DAYS), rates))
    return closes


def test_each_rule_holds_the_assets_that_it_names() -> None:
    rates = [-0.002, -0.001, 0.0, 0.001, 0.002, 0.003]
    closes = steady_growth(rates)
    panel = panel_of(closes, closes, closes)
    curves = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)
    assert set(curves) == {"cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic"}
    for curve in curves.values():
        np.testing.assert_array_equal(curve.dates, panel.dates[SPAN.start : SPAN.stop])
    total = {name: curve.equity[-1] / curve.capital for name, curve in curves.items()}
    held = len(SPAN) - 2  # bought at the second day's open, which is its close here
    assert total["cash"] == 1.0
    assert total["equal_weight"] == pytest.approx(np.mean(np.exp(held * np.array(rates))))
    assert total["rebalanced"] == pytest.approx(np.exp(rates).mean() ** held, rel=1e-4)
    assert np.exp(held * 0.002) < total["momentum"] < np.exp(held * 0.003)
    assert np.exp(held * -0.002) < total["reversal"] < np.exp(held * -0.001)
    # The two best are held by turns, each from the close after its decision to the next: one day of two.
    assert total["classic"] == pytest.approx(np.exp(held * 0.0025 / 2), rel=0.01)
    # Two a day: the two best, then the two after them, by turns.
    two = Config(**merge(FREE, {"trading": {"purchases_per_day": 2}}))
    classic = baseline_curves(prices_of(panel), panel.dates, two, SPAN)["classic"]
    assert classic.equity[-1] / classic.capital == pytest.approx(np.exp(held * 0.0015 / 2), rel=0.01)
    traded_days = np.flatnonzero(curves["momentum"].traded > 1.0)
    assert set(traded_days) <= {day + 1 for day in range(0, len(SPAN), 21)}


def test_equal_weight_waits_for_the_first_fill_of_each_asset() -> None:
    """One is halted on the first days, one trades on them but not on the day of its fill, one has ended before."""
    closes = steady_growth([0.0, 0.002, 0.004, 0.004])
    first = SPAN.start
    closes[first - 3 : first + 8, 1] = np.nan
    closes[first + 1, 2] = np.nan
    closes[first - 90 :, 3] = np.nan
    panel = panel_of(closes, closes, closes)
    curve = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)["equal_weight"]
    days = len(SPAN)
    assert set(np.flatnonzero(curve.traded)) == {1, 3, 9}
    np.testing.assert_allclose(curve.traded[[1, 3]], curve.capital / 3.0)
    assert curve.traded[9] == pytest.approx(curve.capital / 3.0)
    grown = np.exp(0.002 * (days - 1 - 9)), np.exp(0.004 * (days - 1 - 3))
    assert curve.equity[-1] / curve.capital == pytest.approx((1.0 + sum(grown)) / 3.0, rel=0.01)
    # Where nothing trades on the first days, all wait.
    closes[first : first + 5] = np.nan
    panel = panel_of(closes, closes, closes)
    waited = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)["equal_weight"]
    assert set(np.flatnonzero(waited.traded)) == {6, 9}
    assert waited.equity[-1] > 1.2 * waited.capital


def test_a_year_of_momentum_is_that_of_the_market() -> None:
    closes = steady_growth([0.001, 0.002, 0.003])
    panel = panel_of(closes, closes, closes)  # on all days of the week
    coins = Config.model_validate({**FREE, "account": {}})
    for first, bought in ((350, False), (370, True)):
        span = range(first, first + 14)
        momentum = baseline_curves(prices_of(panel), panel.dates, coins, span)["momentum"]
        assert bool(momentum.traded.any()) is bought
