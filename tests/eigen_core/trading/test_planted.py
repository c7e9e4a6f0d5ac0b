"""A planted edge has the strength that was asked for, and no more over days."""

import numpy as np
import pytest
from science_cases import random_panel, small_config

from eigen_core.common.errors import InputError
from eigen_core.trading.synthetic import FEATURE, coming_returns, with_planted_edge

_CONFIG = small_config()


def _coefficient(feature: np.ndarray, returns: np.ndarray) -> float:
    """Mean over days of the correlation over assets."""
    found = []
    for one, other in zip(feature, returns, strict=True):
        known = ~np.isnan(other)
        if known.sum() > 2:
            found.append(np.corrcoef(one[known], other[known])[0, 1])
    return float(np.mean(found))


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.3, 1.0])
def test_the_information_coefficient_is_the_nominal_one(strength: float) -> None:
    panel = random_panel(_CONFIG, days=2_000, assets=20)
    planted = with_planted_edge(panel, _CONFIG.trading, strength, seed=1)
    feature, returns = planted.features[:, :20, -1], coming_returns(panel, _CONFIG.trading)
    assert planted.feature_names[-1] == FEATURE
    assert _coefficient(feature, returns) == pytest.approx(strength, abs=0.03)
    smooth = np.mean([feature[lag : len(feature) - 4 + lag] for lag in range(5)], axis=0)
    assert _coefficient(smooth, returns[4:]) < strength + 0.03


def test_the_returns_are_those_of_an_order_of_the_day() -> None:
    panel, trading = random_panel(_CONFIG), _CONFIG.trading
    returns = coming_returns(panel, trading)
    day = int(np.flatnonzero(~np.isnan(returns[:, 2]) & ~np.isnan(np.roll(panel.close[:, 2], -5)))[0])
    fill = panel.open[day + 1, 2] if not np.isnan(panel.open[day + 1, 2]) else panel.close[day + 1, 2]
    paid = fill * (1.0 + trading.slippage_bps / 10_000.0)
    assert returns[day, 2] == pytest.approx(np.log(panel.close[day + 5, 2] / paid))
    assert np.isnan(returns[-5:]).all()


def test_everything_else_stays_and_equal_seeds_give_equal_features() -> None:
    panel = random_panel(_CONFIG)
    one, same, other = (with_planted_edge(panel, _CONFIG.trading, 0.2, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.features[..., :-1], panel.features)
    assert np.array_equal(one.features, same.features)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert not one.features[:, 6:, -1].any()


def test_two_assets_are_too_few() -> None:
    with pytest.raises(InputError, match="with 2 tradable symbols: give 3 or more"):
        with_planted_edge(random_panel(_CONFIG, assets=2), _CONFIG.trading, 0.2, seed=1)
