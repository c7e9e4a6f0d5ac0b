"""The folds of a walk: their days, their configurations, and that a walk goes on as it was begun."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from skfolio.model_selection import WalkForward

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.judging.walk_forward import Walk, plan_walk, save_walk, with_purge
from eigen_core.market.panel import Splits

DATES = np.datetime64("2001-01-01") + np.arange(3_000)


def small_config(**market: Any) -> Config:
    """At least 14 days to train, 12 of validation, 15 played, 7 purged twice: 55 days for a fold."""
    return with_purge(
        Config.model_validate(
            {
                "preset": "ddpg",
                "seed": 5,
                "market": {"window": 4, "validation": 12, "holdout": 15, **market},
                "trading": {"trading_bars": 7, "settlement_bars": 3, "holding_bars": 3},
                "network": {"scales": [1, 4]},
                "learner": {"batch_size": 8},
            }
        ),
        None,
    )


def days_of(walk: Walk) -> list[list[range]]:
    number = {str(date): day for day, date in enumerate(DATES)}
    return [
        [range(number[days.first], number[days.last] + 1) for days in (fold.train, fold.validation, fold.played)]
        for fold in walk.folds
    ]


@given(
    days=st.integers(55, 400),
    folds=st.integers(1, 12),
    train_bars=st.none() | st.integers(14, 120),
)
def test_folds_are_those_of_skfolio(days: int, folds: int, train_bars: int | None) -> None:
    config = small_config()
    purge = config.market.purge
    assert purge == 4 + 3
    # To skfolio a validation and the days that are purged before it belong to training.
    before = (train_bars or 14) + purge + 12
    others = WalkForward(test_size=15, train_size=before, purged_size=purge, expand_train=train_bars is None)
    needed = before + purge + folds * 15
    if days < needed:
        with pytest.raises(InputError, match="--folds"):
            plan_walk("w", config, DATES[:days], folds, train_bars=train_bars)
        return
    walk = plan_walk("w", config, DATES[:days], folds, train_bars=train_bars)
    skipped = days - needed
    expected = list(others.split(np.zeros((needed, 1))))
    assert len(expected) == folds
    for (train, validation, played), (known, tested) in zip(days_of(walk), expected, strict=True):
        first = 0 if train_bars is None else int(known[0]) + skipped
        assert (train.start, validation.stop) == (first, int(known[-1]) + 1 + skipped)
        assert played == range(int(tested[0]) + skipped, int(tested[-1]) + 1 + skipped)
        assert validation.start - train.stop == purge
        assert len(validation) == 12
        assert train_bars is None or len(train) == train_bars


@given(folds=st.integers(1, 6), train_bars=st.none() | st.integers(14, 60))
def test_the_panel_of_a_fold_is_split_as_it_was_planned(folds: int, train_bars: int | None) -> None:
    walk = plan_walk("w", small_config(), DATES[:300], folds, train_bars=train_bars)
    for fold, (train, validation, played) in zip(walk.folds, days_of(walk), strict=True):
        market = walk.config_of(fold, 5).market
        kept = [
            day
            for day, date in enumerate(DATES[:300])
            if (market.first_date or "") <= str(date) <= (market.last_date or "")
        ]
        splits = Splits.of(DATES[kept], market)
        found = [
            range(kept[split[0]], kept[split[-1]] + 1) for split in (splits.train, splits.validation, splits.holdout)
        ]
        assert found == [train, validation, played]
    spans = [played for _, _, played in days_of(walk)]
    assert [day for span in spans for day in span] == list(range(300 - 15 * folds, 300))


def test_each_fold_and_seed_is_a_run() -> None:
    walk = plan_walk("mine", small_config(first_date="2001-01-05"), DATES[:200], 2, seeds=2)
    runs = dict(walk.runs())
    assert list(runs) == ["mine-fold-1-seed-5", "mine-fold-1-seed-6", "mine-fold-2-seed-5", "mine-fold-2-seed-6"]
    config = runs["mine-fold-1-seed-6"]
    assert (config.seed, config.market.first_date, config.market.last_date) == (6, "2001-01-05", "2001-07-04")


@pytest.mark.parametrize(
    ("task", "fill", "traded"),
    [
        ("market", "next_open", 3),
        # From the fill of a decision to that of the next.
        ("portfolio", "next_open", 2),
        ("portfolio", "next_close", 2),
        ("portfolio", "same_close", 1),
    ],
)
def test_as_many_days_are_purged_as_are_observed_and_traded(task: str, fill: str, traded: int) -> None:
    values = small_config().model_dump()
    values |= {"task": task, "trading": {**values["trading"], "fill": fill}}
    assert with_purge(Config.model_validate(values), None).market.purge == 4 + traded
    assert with_purge(Config.model_validate(values), 11).market.purge == 11


def test_too_few_days_are_refused_with_the_number_of_folds_that_fits() -> None:
    with pytest.raises(InputError, match=r"--folds 9: 170 bars are enough for 8"):
        plan_walk("w", small_config(), DATES[:170], 9)
    assert len(plan_walk("w", small_config(), DATES[:170], 8).folds) == 8
    with pytest.raises(InputError, match="54 bars are enough for 0"):
        plan_walk("w", small_config(), DATES[:54], 1)
    with pytest.raises(InputError, match="--train-bars 13: with these settings a fold needs 14 bars or more"):
        plan_walk("w", small_config(), DATES, 1, train_bars=13)
    with pytest.raises(InputError, match="A walk plays"):
        plan_walk("w", small_config(holdout=0), DATES, 1)


def test_a_walk_goes_on_as_it_was_begun_or_is_refused(tmp_path: Path) -> None:
    config = small_config()
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": str(tmp_path)})})

    def begin(settings: Config = config, days: int = 200, **options: Any) -> None:
        save_walk(plan_walk("mine", settings, DATES[:days], 2, **options))

    begin()
    begin()
    dropping = config.market.model_copy(update={"suspicious": "drop"})
    begin(config.model_copy(update={"threads": 2}))
    for differing, sentence in (
        ({"seeds": 2}, "exists with other settings: --seeds differs"),
        ({"train_bars": 40}, "exists with other settings: --train-bars, the days of its folds differ"),
        ({"days": 199}, "the days of its folds differ"),
        ({"settings": config.model_copy(update={"generations": 7})}, "generations differs"),
        ({"settings": config.model_copy(update={"market": dropping})}, "market.suspicious differs"),
    ):
        with pytest.raises(InputError, match=sentence):
            begin(**differing)
    file = tmp_path / "walks" / "mine.json"
    content = file.read_bytes()
    file.write_text("{}")
    with pytest.raises(InputError, match="has no checksum: restore a copy of this file, or delete it and run the same"):
        begin()
    file.unlink()
    begin()
    assert file.read_bytes() == content
