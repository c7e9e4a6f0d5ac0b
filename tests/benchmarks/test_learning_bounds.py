"""The oracle lies between random traders and hindsight."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.learning.judgement import (
    Oracle,
    best_schedules,
    hindsight_bound,
    play_oracles,
    random_reward,
    tuned_oracle,
)
from benchmarks.learning.markets import KnownMarket, known_market
from benchmarks.learning.trial import trial_config
from eigen_core.learning.method import spread_starts

_CONFIG = trial_config("plain", 1, "both", ["market.holdout_days=300"])


@pytest.fixture(scope="module")
def market() -> KnownMarket:
    return known_market("plain", _CONFIG, 0.3, seed=1, days=1_300, assets=8)


def test_the_oracle_earns_more_than_random_traders_and_less_than_hindsight(market: KnownMarket) -> None:
    starts = spread_starts(market.panel.holdout_starts(_CONFIG), 10)
    account = play_oracles([tuned_oracle(market, _CONFIG)], market, _CONFIG, starts)
    oracle = float(account.reward.mean())
    trades = account.trades.double().numpy()
    assert 2.0 * max(random_reward(market, _CONFIG, starts, trades), 0.0) < oracle
    assert oracle < hindsight_bound(market, _CONFIG, starts)


def test_the_tuned_threshold_is_worth_something(market: KnownMarket) -> None:
    oracle = tuned_oracle(market, _CONFIG)
    starts = spread_starts(market.panel.training_starts(_CONFIG), 30)
    every_day = Oracle(-np.inf, oracle.target)
    rewards = play_oracles([oracle, every_day], market, _CONFIG, starts).reward.reshape(2, -1).mean(dim=1)
    assert rewards[0] > 1.2 * rewards[1]


def test_the_best_schedule_is_that_of_all_schedules() -> None:
    generator = np.random.default_rng(1)
    days, targets = 6, 2
    worth = torch.from_numpy(generator.uniform(0.0, 1.0, (1, days, 1, targets)))
    exits = torch.from_numpy(generator.integers(1, 4, (1, days, 1, targets)))
    best = 0.0
    for chosen in itertools.product(range(targets + 1), repeat=days):
        free, earned = 0, 0.0
        for day, target in enumerate(chosen):
            if target < targets:
                if day < free:
                    break
                free, earned = day + int(exits[0, day, 0, target]), earned + float(worth[0, day, 0, target])
        else:
            best = max(best, earned)
    assert float(best_schedules(worth, exits)) == pytest.approx(best)
