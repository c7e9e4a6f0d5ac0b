"""The interval of the excess holds what it says in validation and in the holdout, whose episodes overlap."""

import pytest

from benchmarks.intervals import intervals_that_hold
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["quickstart", "portfolio"])
def test_intervals_hold_the_excess_as_often_as_they_say(preset: str) -> None:
    """Of 320 intervals 95 % hold the excess of other days, within what their number makes uncertain.

    As if episodes were independent, 88 % do; as if the excess of other days had no error, 88 % of a portfolio's do.
    """
    config = load_config(preset)
    held = intervals_that_hold(config, build_panel(config)[0], traders=40, years=8, seed=2)
    assert set(held) == {"validation", "holdout"}
    assert all(0.92 <= one.share <= 0.98 for one in held.values()), held
