"""Learners of gradients through outcomes: the growth of an account, and actions that were never played."""

from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from training_cases import advance, market_of

from benchmarks.synthetic import leaking_market
from eigen_core.common.errors import InputError
from eigen_core.config import Config, DirectConfig, merge
from eigen_core.generation import start_training
from eigen_core.generation.phases import validation_slices
from eigen_core.learning.base_learners import BatchPlan
from eigen_core.learning.counterfactual import CounterfactualLearner
from eigen_core.learning.direct import DirectLearner
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.population import initial_weights
from eigen_core.planning.sizes import Sizes
from eigen_core.task import open_data
from eigen_core.task.interface import TaskData
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.task.replay import Replay

CPU = torch.device("cpu")


def direct_config(**sections: Any) -> Config:
    learner = {"algorithm": "direct", "gradient_steps": 4, "stretch_bars": 30, "stretches": 2, "risk_aversion": 0.05}
    return small_config(learner=learner, **sections)


@pytest.mark.parametrize("observe", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_steps_are_those_of_an_optimizer_on_each_agent_alone(observe: bool) -> None:
    config = direct_config(trading={"observe_portfolio": observe})
    task = PortfolioTask(config, random_panel(config), CPU, DirectLearner.heads(config))
    learner, replay = DirectLearner(config, task), Replay(1, task.columns, CPU)
    weights = initial_weights(task.network.layouts, 2, config.seed, CPU)
    plan = learner.plan(replay, 2, 1)
    assert plan is not None
    learned = learner.learn(learner.new_agents(weights.clone()), plan, replay, lambda: None)
    settings = learner_settings(config, DirectConfig)
    for agent, row in enumerate(weights):
        encoder, actor = (
            part.clone().requires_grad_() for part in row.split([task.critic_layout.size, task.actor_layout.size])
        )
        optimizer = torch.optim.AdamW(
            [
                {"params": [encoder], "lr": settings.critic_learning_rate},
                {"params": [actor], "lr": settings.actor_learning_rate},
            ],
            weight_decay=settings.weight_decay,
        )
        climbed = []
        for starts in plan.starts.tolist():
            optimizer.zero_grad()
            growths = [task.growth(torch.cat([encoder, actor])[None], start, 30)[0][0] for start in starts]
            worth = [growth.mean() - 0.05 * growth.var(unbiased=False) for growth in growths]
            torch.autograd.backward(-torch.stack(worth).mean())
            climbed.append(float(torch.stack(growths).detach().mean()))
            for part in (encoder, actor):
                torch.nn.utils.clip_grad_norm_([part], settings.gradient_clip)
            optimizer.step()
        moved = torch.cat([encoder, actor]).detach()
        np.testing.assert_allclose(learned.group.weights[agent], moved, atol=2e-6)
        np.testing.assert_allclose(learned.curves["growth"][agent], climbed, atol=1e-5)


def test_stretches_are_training_days_and_no_longer_than_there_are() -> None:
    config = direct_config()
    panel = random_panel(config)
    task = PortfolioTask(config, panel, CPU, DirectLearner.heads(config))
    longer = config.model_copy(update={"learner": config.learner.model_copy(update={"stretch_bars": 4_000})})
    known = panel.splits.train.stop - 2 - (config.market.window - 1)
    for of_length, days in ((config, 30), (longer, known)):
        plan = DirectLearner(of_length, task).plan(Replay(1, task.columns, CPU), 2, 3)
        assert plan is not None
        assert plan.days == days
        assert int(plan.starts.min()) >= config.market.window - 1
        # The last decision is filled on the next day, and judged at the fill of the day after.
        assert int(plan.starts.max()) + plan.days - 1 + 2 < panel.splits.train.stop


@pytest.mark.parametrize("task", ["market", "gym:uneven_environment:EndlessEnvironment"])
def test_a_task_without_such_an_account_is_refused(task: str) -> None:
    config = small_config(
        task=task, learner={"algorithm": "direct"}, replay={"capacity": 5_000}, environment={"episode_steps": 9}
    )
    data = TaskData(random_panel(config)) if task == "market" else open_data(config)
    for refused in (lambda: Sizes.of(config, data), lambda: start_training(config, data.content)):
        with pytest.raises(InputError, match=r"use task portfolio, or another learner\.algorithm"):
            refused()


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
    critic, stepped = task.critic_layout.size, task.critic_layout.size + task.actor_layout.learned
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
def test_it_learns_a_leak_by_gradients_alone() -> None:
    config = Config(
        preset="ddpg",
        device="cpu",
        market={"window": 2},
        network={"scales": [1]},
        population={"size": 4},
        learner={"algorithm": "counterfactual", "gradient_steps": 32},
        evaluation={"slices": 5, "lowest": 5},
        evolution={"enabled": False},
    )
    state = advance(start_training(config, leaking_market(config, 1_500, 20, 1)), 3)
    starts = np.tile(validation_slices(state), (4, 1))
    assert state.task.roll_out(state.population.weights, starts).rewards.mean() > 500.0


def test_a_task_that_does_not_know_what_was_not_played_is_refused() -> None:
    config = Config(preset="pendulum", learner={"algorithm": "counterfactual"})
    with pytest.raises(InputError, match=r"counterfactual .* not played, and task gym:Pendulum-v1 has none"):
        CounterfactualLearner.heads(config)
