"""The benchmark of learning: markets have the stated edge, and oracles earn it."""

import numpy as np
import pytest

from benchmarks.learning import judgement
from benchmarks.learning.markets import KnownMarket, known_market
from benchmarks.learning.trial import trial_config
from eigen_core.config import Config
from eigen_core.judging.ridge import play_rules, tuned_buying
from eigen_core.learning.fitness import spread_starts
from eigen_core.trading.synthetic import FEATURE, coming_returns

_DAYS, _ASSETS, _EDGE = 3_000, 20, 0.3


def config_of(name: str) -> Config:
    return trial_config(name, 1, "both", ["market.holdout_days=200"])


def made(name: str, edge: float = _EDGE, seed: int = 1) -> KnownMarket:
    return known_market(name, config_of(name), edge, seed, days=_DAYS, assets=_ASSETS)


def feature(market: KnownMarket, name: str) -> np.ndarray:
    return market.panel.features[:, : market.panel.assets, market.panel.feature_names.index(name)].astype(np.float64)


def coefficient(values: np.ndarray, name: str, market: KnownMarket) -> float:
    """Mean over days of the correlation over assets with the coming returns."""
    returns = coming_returns(market.panel, config_of(name).trading)
    days = ~np.isnan(returns).any(axis=1) & (values.std(axis=1) > 0.0)
    one, other = (
        (part - part.mean(axis=1, keepdims=True)) / part.std(axis=1, keepdims=True)
        for part in (values[days], returns[days])
    )
    return float((one * other).mean())


@pytest.mark.parametrize(
    "name", ["plain", "isolated_factor", "isolated_factor_5", "unblocked", "factor", "memory", "memory_1", "regimes"]
)
def test_the_signal_has_the_stated_information_coefficient(name: str) -> None:
    market = made(name)
    assert market.edge == _EDGE
    assert coefficient(market.signal, name, market) == pytest.approx(_EDGE, abs=0.05)
    if name in ("memory", "memory_1", "regimes"):
        # Only who remembers a day, or reads the regime, knows it.
        assert abs(coefficient(feature(market, FEATURE), name, market)) < 0.6 * _EDGE


_CONFIG = trial_config("plain", 1, "both", ["market.holdout_days=300"])


def test_the_oracle_earns_more_than_random_traders() -> None:
    market = known_market("plain", _CONFIG, 0.3, seed=1, days=1_300, assets=8)
    starts = spread_starts(market.panel.starts(market.panel.splits.holdout, _CONFIG), 10)
    oracle = tuned_buying(market.signal, market.panel, _CONFIG)
    account = play_rules([oracle], market.signal, market.panel, _CONFIG, starts)
    earned = float(account.reward.mean())
    trades = account.trades.double().numpy()
    assert 2.0 * max(judgement.random_reward(market, _CONFIG, starts, trades), 0.0) < earned
