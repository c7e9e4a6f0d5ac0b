"""Random portfolios matched to an agent's, beside an obvious loop."""

import numpy as np
import pytest
import torch
from trading_cases import panel_of, prices_of

from eigen_core.config import Config
from eigen_core.trading import excess_of_days
from eigen_core.trading.matched_traders import (
    active_share,
    permuted_weights,
    play_permuted_weights,
)
from eigen_core.trading.portfolio import equal_weights_like
from eigen_core.trading.weights import weights_accounts

DAYS, ASSETS = 40, 6
DATES = np.datetime64("2020-01-01") + np.arange(DAYS)


def market(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of two agents, what is tradable, closes: an asset begins late, another ends, one misses single days."""
    random = np.random.default_rng(seed)
    tradable = np.ones((DAYS, ASSETS), dtype=bool)
    tradable[:15, 0] = False
    tradable[30:, 2] = False
    tradable[[7, 20], 4] = False
    weights = random.dirichlet(np.ones(ASSETS), (2, DAYS)) * tradable
    closes = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.02, (DAYS, ASSETS)), axis=0))
    return weights, tradable, closes


def test_permuted_weights_are_those_of_an_obvious_walk_along_the_permutation() -> None:
    weights, tradable, _ = market()
    drawn = next(permuted_weights(weights, tradable, 30, 1, "champion"))
    assert drawn.shape == (30, 2, DAYS, ASSETS)
    np.testing.assert_allclose(np.sort(drawn, axis=-1), np.sort(np.tile(weights, (30, 1, 1, 1)), axis=-1))
    assert (drawn[:, :, ~tradable] == 0.0).all()
    full = np.flatnonzero(tradable.all(axis=1))[0]
    for draw in drawn:
        # All weights differ, so the day on which all can be traded gives the permutation away.
        order = [int(np.flatnonzero(weights[0, full] == value)[0]) for value in draw[0, full]]
        for day in range(DAYS):
            for asset in np.flatnonzero(tradable[day]):
                source = order[asset]
                while not tradable[day, source]:
                    source = order[source]
                assert (draw[:, day, asset] == weights[:, day, source]).all()


def test_each_permutation_is_drawn_as_often_and_by_its_key() -> None:
    weights, tradable, _ = market()
    drawn = next(permuted_weights(weights, tradable, 3_000, 1, "champion"))
    for asset in range(1, ASSETS):
        often = (drawn[:, 0, 0, asset, None] == weights[0, 0, None, 1:]).mean(axis=0)
        assert np.abs(often - 0.2).max() < 0.04
    again, other = (next(permuted_weights(weights, tradable, 3_000, 1, key)) for key in ("champion", "agent 3"))
    np.testing.assert_array_equal(drawn, again)
    assert not np.array_equal(drawn, other)


@pytest.mark.parametrize("draws", [0, 7])
def test_what_they_earn_is_what_accounts_one_after_the_other_earn(draws: int) -> None:
    weights, tradable, closes = market(1)
    config = Config(account={"capital": 1_000.0, "interest": 0.02})
    prices = np.where(tradable, closes, np.nan)
    known = (prices_of(panel_of(prices, prices, prices)), DATES)
    found = play_permuted_weights(weights, *known, config, draws, "elites")
    alone = config.account.model_copy(update={"capital": 500.0})
    expected = [
        sum(weights_accounts(agent[None], *known, config.trading, alone).equity[0, -1] for agent in draw) / 1_000.0
        - 1.0
        for draw in (next(permuted_weights(weights, tradable, draws, config.seed, "elites")) if draws else ())
    ]
    assert found.total_returns == pytest.approx(expected)
    assert found.quantile_of(10.0) == (1.0 if draws else None)


def test_equal_weight_is_that_of_the_same_exposure() -> None:
    weights, tradable, _ = market()
    equal = equal_weights_like(torch.tensor(weights), torch.tensor(tradable)).numpy()
    np.testing.assert_allclose(equal.sum(axis=2), weights.sum(axis=2))
    assert active_share(equal, tradable) == pytest.approx(0.0)
    one = np.zeros((1, DAYS, ASSETS))
    one[:, :, 1] = 0.5
    expected = np.mean(0.5 * (1.0 - 1.0 / tradable.sum(axis=1)))
    assert active_share(one, tradable) == pytest.approx(expected)


def test_the_excess_of_a_year_is_the_mean_difference_of_days_with_its_newey_west_error() -> None:
    random = np.random.default_rng(3)
    returns, benchmark = random.normal(0.001, 0.01, (2, 251))
    found = excess_of_days(torch.tensor(returns), torch.tensor(benchmark), 252)
    difference = 100.0 * (returns - benchmark)
    deviations = difference - difference.mean()
    variance = sum(
        (1.0 - lag / 5.0) * (2.0 if lag else 1.0) * (deviations[lag:] * deviations[: 251 - lag]).sum()
        for lag in range(5)
    )
    error = 252 * variance**0.5 / 251
    assert found is not None
    assert (found.mean, found.standard_error) == pytest.approx((252 * difference.mean(), error))
    assert (found.trades, found.per) == (251, "year")
    assert "% a year" in str(found)
    assert excess_of_days(torch.zeros(1), torch.zeros(1), 252) is None
