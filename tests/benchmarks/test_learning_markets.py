"""The markets of the bench hold the edge that they state, and show it as they say."""

import numpy as np
import pytest

from benchmarks.learning.markets import LEADER, MEMORY_DAYS, REGIME, KnownMarket, known_market
from benchmarks.learning.trial import trial_config
from eigen_core.config import Config, NetworkConfig
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


def test_on_noise_there_is_none_whatever_was_asked_for() -> None:
    market = made("noise")
    assert market.edge == 0.0
    assert coefficient(feature(market, FEATURE), "noise", market) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("kind", ["memory", "memory_1"])
def test_what_is_remembered_is_not_in_features_of_the_day(kind: str) -> None:
    market = made(kind)
    for name in market.panel.feature_names:
        assert coefficient(feature(market, name), kind, market) == pytest.approx(0.0, abs=0.07), name
    then = feature(market, FEATURE)[:-MEMORY_DAYS]
    assert np.allclose(then, market.signal[MEMORY_DAYS:], atol=1e-5)


@pytest.mark.parametrize(("kind", "lowest", "highest"), [("memory", 0.12, 0.24), ("memory_1", 0.03, 0.12)])
def test_means_far_apart_know_less_of_what_is_remembered_where_positions_are_short(
    kind: str, lowest: float, highest: float
) -> None:
    market = made(kind)
    shown = feature(market, FEATURE)
    scales = NetworkConfig().scales
    longer = min(scale for scale in scales if scale > MEMORY_DAYS)
    shorter = max(scale for scale in scales if scale <= MEMORY_DAYS)
    # The days that lie between two scales are what their means tell apart.
    sums = np.cumsum(shown, axis=0)
    between = np.zeros_like(shown)
    between[longer:] = sums[longer - shorter : -shorter] - sums[:-longer]
    assert lowest < coefficient(between, kind, market) < highest


def test_a_leaders_move_precedes_the_markets() -> None:
    market = made("leader")
    panel = market.panel
    assert panel.symbols[-1] == LEADER
    assert panel.columns == panel.assets + 1
    move = panel.features[:, -1, panel.feature_names.index("log_return_1")].astype(np.float64)
    together = coming_returns(panel, config_of("leader").trading).mean(axis=1)
    known = ~np.isnan(together)
    known[0] = False
    assert np.corrcoef(move[known], together[known])[0, 1] == pytest.approx(_EDGE, abs=0.02)
    # Those that take a greater part in the market's moves are ranked first when it will rise.
    rises = market.signal[known].mean(axis=1) > 0.0
    parts = np.cov(np.diff(np.log(panel.close), axis=0).T).mean(axis=0)
    assert np.corrcoef(parts, market.signal[known][rises].mean(axis=0))[0, 1] > 0.9


def test_a_regime_names_the_sign_of_the_edge() -> None:
    market = made("regimes")
    regime = feature(market, REGIME)
    assert set(np.unique(regime)) == {-1.0, 1.0}
    assert np.allclose(regime * feature(market, FEATURE), market.signal, atol=1e-5)
    assert (np.diff(regime[:, 0]) != 0.0).sum() < _DAYS / 100
    assert coefficient(feature(market, FEATURE), "regimes", market) < 0.6 * _EDGE


@pytest.mark.parametrize(
    ("name", "lowest", "highest"), [("plain", -0.1, 0.1), ("factor", 0.1, 0.4), ("isolated_factor", 0.1, 0.4)]
)
def test_assets_have_in_common_what_the_market_says(name: str, lowest: float, highest: float) -> None:
    returns = np.diff(np.log(made(name).panel.close), axis=0)
    assert lowest < np.corrcoef(returns.T)[np.triu_indices(_ASSETS, k=1)].mean() < highest
