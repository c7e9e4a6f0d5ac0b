"""The learner of stacked agents equals a plain one for each agent; targets, delay, accumulation, bounds."""

from typing import Any

import numpy as np
import pytest
import torch
from plain_ddpg import PlainDdpg, PlainTransition
from science_cases import random_panel, small_config
from torch import Tensor
from training_cases import market_of, random_episodes

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config, DdpgConfig, merge
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.learning.ddpg import DdpgLearner
from eigen_core.learning.interface import learner_settings
from eigen_core.learning.steps import BatchPlan
from eigen_core.market import Panel
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.task.replay import Replay
from eigen_core.task.transitions import BlockSampler, rows_of, stored_days

CPU = torch.device("cpu")
CURVES = [curve.name for curve in DdpgLearner.curves]


class Case:
    """A network, agents whose targets are not their weights, and a replay of random episodes."""

    def __init__(self, agents: int = 3, **sections: Any) -> None:
        # Blocks of all training days, unless a test has its own.
        self.config: Config = small_config(**merge({"learner": {"block_days": 0}}, sections))
        self.panel: Panel = random_panel(self.config)
        self.task = MarketTask(self.config, self.panel, CPU, DdpgLearner.heads(self.config))
        self.network = self.task.network
        self.learner = DdpgLearner(self.config, self.task)
        self.population = self.learner.new_agents(initial_weights(self.network.layouts, agents, 1, CPU))
        self.population.state["targets"].copy_(initial_weights(self.network.layouts, agents, 2, CPU))
        self.replay = Replay(400, self.task.columns, CPU)
        self.last_day = self.panel.splits.train.stop
        starts = self.panel.starts(self.panel.splits.train, self.config)
        first_days = keyed_generator(1, "first days").integers(starts.start, starts.stop, 20)
        # The last transition of the training days has no day after it to learn from.
        first_days[:2] = starts[-1]
        episodes = random_episodes(self.config, first_days, self.panel.assets, self.network.portfolio_values)
        self.replay.append(rows_of(episodes))

    def plan(self, steps: int, accumulation: int, batch_size: int, block: tuple[int, int] | None = None) -> BatchPlan:
        """Batches of different days from `block` (first day, days), by default the whole training range."""
        first_day, block_days = block or (0, self.last_day)
        sampler = BlockSampler(stored_days(self.replay), block_days, 0, 1, batch_size)
        generator = keyed_generator(1, "plan")
        shape = (self.population.size, steps, accumulation)
        slots = np.empty((*shape, batch_size), dtype=np.int64)
        for place in np.ndindex(*shape):
            slots[place] = sampler.draw(generator, first_day)
        first_days = tuple((first_day,) * accumulation for _ in range(steps))
        return BatchPlan(torch.tensor(slots), first_days)

    def learn(self, plan: BatchPlan) -> dict[str, Tensor]:
        return self.learner.learn(self.population, plan, self.replay, lambda: None).curves

    def row(self, slot: int) -> dict[str, Tensor]:
        rows = self.replay.pick(torch.tensor([slot % self.replay.capacity]))
        return {name: column[0] for name, column in rows.items()}

    def plain_transition(self, slot: int) -> PlainTransition:
        steps = [self.row(slot)]
        while len(steps) < learner_settings(self.config, DdpgConfig).n_step and not steps[-1]["terminal"]:
            steps.append(self.row(slot + len(steps)))
        return PlainTransition(
            day=int(steps[0]["day"]),
            step=int(steps[0]["step"]),
            portfolio=steps[0]["portfolio"].double(),
            next_portfolio=self.row(slot + len(steps))["portfolio"].double(),
            action=steps[0]["action"].double(),
            rewards=[float(step["reward"]) for step in steps],
            terminal=bool(steps[-1]["terminal"]),
        )

    def plain_plan(self, plan: BatchPlan, agent: int) -> list[list[list[PlainTransition]]]:
        return [
            [[self.plain_transition(slot) for slot in batch] for batch in step] for step in plan.slots[agent].tolist()
        ]


def assert_equals_plain_learner(case: Case, plan: BatchPlan) -> dict[str, Tensor]:
    before = case.population.clone()
    curves = case.learn(plan)
    plain = PlainDdpg(case.config, case.panel, case.network)
    for agent in range(before.size):
        weights, targets, moments, expected = plain.learn(
            before.weights[agent], before.state["targets"][agent], case.plain_plan(plan, agent)
        )
        for name in CURVES:
            np.testing.assert_allclose(curves[name][agent].numpy(), expected[name], rtol=2e-4, atol=1e-6, err_msg=name)
        for name, power in (("first_moment", 1), ("second_moment", 2)):
            moment = case.population.tensors()[name][agent].double()
            assert (moment - moments[name]).norm() <= power * 1e-4 * moments[name].norm()
        # Adam divides by the gradient's own size, which blows up the rounding of the smallest: hence the norms.
        moved = (weights - before.weights[agent].double()).norm()
        assert (case.population.weights[agent].double() - weights).norm() <= 1e-2 * moved
        followed = (targets - before.state["targets"][agent].double()).norm()
        assert (case.population.state["targets"][agent].double() - targets).norm() <= 1e-4 * followed
    return curves


CASES: list[dict[str, Any]] = [
    {},
    {"network": {"encoder": "tcn"}},
    {"learner": {"twin_critics": True, "policy_delay": 2}},
    {"trading": {"observe_portfolio": False, "max_coefficient": None}},
    {"network": {"encoder": "tcn"}, "learner": {"twin_critics": True}, "trading": {"observe_portfolio": False}},
    {"learner": {"gradient_clip": 0.05, "weight_decay": 0.3, "gamma": 0.5, "tau": 0.3, "reward_scale": 0.1}},
    {"learner": {"reward_clip": 0.4, "gamma": 0.0}},
    {"learner": {"reward_clip": 0.4, "gamma": 0.9, "n_step": 3}},
]


@pytest.mark.parametrize("sections", CASES)
def test_stacked_agents_learn_as_each_would_alone(sections: dict[str, Any]) -> None:
    case = Case(**sections)
    plan = case.plan(steps=3, accumulation=2, batch_size=5)
    curves = assert_equals_plain_learner(case, plan)
    limit = case.config.learner.gradient_clip
    if limit < 1.0:
        assert (curves["critic_gradient_norm"] > limit).all()


@pytest.mark.parametrize(("n_step", "batch_size"), [(1, 7), (3, 5)])
def test_the_days_after_a_blocks_last_day_are_seen(n_step: int, batch_size: int) -> None:
    """A block ends where it was drawn, the market does not: what follows its last day still counts."""
    learner = {"block_days": 9, "batch_size": batch_size, "reward_scale": 1e-3, "n_step": n_step}
    case = Case(network={"encoder": "tcn"}, learner=learner)
    case.population.state["targets"].mul_(2.0)
    state = start_training(case.config, case.panel)
    state.replay = case.replay
    assert market_of(state).block_days == 9
    plan = state.learner.plan(state.replay, state.population.size, 1)
    assert isinstance(plan, BatchPlan)
    few = BatchPlan(plan.slots[: case.population.size], plan.blocks)
    days = torch.tensor(stored_days(case.replay))[few.slots]
    first_days = torch.tensor(few.blocks)[:, :, None]
    assert ((days >= first_days) & (days < first_days + 9)).all()
    assert_equals_plain_learner(case, few)


@pytest.mark.parametrize(
    ("learner", "learns"),
    [({}, [True] * 4), ({"policy_delay": 2}, [False, True] * 2), ({"algorithm": "td3"}, [False, True] * 2)],
)
def test_policy_delay_counts_over_generations(learner: dict[str, Any], learns: list[bool]) -> None:
    """With one gradient step a generation and a delay of two, the actor learns in every second generation."""
    config = small_config(learner={"gradient_steps": 1, **learner}, evolution={"enabled": False})
    state = start_training(config, random_panel(config))
    actor = slice(market_of(state).network.critic_layout.size, None)
    moved = []
    for _ in range(4):
        evaluate(state)
        before = state.population.weights[:, actor].clone()
        assert train(state) is not None
        moved.append(bool((state.population.weights[:, actor] != before).any()))
        evolve(state)
    assert moved == learns
