"""What a Gymnasium environment is planned to need is what it takes."""

import tracemalloc
from functools import partial
from typing import Any

import pytest
from live_tensors import LiveTensors
from science_cases import LEARNERS_OF_ANY_TASK, small_config

from eigen_core.config import merge
from eigen_core.errors import InputError
from eigen_core.generation import evaluate, start_training, train
from eigen_core.planning import Limit, calibrate, phases, plan_of
from eigen_core.planning.scale import Scale
from eigen_core.task import open_data, task_class

WIDE: dict[str, Any] = {
    "task": "gym:uneven_environment:EndlessEnvironment",
    "environment": {"episode_steps": 400, "normalise_observations": True},
    "network": {"head_width": 64, "head_layers": 3},
    "replay": {"capacity": 5_000, "minimum": 20},
    "learner": {"batch_size": 500, "accumulation_steps": 1},
}


@pytest.mark.parametrize("learner", LEARNERS_OF_ANY_TASK)
@pytest.mark.parametrize("group_size", [0, 2])
def test_learning_takes_what_is_planned(group_size: int, learner: str) -> None:
    # Enough steps for batches.
    sections = {
        "learner": {"algorithm": learner},
        "population": {"group_size": group_size},
        "environment": {"episode_steps": 100},
    }
    config = small_config(**merge(WIDE, sections))
    data = open_data(config)
    scale = Scale.of(config, data.facts)
    state = start_training(config, data.content)
    evaluate(state)
    with LiveTensors() as tensors:
        measured = tensors.peak_of(partial(train, state))
    assert (scale.task.critic, scale.task.actor) == (state.task.critic_layout.size, state.task.actor_layout.size)
    assert scale.population_bytes == state.population.nbytes
    assert scale.population_bytes + phases.train(scale) == pytest.approx(measured, rel=0.2)


@pytest.mark.cpu
def test_playing_takes_what_is_planned() -> None:
    config = small_config(**WIDE)
    data = open_data(config)
    state = start_training(config, data.content)
    tracemalloc.start()
    evaluate(state)
    _, taken = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    planned = phases.evaluate(Scale.of(config, data.facts))
    # Python's own objects are among what is taken.
    assert 0.8 * planned < taken < 1.1 * planned


def test_a_run_is_planned_and_timed() -> None:
    config = small_config(**merge(WIDE, {"environment": {"episode_steps": 100}}))
    facts = open_data(config).facts
    plan = plan_of(config, facts, device="cpu", limits={"host": Limit(600_000_000, "here")})
    assert {"environments", "replay", "population"} <= {part.name for part in plan.parts}
    timed = calibrate(config, facts)
    assert min(timed.evaluate, timed.train, timed.evolve) > 0
    with pytest.raises(InputError, match="not played on a panel"):
        task_class(config).facts_of_shape(config, 1_000, 10, 10)
