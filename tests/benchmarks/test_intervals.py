"""Intervals and claims hold as often as they say, and planted prices have the stated edge."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.intervals import intervals_that_hold
from benchmarks.walks import write_planted_prices
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.trading.synthetic import FEATURE, coming_returns


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["ddpg", "portfolio"])
def test_intervals_hold_the_excess_as_often_as_they_say(preset: str) -> None:
    """Of 320 intervals 95 % hold the excess of other days, within what their number makes uncertain.

    As if episodes were independent, 88 % do; as if the excess of other days had no error, 88 % of a portfolio's do.
    """
    config = load_config(preset)
    held = intervals_that_hold(config, build_panel(config)[0], traders=40, years=8, seed=2)
    assert set(held) == {"validation", "holdout"}
    assert all(0.92 <= one.share <= 0.98 for one in held.values()), held


EDGE = 0.3


def test_the_planted_column_is_read_as_a_feature_with_its_information_coefficient(tmp_path: Path) -> None:
    options = ["market.first_date=2015-01-01", "trading.holding_bars=5"]
    path = tmp_path / "planted.csv"
    write_planted_prices(load_config("ddpg", options), EDGE, path)
    own = [f"market.data={path}", 'market.own_features=["columns"]']
    config = load_config("ddpg", [*options, *own])
    panel, _ = build_panel(config)
    # Features are normalised a column each, which moves the correlation over the assets of a day by little.
    signal = np.asarray(panel.features)[..., panel.feature_names.index(FEATURE)]
    returns = coming_returns(panel, config.trading)
    found = [
        np.corrcoef(one, other)[0, 1] for one, other in zip(signal, returns, strict=True) if not np.isnan(other).any()
    ]
    assert abs(np.mean(found) - EDGE) < 0.05
