"""PPO: clipped values, annealing, and agents that stop early without changing a bit of others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pointer_task import PointerTask
from science_cases import random_panel, small_config
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import PpoConfig
from eigen_core.generation import start_training
from eigen_core.learning.interface import learner_settings
from eigen_core.learning.ppo import PpoLearner
from eigen_core.networks.population import Population, initial_weights
from eigen_core.task.replay import Replay

CPU = torch.device("cpu")
AGENTS, EPISODES = 3, 2
GENERATIONS = 25
LEARNER: dict[str, Any] = {
    "algorithm": "ppo",
    "epochs": 3,
    "batch_size": 40,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "reward_scale": 0.5,
    "clip_range": 0.05,
    "value_clip": 0.02,
    "entropy_coefficient": 0.1,
    "actor_learning_rate": 3e-2,
    "critic_learning_rate": 1e-2,
    "weight_decay": 1e-3,
    "gradient_clip": 0.7,
}

STOPPING: dict[str, Any] = {"kl_limit": 2e-3, "batch_size": 10, "epochs": 4, "actor_learning_rate": 3e-3}


class Case:
    """Agents and what they have played; all of an agent's steps are one minibatch unless a test has more."""

    def __init__(self, **learner: Any) -> None:
        self.config = small_config(
            generations=GENERATIONS,
            learner={**LEARNER, **learner},
            population={"size": AGENTS},
            evaluation={"slices": EPISODES, "lowest": 1},
        )
        self.settings = learner_settings(self.config, PpoConfig)
        self.task = PointerTask(self.config, None, CPU, PpoLearner.heads(self.config))
        self.learner = PpoLearner(self.config, self.task)
        layouts = (self.task.critic_layout, self.task.actor_layout)
        self.population = self.learner.new_agents(initial_weights(layouts, AGENTS, 1, CPU))
        # It wraps: the last agent's second episode begins at the end.
        self.replay = Replay(AGENTS * EPISODES * 20 + 17, self.task.columns, CPU)
        for generation in range(2):
            noise = keyed_generator(generation, "noise").standard_normal((AGENTS, *self.task.noise_shape(EPISODES)))
            starts = np.arange(AGENTS * EPISODES).reshape(AGENTS, EPISODES) + 10 * generation
            played = self.task.roll_out(
                self.population.weights, starts, torch.tensor(noise, dtype=torch.float32), record=True
            )
            assert played.transitions is not None
            self.rows = played.transitions
            self.replay.append(self.rows)
        plan = self.learner.plan(self.replay, AGENTS, 2)
        assert plan is not None
        self.plan = plan

    def learn(self) -> dict[str, Tensor]:
        return self.learner.learn(self.population, self.plan, self.replay, lambda: None).curves


@pytest.mark.parametrize("clip", [None, 1e-6])
def test_where_values_are_clipped_the_larger_of_both_errors_counts(clip: float | None) -> None:
    """That of the values before learning, near which they are kept: so the loss never falls, and else it does."""
    loss = Case(value_clip=clip).learn()["value_loss"]
    assert ((loss >= loss[:, :1] - 1e-4).all(dim=1)).tolist() == [clip is not None] * AGENTS


@pytest.mark.parametrize(("generation", "left"), [(1, 1.0), (2, 0.96), (GENERATIONS, 0.04), (GENERATIONS + 1, 0.0)])
def test_annealing_lowers_the_learning_rates_to_zero_over_the_generations(generation: int, left: float) -> None:
    rates = {name: left * LEARNER[name] for name in ("actor_learning_rate", "critic_learning_rate")}
    annealed, expected = Case(anneal=True), Case(**rates)
    for case in (annealed, expected):
        case.plan = replace(case.plan, generation=generation)
        case.learn()
    torch.testing.assert_close(annealed.population.weights, expected.population.weights, rtol=1e-4, atol=1e-6)
    assert torch.equal(Case().population.weights, annealed.population.weights) == (left == 0.0)


def test_the_first_spread_is_the_configured_one() -> None:
    case, plain = Case(initial_log_std=-0.5), Case()
    log_std = case.task.actor_layout.views(case.population.weights[:, case.task.critic_layout.size :])["action.log_std"]
    assert torch.equal(log_std, torch.full_like(log_std, -0.5))
    assert int((case.population.weights != plain.population.weights).sum()) == log_std.numel()


def test_an_agent_that_has_moved_too_far_keeps_its_bits() -> None:
    case = Case(**STOPPING)
    seen: list[Population] = []
    curves = case.learner.learn(
        case.population, case.plan, case.replay, lambda: seen.append(case.population.clone())
    ).curves
    stopped = curves["policy_loss"].isnan()
    assert stopped.any()
    assert not stopped[:, 0].any()
    # Once stopped, an agent does not go on; until then it was within the limit.
    assert torch.equal(stopped, stopped.cummax(1).values)
    assert (curves["kl_divergence"][~stopped] <= STOPPING["kl_limit"]).all()
    for step in range(1, 16):
        for agent in range(AGENTS):
            before, after = (seen[index].rows(slice(agent, agent + 1)) for index in (step - 1, step))
            for name in ("weights", "first_moment", "second_moment"):
                same = torch.equal(before.tensors()[name], after.tensors()[name])
                assert same == bool(stopped[agent, step]), name
    assert torch.equal(case.population.state["steps"], (~stopped).sum(1))


def test_an_agent_whose_divergence_overflows_stops_and_stays_finite() -> None:
    case = Case()
    advantages = case.learner._filled(case.population, case.plan, case.replay).of_agents("advantage")
    # An action far out whose density can only rise.
    slot = int(case.plan.starts[0, 0]) + int(advantages[0, 0].argmax())
    case.replay.ring().columns["action"][slot % case.replay.capacity] = 1e10
    stopped = case.learn()["kl_divergence"].isnan()
    assert stopped[0].any()
    assert not stopped[1:].any()
    assert case.population.weights.isfinite().all()


def test_early_stops_of_some_change_no_bit_of_others() -> None:
    case, together = Case(**STOPPING), Case(**STOPPING)
    curves = together.learn()
    assert len(set(together.population.state["steps"].tolist())) > 1
    for agents in (slice(0, 1), slice(1, 3)):
        learned = case.learner.learn(case.population.rows(agents), case.plan.rows(agents), case.replay, lambda: None)
        for name, tensor in learned.group.tensors().items():
            assert torch.equal(tensor, together.population.tensors()[name][agents]), name
        for name, curve in learned.curves.items():
            assert torch.equal(curve.nan_to_num(-1.0), curves[name][agents].nan_to_num(-1.0)), name


def test_an_encoder_of_blocks_is_refused() -> None:
    config = small_config(learner={"algorithm": "ppo"}, network={"encoder": "tcn"})
    with pytest.raises(InputError, match="filter_bank"):
        start_training(config, random_panel(config))
