"""Precision and random actions at first: the same bits for any group and resume."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from science_cases import LEARNERS_OF_ANY_TASK, random_panel, small_config
from training_cases import advance, content_of, saved_of, small_state

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.generation import TrainingState, evaluate, evolve, restore, start_training, train
from eigen_core.networks.layout import product
from eigen_core.task import open_data

SHORT: dict[str, Any] = {"trading_days": 5, "settlement_days": 3, "holding_days": 3}


def trained(precision: str, encoder: str, group_size: int, generations: int = 2) -> dict[str, Any]:
    state = small_state(
        20,
        network={"encoder": encoder, "precision": precision},
        population={"size": 16, "group_size": group_size},
        trading=SHORT,
        learner={"gradient_steps": 2, "accumulation_steps": 1},
    )
    content = content_of(advance(state, generations))
    assert {tensor.dtype for tensor in state.population.tensors().values()} == {torch.float32, torch.int64}
    assert content["history"][-1]["learning"] is not None
    return content


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.thorough
@pytest.mark.cpu
def test_groups_change_no_bit(encoder: str) -> None:
    expected = trained("bfloat16", encoder, 16)
    assert all(trained("bfloat16", encoder, group_size) == expected for group_size in (4, 1))


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_a_generation_is_near_that_in_float32_and_not_the_same(encoder: str) -> None:
    whole, half = (trained(precision, encoder, 16, 1)["history"][0] for precision in ("float32", "bfloat16"))
    assert half["weights_sha256"] != whole["weights_sha256"]
    assert half["learning"]["value"] == pytest.approx(whole["learning"]["value"], rel=0.1, abs=0.01)
    assert half["learning"]["critic_gradient_norm"] == pytest.approx(whole["learning"]["critic_gradient_norm"], rel=0.1)


def test_factors_are_rounded_and_sums_are_not() -> None:
    """1 + 2^-9 becomes 1; 512 times 1 / 3 in bfloat16 would stop growing long before its sum."""
    left, right = torch.full((1, 1, 512), 1.0 + 2.0**-9), torch.full((1, 512, 8), 0.333984375)
    found = product(left, right.bfloat16())
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [171.0] * 8
    assert product(left, right)[0, 0, 0].item() == pytest.approx(512 * (1.0 + 2.0**-9) * 0.333984375, rel=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_gradient_of_weights_is_float32_and_that_of_the_rounded_factors(precision: torch.dtype) -> None:
    rows = torch.linspace(-1.0, 1.0, 24).reshape(1, 6, 4)
    weights = torch.linspace(0.0, 1.0, 32).reshape(1, 4, 8).requires_grad_()
    torch.autograd.backward(product(rows, weights.to(precision)).sum())
    assert weights.grad is not None
    assert weights.grad.dtype == torch.float32
    expected = rows.to(precision).float().sum(1)[:, :, None].expand(1, 4, 8)
    assert torch.allclose(weights.grad, expected, rtol=0.01 if precision == torch.bfloat16 else 1e-6, atol=1e-6)


HALF = {"actions": "float16"}


def test_a_run_with_them_goes_on_from_its_snapshot_with_the_same_bits() -> None:
    state = advance(small_state(replay=HALF), 2)
    other = small_state(replay=HALF)
    restore(other, saved_of(state))
    assert content_of(advance(other, 2)) == content_of(advance(state, 2))


def test_without_a_bound_of_actions_they_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replay\.actions float16 .* trading\.max_coefficient is empty"):
        Config(replay=HALF, trading={"max_coefficient": None})


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


def test_ppo_refuses_them() -> None:
    config = small_config(**ENDLESS, learner={"algorithm": "ppo"})
    with pytest.raises(InputError, match=r"exploration\.random_steps 91: PPO learns from what its own policy played"):
        begin(config)


def test_a_range_without_an_end_refuses_them() -> None:
    with pytest.raises(ValidationError, match=r"trading\.max_coefficient is empty, no bound: give a bound"):
        small_config(**MARKET, trading={"max_coefficient": None})
