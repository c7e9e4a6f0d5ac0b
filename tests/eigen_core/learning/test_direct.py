"""The growth of an account, climbed directly."""

from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from training_cases import advance

from eigen_core.common.errors import InputError
from eigen_core.config import Config, DirectConfig
from eigen_core.generation import start_training
from eigen_core.learning.direct import DirectLearner
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.population import initial_weights
from eigen_core.planning.sizes import Sizes
from eigen_core.task import TaskData, open_data
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.task.replay import Replay

CPU = torch.device("cpu")


def direct_config(**sections: Any) -> Config:
    learner = {"algorithm": "direct", "gradient_steps": 4, "stretch_days": 30, "stretches": 2, "risk_aversion": 0.05}
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
    longer = config.model_copy(update={"learner": config.learner.model_copy(update={"stretch_days": 4_000})})
    known = panel.splits.train.stop - 2 - (config.market.window - 1)
    for of_length, days in ((config, 30), (longer, known)):
        plan = DirectLearner(of_length, task).plan(Replay(1, task.columns, CPU), 2, 3)
        assert plan is not None
        assert plan.days == days
        assert int(plan.starts.min()) >= config.market.window - 1
        # The last decision is filled on the next day, and judged at the fill of the day after.
        assert int(plan.starts.max()) + plan.days - 1 + 2 < panel.splits.train.stop


@pytest.mark.thorough
def test_an_agent_that_is_averse_to_risk_holds_less_of_it() -> None:
    """All else equal, cash is without risk."""
    exposures = []
    for aversion in (0.0, 10.0):
        rates = {"actor_learning_rate": 0.02, "critic_learning_rate": 0.02, "gradient_steps": 20}
        config = small_config(
            learner={"algorithm": "direct", "stretch_days": 60, "risk_aversion": aversion, **rates},
            evolution={"enabled": False},
            trading={"observe_portfolio": False},
        )
        state = advance(start_training(config, random_panel(config)), 2)
        exposures.append(state.history[-1].trading["exposure"])
    assert exposures[1] < 0.8 * exposures[0]


@pytest.mark.parametrize("task", ["market", "gym:uneven_environment:EndlessEnvironment"])
def test_a_task_without_such_an_account_is_refused(task: str) -> None:
    config = small_config(
        task=task, learner={"algorithm": "direct"}, replay={"capacity": 5_000}, environment={"episode_steps": 9}
    )
    data = TaskData(random_panel(config)) if task == "market" else open_data(config)
    for refused in (lambda: Sizes.of(config, data), lambda: start_training(config, data.content)):
        with pytest.raises(InputError, match="use task portfolio, or another algorithm"):
            refused()
