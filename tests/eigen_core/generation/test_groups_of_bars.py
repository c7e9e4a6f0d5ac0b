"""Groups of bars that test agents: training learns nothing of them, and which bars it has is as skfolio splits them."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from science_cases import LEARNERS_OF_ANY_TASK, learner_with, random_panel, small_config
from skfolio.model_selection import CombinatorialPurgedCV
from training_cases import advance, content_of

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config, MarketConfig
from eigen_core.config.loading import load_config
from eigen_core.generation import start_training
from eigen_core.market import Panel, panel_of_prices
from eigen_core.market.panel import Splits

DAILY = np.datetime64("2001-01-01") + np.arange(2_000)
PURGED = 8 + 5
"""A window and a holding time of `small_config`."""


def grouped(tests: tuple[int, ...], **sections: Any) -> Config:
    market = {"holdout": 0, "groups": 4, "test_groups": tests, "purge": PURGED}
    return small_config(market=market, **sections)


def with_other_bars(panel: Panel, bars: list[int], config: Config) -> Panel:
    """The panel with other prices and features of `bars`, and with the same gaps."""
    generator = keyed_generator(1, 0, "test", "change")
    factors, features = np.ones((panel.days, 1)), panel.features.copy()
    factors[bars] = np.exp(0.3 * generator.standard_normal((len(bars), 1)))
    features[bars] += generator.standard_normal(features[bars].shape).astype(np.float32)
    prices = (panel.open * factors, panel.high * factors, panel.low * factors, panel.close * factors)
    return panel_of_prices(features, *prices, panel.dates, panel.symbols, panel.feature_names, config.market)


KINDS: dict[str, dict[str, Any]] = {
    **{name: {"learner": learner_with(name), "task": "market"} for name in LEARNERS_OF_ANY_TASK},
    "known": {"learner": learner_with("ddpg", known_return_weight=1.0), "network": {"linear_scales": [1, 3]}},
    "counterfactual": {
        "learner": learner_with("counterfactual"),
        "network": {"linear_scales": [1, 3], "linear_standardised": True},
    },
    "direct": {"learner": learner_with("direct"), "network": {"linear_scales": [1, 3]}},
}


@pytest.mark.parametrize(
    ("kind", "tests"), [*((kind, (0, 2)) for kind in KINDS), *(("known", tests) for tests in ((1,), (2, 3)))]
)
def test_training_depends_on_no_bar_of_a_test_group(kind: str, tests: tuple[int, ...]) -> None:
    config = grouped(tests, **KINDS[kind])
    panel = random_panel(config, days=240)
    tested = [bar for group in panel.splits.tests for bar in group]
    assert len(tested) == 60 * len(tests)
    found = content_of(advance(start_training(config, panel), 2))
    assert content_of(advance(start_training(config, with_other_bars(panel, tested, config)), 2)) == found
    learned = list(panel.splits.pieces[-1])
    assert content_of(advance(start_training(config, with_other_bars(panel, learned, config)), 2)) != found


@given(
    size=st.integers(30, 90),
    groups=st.integers(3, 7),
    tested=st.integers(2, 3),
    purge=st.integers(0, 9),
    embargo=st.integers(0, 9),
)
def test_training_bars_are_those_of_skfolio(size: int, groups: int, tested: int, purge: int, embargo: int) -> None:
    # Groups of one size: skfolio adds what is left of a division to the last group.
    tested, bars = min(tested, groups - 1), size * groups
    theirs = CombinatorialPurgedCV(groups, tested, purged_size=purge, embargo_size=embargo)
    chosen = combinations(range(groups), tested)
    for numbers, (known, tests) in zip(chosen, theirs.split(np.zeros((bars, 1))), strict=True):
        market = MarketConfig(
            window=4, validation=6, holdout=0, groups=groups, test_groups=numbers, purge=purge, embargo=embargo
        )
        splits = Splits.of(DAILY[:bars], market)
        assert [list(group) for group in splits.tests] == [list(group) for group in tests]
        # To skfolio the validation, and the bars that are purged before it, belong to training.
        own = {*splits.training_bars.tolist(), *splits.validation}
        before = set(range(splits.validation.start - purge, splits.validation.start)) & set(known.tolist())
        assert own | before == set(known.tolist())
        assert len(splits.validation) == 6
        for group in splits.tests:
            near = {*range(group.start - purge, group.stop + purge + embargo)}
            assert not own & near


@given(
    gaps=st.lists(st.integers(1, 40), min_size=30, max_size=120),
    groups=st.integers(2, 6),
    hours=st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 200)),
    data=st.data(),
)
def test_times_beside_tests_leave_out_the_bars_that_end_within_them(
    gaps: list[int], groups: int, hours: tuple[int, int, int], data: st.DataObject
) -> None:
    tested = data.draw(st.sets(st.integers(0, groups - 1), min_size=1, max_size=groups - 1))
    dates = np.datetime64("2024-01-01T00:00:00") + np.cumsum(gaps) * np.timedelta64(1, "h")
    purge, validation = np.timedelta64(hours[0], "h"), np.timedelta64(hours[2], "h")
    names = {"purge": f"{hours[0]}h", "embargo": f"{hours[1]}h", "validation": f"{hours[2]}h", "holdout": 0}
    market = MarketConfig.model_validate({**names, "groups": groups, "test_groups": tuple(tested)})
    splits = Splits.of(dates, market)
    known = [*splits.training_bars.tolist(), *splits.validation]
    for group in splits.tests:
        # Bars of a piece end before the test by more than the purge, which counts back from its last bar before.
        before = [bar for bar in known if bar < group.start]
        after = [bar for bar in known if bar >= group.stop]
        assert all(dates[bar] <= dates[group.start - 1] - purge for bar in before)
        assert all(dates[bar] > dates[group.stop - 1] + purge for bar in after)
    trained = [bar for bar in splits.training_bars.tolist() if splits.validation and bar < splits.validation.start]
    assert all(dates[bar] <= dates[splits.validation.start - 1] - purge for bar in trained)
    assert all(dates[splits.validation[-1]] - dates[bar] < validation for bar in splits.validation)


def test_groups_that_leave_too_few_bars_are_refused_with_the_number_that_is_needed() -> None:
    config = grouped((1,))
    with pytest.raises(InputError, match="Give at least 32 bars more"):
        Splits.of(DAILY[:120], config.market).require(config)
    Splits.of(DAILY[: 120 + 32], config.market).require(config)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["market.test_groups=[1]"], "set market.groups"),
        (["market.groups=4", "market.holdout=0"], "must be some"),
        (["market.groups=2", "market.test_groups=[0,1]", "market.holdout=0"], "must be some"),
        (["market.groups=4", "market.test_groups=[4]", "market.holdout=0"], "must be some"),
        (["market.groups=4", "market.test_groups=[1,1]", "market.holdout=0"], "must be some"),
        (["market.groups=4", "market.test_groups=[1]"], "set market.holdout to 0"),
    ],
)
def test_groups_that_contradict_each_other_are_refused(given: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_config(None, given)
