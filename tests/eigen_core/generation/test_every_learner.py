"""What holds of every learner: it learns, the same bits come out of any grouping, and out of a resume."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from science_cases import learner_with, random_panel, small_config
from training_cases import advance, content_of

from eigen_core.checkpoint.run import RunDirectory
from eigen_core.config import Config, merge, values
from eigen_core.generation import TrainingState, hold_out, restore, snapshot, snapshot_form, start_training

LEARNERS = list(values.LEARNERS)


def config_with(algorithm: str, **sections: Any) -> Config:
    return small_config(**merge({"learner": {"algorithm": algorithm}}, sections))


def begin(config: Config) -> TrainingState:
    return start_training(config, random_panel(config))


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_resumed_run_goes_on_with_the_same_bits(learner: str, tmp_path: Path) -> None:
    config = config_with(learner)
    state = advance(begin(config), 2)
    learned = state.history[-1].learning
    assert learned is not None
    assert {curve.name for curve in state.learner.curves} <= learned.keys()
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state))
    resumed = begin(config)
    loaded = directory.load_newest(snapshot_form(resumed))
    assert loaded is not None
    restore(resumed, loaded.snapshot)
    assert content_of(advance(resumed, 1)) == content_of(advance(state, 1))
    assert hold_out(state) is not None


# A learner that replays and one that does not show what observing nothing changes.
@pytest.mark.parametrize(
    ("learner", "portfolio"),
    [
        pytest.param(learner, portfolio, marks=[] if portfolio or learner in ("ddpg", "ppo") else pytest.mark.thorough)
        for learner, portfolio in product(LEARNERS, [True, False])
    ],
)
@pytest.mark.cpu
def test_groups_change_no_bit(learner: str, portfolio: bool) -> None:
    trading = {"observe_portfolio": portfolio, "max_coefficient": 3.0 if portfolio else None}
    # The last of three is a group of its own.
    populations = [{"size": 3, "group_size": size} for size in (0, 1, 2)]
    contents = [
        content_of(advance(begin(config_with(learner, population=population, trading=trading)), 2))
        for population in populations
    ]
    assert contents[0] == contents[1] == contents[2]


LEARNING: dict[str, dict[str, Any]] = {
    "ddpg": {"actor_learning_rate": 3e-3},
    "td3": {"actor_learning_rate": 3e-3},
    "sac": {"actor_learning_rate": 1e-2, "initial_temperature": 0.05, "entropy_target": -3.0},
    "ppo": {"actor_learning_rate": 1e-2, "epochs": 10},
}
"""Of each learner that needs no more than a `Task`."""


@pytest.mark.parametrize("learner", LEARNING)
def test_it_learns_to_name_the_number_that_is_shown(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By gradients alone."""
    monkeypatch.setitem(values.TASKS, "pointer", "pointer_task:PointerTask")
    common = {"gradient_steps": 40, "accumulation_steps": 1, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0}
    rates = {"critic_learning_rate": 1e-2, "tau": 0.1, **LEARNING[learner]}
    config = config_with(learner, learner=learner_with(learner, **common, **rates), evolution={"enabled": False})
    state = advance(start_training(config.model_copy(update={"task": "pointer"}), None), 8)
    first, last = state.history[0], state.history[-1]
    assert sum(last.validations) > 0.6 * sum(first.validations)
