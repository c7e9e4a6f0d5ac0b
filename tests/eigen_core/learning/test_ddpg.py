"""DDPG of stacked agents equals a plain one: one agent and one transition at a time, in double precision."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from torch import Tensor
from training_cases import market_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config, DdpgConfig, merge
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.learning.base_learners import BatchPlan
from eigen_core.learning.ddpg import DdpgLearner
from eigen_core.learning.interface import learner_settings
from eigen_core.market import Panel
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.layout import ParameterLayout
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.task.replay import Replay
from eigen_core.task.transitions import BlockSampler, rows_of, stored_days

CPU = torch.device("cpu")
CURVES = [curve.name for curve in DdpgLearner.curves]
Named = dict[str, Tensor]


def named(layout: ParameterLayout, row: Tensor) -> Named:
    parameters, start = {}, 0
    for shape in layout.shapes:
        parameters[shape.name] = row[start : start + shape.size].reshape(shape.shape)
        start += shape.size
    assert start == len(row)
    return parameters


def layer(parameters: Named, name: str, inputs: Tensor) -> Tensor:
    return inputs @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


@dataclass
class PlainTransition:
    day: int
    step: int
    portfolio: Tensor
    next_portfolio: Tensor
    action: Tensor
    rewards: list[float]
    """Of all steps that it spans."""
    terminal: bool


class PlainDdpg:
    def __init__(self, config: Config, panel: Panel, network: AgentNetwork) -> None:
        self.config, self.panel, self.learner = config, panel, learner_settings(config, DdpgConfig)
        self.critic_layout, self.actor_layout = network.critic_layout, network.actor_layout
        self.filtered = self.filter_features()

    def filter_features(self) -> Tensor:
        features = self.panel.features.astype(np.float64)
        parts = []
        for scale in self.config.network.scales:
            means = np.zeros_like(features)
            for day in range(len(features)):
                means[day] = features[max(day - scale + 1, 0) : day + 1].sum(axis=0) / scale
            size = np.sqrt((means[: len(self.panel.splits.train)] ** 2).mean(axis=(0, 1)))
            parts.append(means / np.maximum(size, 1e-3))
        return torch.tensor(np.concatenate(parts, axis=-1))

    def embed(self, critic: Named, day: int) -> Tensor:
        if self.config.network.encoder == "filter_bank":
            return layer(critic, "encoder.output", torch.relu(layer(critic, "encoder.hidden", self.filtered[day])))
        window = self.config.market.window
        history = torch.zeros((window, self.panel.columns, self.panel.features.shape[2]), dtype=torch.float64)
        known = self.panel.features[max(day - window + 1, 0) : day + 1]
        history[window - len(known) :] = torch.tensor(known)
        hidden = torch.relu(layer(critic, "encoder.input", history))
        number, dilation = 0, 1
        while len(hidden) > 1:
            dilation = min(2**number, len(hidden) - 1)
            earlier, now = hidden[:-dilation], hidden[dilation:]
            joined = torch.cat([earlier, now], dim=-1)
            hidden = now + torch.relu(layer(critic, f"encoder.layer{number}", joined))
            number += 1
        return layer(critic, "encoder.output", hidden[0])

    def see(self, critic: Named, day: int) -> tuple[Tensor, Tensor]:
        """Embeddings of the assets, and the context that the queries pool over columns with a price."""
        embeddings = self.embed(critic, day)
        there = torch.tensor(self.panel.valid[day])
        pooled = []
        for query in critic["pool.queries"].T:
            share = torch.softmax(embeddings[there] @ query, dim=0)
            pooled.append(share @ embeddings[there])
        return embeddings[: self.panel.assets], torch.cat(pooled)

    def with_place(self, context: Tensor, step: int) -> Tensor:
        trading = self.config.trading
        if not trading.observe_portfolio:
            return context
        place = [step / (trading.trading_bars + trading.settlement_bars), float(step < trading.trading_bars)]
        return torch.cat([context, torch.tensor(place, dtype=torch.float64)])

    def act(self, actor: Named, sight: tuple[Tensor, Tensor], portfolio: Tensor, step: int) -> Tensor:
        trading = self.config.trading
        hidden = layer(actor, "actor.asset", sight[0]) + layer(actor, "actor.context", self.with_place(sight[1], step))
        if trading.observe_portfolio:
            hidden = hidden + portfolio @ actor["actor.portfolio"]
        hidden = torch.relu(layer(actor, "actor.hidden", torch.relu(hidden)))
        raw = layer(actor, "actor.action", hidden)
        coefficient = (
            torch.nn.functional.softplus(raw[:, 0])
            if trading.max_coefficient is None
            else trading.max_coefficient * torch.sigmoid(raw[:, 0])
        )
        target = trading.min_target + (trading.max_target - trading.min_target) * torch.sigmoid(raw[:, 1])
        return torch.stack([coefficient, target], dim=1)

    def values(
        self, critic: Named, sight: tuple[Tensor, Tensor], portfolio: Tensor, step: int, action: Tensor, day: int
    ) -> list[Tensor]:
        trading = self.config.trading
        there = torch.tensor(self.panel.valid[day, : self.panel.assets])
        coefficient = action[:, 0] / (trading.max_coefficient or 1.0)
        target = (action[:, 1] - trading.min_target) / (trading.max_target - trading.min_target)
        parts = [sight[0], coefficient[:, None], target[:, None]]
        if trading.observe_portfolio:
            parts.append(portfolio)
        assets, context = torch.cat(parts, dim=1), self.with_place(sight[1], step)
        chosen = torch.softmax(30.0 * coefficient[there], dim=0)
        values = []
        for critic_name in ["critic0", "critic1"][: 2 if self.learner.twin_critics else 1]:
            hidden = torch.relu(
                layer(critic, f"{critic_name}.asset", assets) + layer(critic, f"{critic_name}.context", context)
            )
            hidden = torch.relu(layer(critic, f"{critic_name}.hidden", hidden))[there]
            pooled = torch.relu(
                layer(critic, f"{critic_name}.pooled", torch.cat([chosen @ hidden, hidden.mean(dim=0)]))
            )
            values.append(layer(critic, f"{critic_name}.value", pooled)[0])
        return values

    def goal(self, target: Tensor, transition: PlainTransition) -> float:
        """The rewards, and the discounted value of what the target actor does on the day after them."""
        learner, steps = self.learner, len(transition.rewards)
        clip = learner.reward_clip or float("inf")
        rewards = [min(max(reward * learner.reward_scale, -clip), clip) for reward in transition.rewards]
        total = sum(learner.gamma**step * reward for step, reward in enumerate(rewards))
        if transition.terminal:
            return total
        critic, actor = self.split(target)
        day, step = transition.day + steps, transition.step + steps
        sight = self.see(critic, day)
        action = self.act(actor, sight, transition.next_portfolio, step)
        values = self.values(critic, sight, transition.next_portfolio, step, action, day)
        return total + learner.gamma**steps * min(value.item() for value in values)

    def split(self, row: Tensor) -> tuple[Named, Named]:
        size = self.critic_layout.size
        return named(self.critic_layout, row[:size]), named(self.actor_layout, row[size:])

    def learn(
        self, weights: Tensor, targets: Tensor, plan: list[list[list[PlainTransition]]]
    ) -> tuple[Tensor, Tensor, Named, dict[str, list[float]]]:
        """Learn from `plan[step][batch]`; return weights, targets, Adam's moments and the curves."""
        learner, size = self.learner, self.critic_layout.size
        critic_row = weights[:size].double().clone().requires_grad_()
        actor_row = weights[size:].double().clone().requires_grad_()
        targets = targets.double().clone()
        critic_adam = torch.optim.AdamW(
            [critic_row], lr=learner.critic_learning_rate, weight_decay=learner.weight_decay
        )
        actor_adam = torch.optim.AdamW([actor_row], lr=learner.actor_learning_rate, weight_decay=learner.weight_decay)
        curves: dict[str, list[float]] = defaultdict(list)
        for number, batches in enumerate(plan, start=1):
            critic_loss, value = torch.zeros((), dtype=torch.float64), 0.0
            seen = critic_row.detach().clone()
            for batch in batches:
                critic = named(self.critic_layout, critic_row)
                for transition in batch:
                    goal = self.goal(targets, transition)
                    sight = self.see(critic, transition.day)
                    values = self.values(
                        critic, sight, transition.portfolio, transition.step, transition.action, transition.day
                    )
                    critic_loss = critic_loss + sum((v - goal) ** 2 for v in values) / len(batch) / len(batches)
                    value += values[0].item() / len(batch) / len(batches)
            curves["critic_loss"].append(critic_loss.item())
            curves["value"].append(value)
            curves["critic_gradient_norm"].append(self.descend(critic_loss, critic_row, critic_adam))
            if number % (learner.policy_delay or 1):
                curves["actor_loss"].append(np.nan)
                curves["actor_gradient_norm"].append(np.nan)
                continue
            actor_loss = torch.zeros((), dtype=torch.float64)
            for batch in batches:
                critic, actor = named(self.critic_layout, critic_row.detach()), named(self.actor_layout, actor_row)
                for transition in batch:
                    sight = self.see(named(self.critic_layout, seen), transition.day)
                    action = self.act(actor, sight, transition.portfolio, transition.step)
                    first = self.values(critic, sight, transition.portfolio, transition.step, action, transition.day)[0]
                    actor_loss = actor_loss - first / len(batch) / len(batches)
            curves["actor_loss"].append(actor_loss.item())
            curves["actor_gradient_norm"].append(self.descend(actor_loss, actor_row, actor_adam))
            now = torch.cat([critic_row.detach(), actor_row.detach()])
            targets = (1.0 - learner.tau) * targets + learner.tau * now
        moments = {}
        for name, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
            moments[name] = torch.cat(
                [
                    adam.state[row][key] if row in adam.state else torch.zeros_like(row)
                    for adam, row in ((critic_adam, critic_row), (actor_adam, actor_row))
                ]
            )
        return torch.cat([critic_row.detach(), actor_row.detach()]), targets, moments, curves

    def descend(self, loss: Tensor, row: Tensor, adam: torch.optim.Optimizer) -> float:
        adam.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_([row], self.learner.gradient_clip)
        adam.step()
        return norm.item()


class Case:
    """A network, agents whose targets are not their weights, and a replay of random episodes."""

    def __init__(self, agents: int = 3, **sections: Any) -> None:
        # Blocks of all training days, unless a test has its own.
        self.config: Config = small_config(**merge({"learner": {"block_bars": 0}}, sections))
        self.panel: Panel = random_panel(self.config)
        self.task = MarketTask(self.config, self.panel, CPU, DdpgLearner.heads(self.config))
        self.network = self.task.network
        self.learner = DdpgLearner(self.config, self.task)
        self.population = self.learner.new_agents(initial_weights(self.network.layouts, agents, 1, CPU))
        self.population.state["targets"].copy_(initial_weights(self.network.layouts, agents, 2, CPU))
        self.replay = Replay(400, self.task.columns, CPU)
        self.last_day = self.panel.splits.train.stop
        starts = self.panel.starts(self.panel.splits.train, self.config)
        trading, generator = self.config.trading, keyed_generator(1, "episodes")
        first_days = generator.integers(starts.start, starts.stop, 20)
        # The last transition of the training days has no day after it to learn from.
        first_days[:2] = starts[-1]
        shape = (20, trading.episode_bars, self.panel.assets)
        coefficients = generator.uniform(0.0, trading.max_coefficient or 3.0, shape)
        targets = generator.uniform(trading.min_target, trading.max_target, shape)
        portfolios = generator.uniform(-1.0, 1.0, (*shape, self.network.portfolio_values))
        rows = rows_of(
            torch.tensor(first_days),
            torch.tensor(portfolios, dtype=torch.float16),
            torch.tensor(np.stack([coefficients, targets], axis=-1), dtype=torch.float32),
            torch.tensor(generator.normal(0.0, 50.0, shape[:2]), dtype=torch.float32),
        )
        self.replay.append(rows)

    def plan(self, steps: int, accumulation: int, batch_size: int, block: tuple[int, int] | None = None) -> BatchPlan:
        """Batches of different days from `block` (first day, days), by default the whole training range."""
        first_day, block_bars = block or (0, self.last_day)
        sampler = BlockSampler(stored_days(self.replay), block_bars, 0, 1, batch_size)
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
    learner = {"block_bars": 9, "batch_size": batch_size, "reward_scale": 1e-3, "n_step": n_step}
    case = Case(network={"encoder": "tcn"}, learner=learner)
    case.population.state["targets"].mul_(2.0)
    state = start_training(case.config, case.panel)
    state.replay = case.replay
    assert market_of(state).block_bars == 9
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
