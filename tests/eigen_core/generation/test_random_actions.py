"""Random actions at first: uniform over their range, each agent's own, and no bit depends on groups or a resume."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from science_cases import LEARNERS_OF_ANY_TASK, random_panel, small_config
from training_cases import advance, content_of, saved_of

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.generation import TrainingState, evaluate, evolve, restore, start_training, train
from eigen_core.task import open_data

OFF_POLICY = sorted(set(LEARNERS_OF_ANY_TASK) - {"ppo"})
ENDLESS: dict[str, Any] = {
    "task": "gym:uneven_environment:EndlessEnvironment",
    "environment": {"episode_steps": 9},
    "exploration": {"random_steps": 91},
}
MARKET: dict[str, Any] = {"exploration": {"random_steps": 171}}
PORTFOLIO: dict[str, Any] = {**MARKET, "task": "portfolio", "portfolio": {"initial_speed": 0.1}}


def begin(config: Config) -> TrainingState:
    content = random_panel(config) if config.task in ("market", "portfolio") else open_data(config).content
    return start_training(config, content)


def drawn(state: TrainingState, generation: int) -> NDArray[np.float64]:
    """Actions of every agent, as fractions of their range: `[agents * episodes, steps, ...]`."""
    shape = state.task.noise_shape(state.config.evaluation.slices)
    generators = [
        keyed_generator(state.config.seed, generation, "evaluate", agent, "random actions") for agent in range(5)
    ]
    return np.concatenate([generator.uniform(-1.0, 1.0, shape) for generator in generators])


@pytest.mark.parametrize("algorithm", OFF_POLICY)
@pytest.mark.parametrize("sections", [ENDLESS, MARKET, PORTFOLIO], ids=["gym", "market", "portfolio"])
def test_as_many_generations_as_it_takes_are_played_at_random(sections: dict[str, Any], algorithm: str) -> None:
    state = begin(small_config(**sections, learner={"algorithm": algorithm}))
    for generation in range(1, 4):
        before = state.replay.written
        result = evaluate(state)
        rows = torch.arange(before, state.replay.written) % state.replay.capacity
        stored = state.replay.pick(rows, "action")["action"]
        actions = (state.task.box.actions(stored) if algorithm == "sac" else stored).double().cpu().numpy()
        low, high = (bound.double().cpu().numpy() for bound in (state.task.box.low, state.task.box.high))
        expected = low + (high - low) * (1.0 + drawn(state, generation)) / 2.0
        plays_at_random = generation <= 2
        assert np.allclose(actions, expected.reshape(actions.shape), atol=1e-5) == plays_at_random
        assert (result.fitness.tolist() == result.validations.tolist()) == plays_at_random
        train(state)
        evolve(state)


@pytest.mark.cpu
def test_groups_retries_and_a_resume_change_no_bit() -> None:
    whole = begin(small_config(**ENDLESS))
    expected = content_of(advance(whole, 4))
    grouped = begin(small_config(**ENDLESS, population={"group_size": 2}))
    evaluate(grouped)
    evaluate(grouped)
    train(grouped)
    evolve(grouped)
    resumed = begin(small_config(**ENDLESS, population={"group_size": 1}))
    restore(resumed, saved_of(grouped))
    assert content_of(advance(resumed, 3)) == expected


def test_none_are_played_unless_they_are_asked_for() -> None:
    one, other = (begin(small_config(**{**ENDLESS, "exploration": {"random_steps": steps}})) for steps in (0, 1))
    assert not np.array_equal(evaluate(one).fitness, evaluate(other).fitness)
    advance(other, 1)
    assert (evaluate(other).fitness != evaluate(other).validations).any()


def test_ppo_refuses_them() -> None:
    config = small_config(**ENDLESS, learner={"algorithm": "ppo"})
    with pytest.raises(InputError, match=r"exploration\.random_steps 91: PPO learns from what its own policy played"):
        begin(config)


def test_a_range_without_an_end_refuses_them() -> None:
    with pytest.raises(ValidationError, match=r"trading\.max_coefficient is empty, no bound: give a bound"):
        small_config(**MARKET, trading={"max_coefficient": None})
