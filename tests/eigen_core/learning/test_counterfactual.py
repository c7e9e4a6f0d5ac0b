"""A step equals a plain one of each agent; it learns from what was never played; other tasks are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from training_cases import advance, market_of

from benchmarks.synthetic import leaking_market
from eigen_core.common.errors import InputError
from eigen_core.config import Config, merge
from eigen_core.generation import start_training
from eigen_core.generation.phases import validation_slices
from eigen_core.learning.counterfactual import CounterfactualLearner
from eigen_core.learning.steps import BatchPlan
from eigen_core.networks.outcomes import RESERVE_VALUES

LEARNER: dict[str, Any] = {"algorithm": "counterfactual", "target_bins": 3, "critic_learning_rate": 1e-2}


def config_with(**sections: Any) -> Config:
    return small_config(**merge({"learner": LEARNER}, sections))


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_a_step_equals_a_plain_one(encoder: str) -> None:
    learner = {"gradient_steps": 2, "reward_scale": 0.1, "reward_clip": 0.4, "gradient_clip": 0.3, "weight_decay": 0.2}
    config = config_with(learner=learner, network={"encoder": encoder})
    state = start_training(config, random_panel(config))
    task, before = market_of(state), state.population.clone()
    plan = state.learner.plan(state.replay, state.population.size, 1)
    assert isinstance(plan, BatchPlan)
    curves = state.learner.learn(state.population, plan, state.replay, lambda: None).curves
    critic, stepped = task.critic_layout.size, before.weights.shape[1] - RESERVE_VALUES
    for agent in range(before.size):
        row = before.weights[agent : agent + 1, :stepped].clone().requires_grad_()
        optimizer = torch.optim.AdamW([row], lr=config.learner.critic_learning_rate, weight_decay=0.2)
        for step in range(2):
            loss = torch.zeros((), device=state.device)
            for batch in range(2):
                moments = plan.slots[agent : agent + 1, step, batch].to(state.device)
                observed, outcomes = task.outcomes(moments, plan.blocks[step][batch])
                whole = torch.cat([row, before.weights[agent : agent + 1, stepped:]], dim=1)
                encoding = task.encode(task.critic_layout.views(whole[:, :critic]), observed)
                expected = task.expected_outcomes(task.actor_layout.views(whole[:, critic:]), encoding)
                rewards = (outcomes.rewards * 0.1).clamp(-0.4, 0.4)
                for found, wanted in ((expected.rewards, rewards), (expected.shares, outcomes.shares)):
                    loss = loss + ((found - wanted)[outcomes.known] ** 2).mean() / 2
            assert float(curves["reward_loss"][agent, step] + curves["time_loss"][agent, step]) == pytest.approx(
                loss.item(), rel=1e-4
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norm = torch.nn.utils.clip_grad_norm_([row], 0.3)
            assert float(curves["gradient_norm"][agent, step]) == pytest.approx(float(norm), rel=1e-3)
            optimizer.step()
        moved = (row.detach()[0] - before.weights[agent, :stepped]).norm()
        assert (state.population.weights[agent, :stepped] - row.detach()[0]).norm() <= 1e-2 * moved
        # What evolution moves, no gradient does.
        assert state.population.weights[agent, stepped] == before.weights[agent, stepped]


def test_it_learns_from_the_first_generation_on() -> None:
    """Of what was never played: no transition is needed."""
    config = config_with(replay={"minimum": 400})
    state = advance(start_training(config, random_panel(config)), 1)
    assert state.history[0].learning is not None


@pytest.mark.thorough
def test_it_learns_a_leak_in_fewer_steps_than_ddpg() -> None:
    """By gradients alone, from as many steps; one of them takes less time."""
    rewards = {}
    for algorithm in ("ddpg", "counterfactual"):
        learner = {"algorithm": algorithm, "gradient_steps": 32}
        still: dict[str, Any] = {"evaluation": {"slices": 5, "lowest": 5}, "evolution": {"enabled": False}}
        market: dict[str, Any] = {"market": {"window": 2}, "network": {"scales": [1]}, "population": {"size": 4}}
        config = Config(preset="quickstart", device="cpu", learner=learner, **still, **market)
        state = advance(start_training(config, leaking_market(config, 1_500, 20, 1)), 3)
        starts = np.tile(validation_slices(state), (4, 1))
        rewards[algorithm] = float(state.task.roll_out(state.population.weights, starts).rewards.mean())
    assert rewards["counterfactual"] > max(1.2 * rewards["ddpg"], 500.0)


def test_a_task_that_does_not_know_what_was_not_played_is_refused() -> None:
    config = Config(preset="pendulum", learner={"algorithm": "counterfactual"})
    with pytest.raises(InputError, match=r"counterfactual .* not played, which task gym:Pendulum-v1 does not offer"):
        CounterfactualLearner.heads(config)
