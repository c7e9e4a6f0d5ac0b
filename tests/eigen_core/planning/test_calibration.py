"""Time per generation from a piece of one. No test depends on how long anything takes."""

import time

import pytest
from science_cases import random_panel, small_config

from eigen_core import planning
from eigen_core.errors import InputError


class _Clock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def one_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", _Clock())


@pytest.mark.usefixtures("one_second_each")
def test_a_piece_is_scaled_to_the_whole_population_and_all_steps() -> None:
    config = small_config(population={"size": 6, "group_size": 3}, learner={"gradient_steps": 8})
    found = planning.calibrate(config, random_panel(config))
    # One of two groups in one second, two of eight steps in another.
    assert (found.evaluate, found.train, found.evolve) == (2.0, 8.0, 2.0)
    assert found.seconds == 12.0


@pytest.mark.usefixtures("one_second_each")
def test_a_run_that_never_learns_trains_for_no_time() -> None:
    config = small_config(learner={"gradient_steps": 0})
    assert planning.calibrate(config, random_panel(config)).train == 0.0


@pytest.mark.usefixtures("one_second_each")
def test_what_the_piece_could_not_show_is_not_invented() -> None:
    config = small_config(
        population={"size": 4, "group_size": 2},
        evaluation={"slices": 1, "lowest": 1},
        learner={"batch_size": 70, "block_days": 80, "accumulation_steps": 1},
        generations=20,
    )
    found = planning.calibrate(config, random_panel(config))
    assert found.train is None
    assert found.seconds == found.evaluate + found.evolve


def test_a_configuration_that_cannot_be_trained_is_refused() -> None:
    config = small_config()
    with pytest.raises(InputError):
        planning.calibrate(config, random_panel(config, days=70))
