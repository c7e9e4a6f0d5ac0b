"""What PPO, TD3 and SAC learn equals what Stable-Baselines3 learns from the same weights and batches.

Where ours differ on purpose, Stable-Baselines3 is set to what ours do: PPO normalises advantages over all episodes of a
generation, bounds the gradients of actor and critic apart (no bound is reached here) and squashes its actions; SAC's
densities are exact. One difference is left out: with `value_clip` PPO takes the larger of two errors, as OpenAI
Baselines does, and Stable-Baselines3 the clipped one.
"""

from importlib import import_module
from typing import Any

import pytest
import torch
from science_cases import small_config
from torch import Tensor
from training_cases import begun

from eigen_core.config import merge
from eigen_core.generation import TrainingState, evaluate
from eigen_core.networks.population import initial_weights

TOLERANCE = 1e-5
RATE = 1e-3
BASE: dict[str, Any] = {
    "task": "gym:uneven_environment:UnevenEnvironment",
    "environment": {"episode_steps": 9},
    "network": {"head_width": 16},
    "population": {"size": 2},
    "exploration": {"scale": 0.3},
    "evaluation": {"slices": 12},
    "replay": {"minimum": 1},
    "learner": {
        "batch_size": 32,
        "accumulation_steps": 1,
        "gamma": 0.9,
        "tau": 0.05,
        "actor_learning_rate": RATE,
        "critic_learning_rate": RATE,
        "temperature_learning_rate": RATE,
        "weight_decay": 1e-2,
        "gradient_clip": 1e9,
        "reward_scale": 1.0,
        "initial_temperature": 0.2,
        # Near the entropy of new agents, so that the temperature depends on its size and not on its sign alone.
        "entropy_target": 0.6,
        "entropy_coefficient": 0.05,
        "clip_range": 0.02,
        "target_noise": 0.2,
    },
}
SEVERAL: dict[str, dict[str, Any]] = {
    "td3": {"gradient_steps": 30, "policy_delay": 2},
    "sac": {"gradient_steps": 30},
    "ppo": {"epochs": 4, "batch_size": 30},
}


@pytest.fixture(scope="module")
def baselines() -> Any:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed: run `make setup`.")
    return import_module("stable_baselines")


def played(algorithm: str, **learner: Any) -> TrainingState:
    """Agents that have played episodes of 1 to 9 steps, with targets that are not their weights."""
    config = small_config(**merge(BASE, {"learner": {"algorithm": algorithm, **SEVERAL[algorithm], **learner}}))
    state = begun(config)
    evaluate(state)
    targets = state.population.state.get("targets")
    if targets is not None:
        layouts = (state.task.critic_layout, state.task.actor_layout)
        targets.copy_(initial_weights(layouts, len(targets), 99, state.device)[:, : targets.shape[1]])
    return state


def disagreements(baselines: Any, state: TrainingState) -> tuple[set[str], dict[str, Tensor]]:
    """Return the names of parameters and curves that differ from theirs, and our curves."""
    plan = state.learner.plan(state.replay, state.population.size, 1)
    assert plan is not None
    learn = getattr(baselines, state.config.learner.algorithm)
    theirs = [learn(state, agent, plan) for agent in range(state.population.size)]
    learned = state.learner.learn(state.population.clone(), plan, state.replay, lambda: None)
    differing = set()
    for agent, expected in enumerate(theirs):
        before, ours = (baselines.parameters_of(state, each, agent) for each in (state.population, learned.group))
        for name, parameter in ours.items():
            assert (parameter - before[name]).abs().max() > 10 * TOLERANCE, f"{name} has not moved"
        ours |= {name: curve[agent].nanmean() for name, curve in learned.curves.items() if name in expected}
        assert ours.keys() == expected.keys()
        for name, tensor in ours.items():
            if not torch.allclose(tensor.double(), expected[name].double(), rtol=TOLERANCE, atol=TOLERANCE):
                differing.add(name)
    return differing, learned.curves


@pytest.mark.parametrize("algorithm", SEVERAL)
def test_updates_equal_those_of_stable_baselines(algorithm: str, baselines: Any) -> None:
    assert disagreements(baselines, played(algorithm))[0] == set()


def test_a_policy_that_moves_too_far_stops_at_the_same_update(baselines: Any) -> None:
    differing, curves = disagreements(baselines, played("ppo", kl_limit=1e-4))
    # Their means are of the last update too, which is not made.
    assert differing <= {"value_loss", "policy_loss", "entropy", "clipped_share"}
    assert curves["policy_loss"].isnan().any()
