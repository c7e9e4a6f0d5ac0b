"""The benchmark of learning: markets have the stated edge, and oracles earn it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import judgement
from benchmarks.learning.markets import KnownMarket, known_market
from benchmarks.learning.scores import (
    Fit,
    agent_scores,
    boosted_trees,
    information_coefficient,
    ridge,
    second_order_ridge,
)
from benchmarks.learning.trial import trial_config
from eigen_core.config import Config
from eigen_core.generation import evaluate, start_training, train
from eigen_core.judging.ridge import play_rules, tuned_buying
from eigen_core.learning.fitness import spread_starts
from eigen_core.market import Panel
from eigen_core.task.market import MarketTask
from eigen_core.trading.synthetic import FEATURE

_DAYS, _ASSETS, _EDGE = 3_000, 20, 0.3


def config_of(name: str) -> Config:
    return trial_config(name, 1, "ddpg", ["market.holdout=1000"])


def made(name: str, edge: float = _EDGE, seed: int = 1) -> KnownMarket:
    return known_market(name, config_of(name), edge, seed, days=_DAYS, assets=_ASSETS)


def feature(market: KnownMarket, name: str) -> np.ndarray:
    return market.panel.features[:, : market.panel.assets, market.panel.feature_names.index(name)].astype(np.float64)


def coefficient(values: np.ndarray, market: KnownMarket, days: range | None = None) -> float:
    trading = config_of(market.name).trading
    found = information_coefficient(values, market.panel, trading, days or range(market.panel.days))
    return 0.0 if found is None else found


NOT_LINEAR = ["regimes_5", "interaction", "absolute", "lagged"]


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "isolated_factor", "isolated_factor_5", "unblocked", "factor", "bundled", "memory", "memory_1"),
        *NOT_LINEAR,
    ],
)
def test_the_signal_has_the_stated_information_coefficient(name: str) -> None:
    market = made(name)
    assert market.edge == _EDGE
    assert coefficient(market.signal, market) == pytest.approx(_EDGE, abs=0.05)
    if name in ("memory", "memory_1", "regimes_5"):
        # Only who remembers a day, or reads the regime, knows it.
        assert abs(coefficient(feature(market, FEATURE), market)) < 0.6 * _EDGE


def with_averages(panel: Panel) -> Panel:
    """The features averaged over 1, 5, 20 and 60 days."""
    sums = np.cumsum(panel.features, axis=0, dtype=np.float64)
    parts = [np.diff(sums, axis=0, prepend=0.0)]
    for days in (5, 20, 60):
        parts.append(sums / days)
        parts[-1][days:] = (sums[days:] - sums[:-days]) / days
    return replace(panel, features=np.concatenate(parts, axis=2).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "found_by"), [(name, second_order_ridge) for name in NOT_LINEAR[:3]] + [("lagged", None)]
)
def test_what_is_known_of_a_market_that_is_not_linear_is_in_no_feature_of_the_day(
    name: str, found_by: Fit | None
) -> None:
    market, config = made(name), config_of(name)
    panel, holdout = market.panel, market.panel.splits.holdout
    alone = {one: coefficient(feature(market, one), market) for one in panel.feature_names}
    assert max(map(abs, alone.values())) < 0.1 * _EDGE, alone
    assert abs(coefficient(ridge(panel, config)(panel), market, holdout)) < 0.15 * _EDGE
    seen = panel if found_by else with_averages(panel)
    found = (found_by or ridge)(seen, config)(seen)
    assert coefficient(found, market, holdout) > 0.4 * _EDGE


def test_a_lagged_signal_is_known_on_its_days_only() -> None:
    market = made("lagged")
    known = feature(market, FEATURE)
    by_lag = {lag: coefficient(np.roll(known, lag, axis=0), market, range(20, _DAYS)) for lag in (0, 5, 10, 15, 20)}
    for lag, found in by_lag.items():
        assert found == pytest.approx(_EDGE / 2**0.5 if lag in (5, 10) else 0.0, abs=0.03), by_lag


@pytest.mark.parametrize("fit", [second_order_ridge, boosted_trees])
def test_baselines_find_an_edge_without_the_holdout_and_have_the_units_of_ridge(fit: Fit) -> None:
    market, config = made("unblocked"), config_of("unblocked")
    panel, train, holdout = market.panel, market.panel.splits.train, market.panel.splits.holdout
    scores = fit(panel, config)(panel)
    assert coefficient(scores, market, holdout) > 0.7 * _EDGE
    fitted = scores[59 : train.stop - config.trading.holding_bars]
    assert (fitted.mean(), fitted.std()) == pytest.approx((0.0, 1.0), abs=0.02)
    names = ("open", "high", "low", "close", "features")
    changed: dict[str, Any] = {name: np.array(getattr(panel, name)) for name in names}
    for values in changed.values():
        values[holdout.start :] = 7.0
    np.testing.assert_array_equal(fit(replace(panel, **changed), config)(panel), scores)


@pytest.mark.parametrize("method", ["ddpg", "quickstart"])
def test_an_agent_without_positions_buys_the_asset_of_the_highest_score(method: str) -> None:
    config = trial_config("unblocked", 1, method, ["market.holdout=300", "population.size=4"])
    market = known_market("unblocked", config, _EDGE, seed=1, days=1_300, assets=8)
    state = start_training(config, market.panel)
    assert isinstance(state.task, MarketTask)
    evaluate(state)
    train(state)
    starts = spread_starts(state.task.holdout_starts, 10)
    weights = state.population.weights
    bought, _ = state.task.decisions(weights, np.tile(starts, (len(weights), 1)))
    first = bought[:, 0].reshape(len(weights), len(starts), -1).numpy()
    scores = np.stack([agent_scores(state, of_agent)[starts] for of_agent in weights])
    buys = first.any(axis=-1)
    assert buys.any()
    np.testing.assert_array_equal(first.argmax(axis=-1)[buys], scores.argmax(axis=-1)[buys])


_CONFIG = trial_config("plain", 1, "ddpg", ["market.holdout=300"])


def test_the_oracle_earns_more_than_random_traders() -> None:
    market = known_market("plain", _CONFIG, 0.3, seed=1, days=1_300, assets=8)
    starts = spread_starts(market.panel.starts(market.panel.splits.holdout, _CONFIG), 10)
    oracle = tuned_buying(market.signal, market.panel, _CONFIG)
    account = play_rules([oracle], market.signal, market.panel, _CONFIG, starts)
    earned = float(account.reward.mean())
    trades = account.trades.double().numpy()
    assert 2.0 * max(judgement.random_reward(market, _CONFIG, starts, trades), 0.0) < earned
