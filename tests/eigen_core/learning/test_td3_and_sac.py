"""One step of TD3 and of SAC equals a plain one of each agent by torch's optimizers and distributions."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pointer_task import PointerTask
from science_cases import small_config
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import OffPolicyConfig, SacConfig, merge
from eigen_core.learning import Learner
from eigen_core.learning.ddpg import Td3Learner
from eigen_core.learning.interface import learner_settings
from eigen_core.learning.sac import SacLearner
from eigen_core.learning.steps import BatchPlan
from eigen_core.machine import chunk_sizes as pieces
from eigen_core.networks import ParameterLayout
from eigen_core.networks.population import Population, initial_weights
from eigen_core.task.replay import Replay

CPU = torch.device("cpu")
AGENTS, BATCH = 3, 6
LEARNER: dict[str, Any] = {
    "gamma": 0.9,
    "tau": 0.2,
    "reward_scale": 0.5,
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "temperature_learning_rate": 1e-2,
    "weight_decay": 1e-3,
    "gradient_clip": 0.7,
}

STEPS = pytest.mark.parametrize("n_step", [1, 3])


class Case:
    """Agents whose targets are not their weights, and a replay of what they played."""

    def __init__(self, learner_class: type[Any], **sections: Any) -> None:
        algorithm = {"learner": {"algorithm": "td3" if learner_class is Td3Learner else "sac"}}
        self.config = small_config(**merge(merge({"learner": LEARNER}, algorithm), sections))
        self.settings = learner_settings(self.config, OffPolicyConfig)
        heads = learner_class.heads(self.config)
        self.task = PointerTask(self.config, None, CPU, heads)
        self.learner: Learner = learner_class(self.config, self.task)
        layouts = (self.task.critic_layout, self.task.actor_layout)
        self.population = self.learner.new_agents(initial_weights(layouts, AGENTS, 1, CPU))
        targets = initial_weights(layouts, AGENTS, 2, CPU)
        self.population.state["targets"].copy_(targets[:, : self.population.state["targets"].shape[1]])
        self.replay = Replay(400, self.task.columns, CPU)
        noise = torch.tensor(keyed_generator(1, "noise").standard_normal((AGENTS, *self.task.noise_shape(4))))
        starts = np.arange(AGENTS * 4).reshape(AGENTS, 4)
        played = self.task.roll_out(self.population.weights, starts, noise.float(), record=True)
        assert played.transitions is not None
        self.replay.append(played.transitions)
        slots = keyed_generator(1, "slots").integers(0, self.replay.size, (AGENTS, 1, 2, BATCH))
        self.plan = BatchPlan(torch.tensor(slots), ((0, 0),), earlier_steps=1, generation=4, first_agent=5)

    def noise(self, agent: int, purpose: str) -> list[Tensor]:
        """What an agent draws for each of two batches."""
        generator = keyed_generator(self.config.seed, 4, "train", 5 + agent, purpose)
        return [torch.tensor(generator.standard_normal((BATCH, 1), dtype=np.float32)).double() for _ in range(2)]

    def batches(self, agent: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Shown, shown after the steps, stored action, discounted rewards and discount of each of two batches."""
        learner, parts = self.settings, []
        for slots in self.plan.slots[agent, 0]:
            rows, returns, discounts, following = self.replay.pick(slots), [], [], []
            for slot in slots.tolist():
                total, discount, step = 0.0, 1.0, slot
                while discount > learner.gamma**learner.n_step * 1.001:
                    row = self.replay.pick(torch.tensor(step))
                    total += discount * float(row["reward"]) * learner.reward_scale
                    discount *= learner.gamma * (not row["terminal"])
                    step = (step + 1) % self.replay.size
                returns.append(total)
                discounts.append(discount)
                following.append(self.replay.pick(torch.tensor(step))["shown"].tolist())
            after, totals, ahead = (torch.tensor(values).double() for values in (following, returns, discounts))
            parts.append((rows["shown"].double(), after, rows["action"].double(), totals, ahead))
        return parts


class Row:
    """One agent's parameters in double precision, with an optimizer for critic and for actor."""

    def __init__(self, case: Case, weights: Tensor) -> None:
        self.layouts = case.task.critic_layout, case.task.actor_layout
        learner, size = case.settings, self.layouts[0].size
        self.critic = weights[:size].double().clone().requires_grad_()
        self.actor = weights[size:].double().clone().requires_grad_()
        self.clip = learner.gradient_clip
        rates = (self.critic, learner.critic_learning_rate), (self.actor, learner.actor_learning_rate)
        self.optimizers = [torch.optim.AdamW([row], lr=rate, weight_decay=learner.weight_decay) for row, rate in rates]

    def named(self, layout: ParameterLayout, row: Tensor) -> dict[str, Tensor]:
        return {name: view[0] for name, view in layout.views(row[None]).items()}

    def hidden(self, shown: Tensor, row: Tensor | None = None) -> Tensor:
        named = self.named(self.layouts[0], self.critic if row is None else row)
        return torch.relu(shown @ named["encoder.weight"] + named["encoder.bias"])

    def outputs(self, hidden: Tensor) -> Tensor:
        named = self.named(self.layouts[1], self.actor)
        return hidden @ named["action.weight"] + named["action.bias"]

    def values(self, hidden: Tensor, actions: Tensor) -> list[Tensor]:
        named = self.named(self.layouts[0], self.critic)
        inputs, values = torch.cat([hidden, actions], dim=-1), []
        for index in range(2):
            deep = torch.relu(inputs @ named[f"hidden{index}.weight"] + named[f"hidden{index}.bias"])
            values.append((deep @ named[f"value{index}.weight"] + named[f"value{index}.bias"])[:, 0])
        return values

    def descend(self, which: int, loss: Tensor) -> float:
        row = (self.critic, self.actor)[which]
        row.grad = None
        torch.autograd.backward(loss, inputs=[row])
        norm = torch.nn.utils.clip_grad_norm_([row], self.clip)
        self.optimizers[which].step()
        return norm.item()


def assert_same(
    case: Case, agent: int, before: Population, row: Row, curves: dict[str, Tensor], plain: dict[str, float]
) -> None:
    expected = torch.cat([row.critic.detach(), row.actor.detach()])
    torch.testing.assert_close(case.population.weights[agent].double(), expected, rtol=1e-4, atol=1e-5)
    for name, value in plain.items():
        assert float(curves[name][agent, 0]) == pytest.approx(value, rel=1e-4, abs=1e-6), name
    now, tau = case.population.weights[agent], case.settings.tau
    targets = before.state["targets"][agent]
    followed = targets + tau * (now[: len(targets)] - targets)
    torch.testing.assert_close(case.population.state["targets"][agent], followed, rtol=1e-5, atol=1e-6)


@STEPS
def test_a_step_of_td3_equals_a_plain_one(n_step: int) -> None:
    case = Case(
        Td3Learner, learner={"algorithm": "td3", "target_noise": 0.3, "target_noise_clip": 0.2, "n_step": n_step}
    )
    before = case.population.clone()
    curves = case.learner.learn(case.population, case.plan, case.replay, lambda: None).curves
    for agent in range(AGENTS):
        row, targets = Row(case, before.weights[agent]), Row(case, before.state["targets"][agent])
        batches, noises = case.batches(agent), case.noise(agent, "target noise")
        assert max(noise.abs().max().item() for noise in noises) * 0.3 > 0.2
        critic_loss, seen = torch.zeros((), dtype=torch.float64), row.critic.detach().clone()
        for (shown, following, actions, rewards, discount), noise in zip(batches, noises, strict=True):
            hidden = targets.hidden(following)
            # A range of 2: noise is in fractions of it.
            smoothed = torch.tanh(targets.outputs(hidden)) + 2.0 * (0.3 * noise).clamp(-0.2, 0.2)
            lower = torch.minimum(*targets.values(hidden, smoothed.clamp(-1.0, 1.0)))
            goal = (rewards + discount * lower).detach()
            for values in row.values(row.hidden(shown), actions):
                critic_loss = critic_loss + ((values - goal) ** 2).mean() / 2
        plain = {"critic_loss": critic_loss.item(), "critic_gradient_norm": row.descend(0, critic_loss)}
        actor_loss = torch.zeros((), dtype=torch.float64)
        for shown, *_ in batches:
            hidden = row.hidden(shown, seen)
            actor_loss = actor_loss - row.values(hidden, torch.tanh(row.outputs(hidden)))[0].mean() / 2
        plain |= {"actor_loss": actor_loss.item(), "actor_gradient_norm": row.descend(1, actor_loss)}
        assert_same(case, agent, before, row, curves, plain)


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, and the density of each by torch's distributions."""
    mean, log_std = outputs.chunk(2, dim=-1)
    distribution: Any = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    actions = torch.tanh(mean + log_std.exp() * noise)
    return actions, distribution.log_prob(actions)[:, 0]


@STEPS
def test_a_step_of_sac_equals_a_plain_one(n_step: int) -> None:
    settings = {"algorithm": "sac", "initial_temperature": 0.3, "entropy_target": -0.5, "n_step": n_step}
    case = Case(SacLearner, learner=settings)
    before, learner = case.population.clone(), learner_settings(case.config, SacConfig)
    curves = case.learner.learn(case.population, case.plan, case.replay, lambda: None).curves
    for agent in range(AGENTS):
        row, targets = Row(case, before.weights[agent]), Row(case, before.weights[agent])
        targets.critic.data.copy_(before.state["targets"][agent])
        log_temperature = torch.tensor([math.log(0.3)], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([log_temperature], lr=learner.temperature_learning_rate)
        batches, next_noises = case.batches(agent), case.noise(agent, "next actions")
        critic_loss, seen = torch.zeros((), dtype=torch.float64), row.critic.detach().clone()
        for (shown, following, stored, rewards, discount), noise in zip(batches, next_noises, strict=True):
            actions, log_prob = squashed(row.outputs(row.hidden(following)), noise)
            lower = torch.minimum(*targets.values(targets.hidden(following), actions))
            goal = (rewards + discount * (lower - 0.3 * log_prob)).detach()
            for values in row.values(row.hidden(shown), torch.tanh(stored)):
                critic_loss = critic_loss + ((values - goal) ** 2).mean() / 2
        plain = {"critic_loss": critic_loss.item(), "critic_gradient_norm": row.descend(0, critic_loss)}
        actor_loss, mean_log_prob = torch.zeros((), dtype=torch.float64), 0.0
        for (shown, *_), noise in zip(batches, case.noise(agent, "actions"), strict=True):
            hidden = row.hidden(shown, seen)
            actions, log_prob = squashed(row.outputs(hidden), noise)
            actor_loss = actor_loss + (0.3 * log_prob - torch.minimum(*row.values(hidden, actions))).mean() / 2
            mean_log_prob += log_prob.mean().item() / 2
        plain |= {"actor_loss": actor_loss.item(), "actor_gradient_norm": row.descend(1, actor_loss)}
        plain |= {"entropy": -mean_log_prob, "temperature": 0.3}
        assert_same(case, agent, before, row, curves, plain)
        torch.autograd.backward((-log_temperature * (mean_log_prob - 0.5)).sum())
        optimizer.step()
        now = case.population.state["log_temperature"][agent].double()
        torch.testing.assert_close(now, log_temperature.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("learner_class", [Td3Learner, SacLearner])
def test_bits_do_not_depend_on_how_much_noise_is_drawn_at_a_time(
    learner_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = []
    # Of one of five steps, of two, of all.
    for megabytes in (0.0, 4 * AGENTS * BATCH * 4e-6 * 2, 1.0):
        monkeypatch.setattr(pieces, "_NOISE", pieces._NOISE._replace(cpu=megabytes))
        case = Case(learner_class)
        plan = replace(case.plan, slots=case.plan.slots.expand(-1, 5, -1, -1), blocks=case.plan.blocks * 5)
        learned.append(
            tensors_sha256(case.learner.learn(case.population, plan, case.replay, lambda: None).group.tensors())
        )
    assert len(set(learned)) == 1


@pytest.mark.parametrize("learner_class", [Td3Learner, SacLearner])
def test_an_agents_noise_does_not_depend_on_its_group(learner_class: type[Any]) -> None:
    case, together = Case(learner_class), Case(learner_class)
    expected = together.learner.learn(together.population, together.plan, together.replay, lambda: None)
    for agents in (slice(0, 1), slice(1, 3)):
        group, plan = case.population.rows(agents), case.plan.rows(agents)
        learned = case.learner.learn(group, plan, case.replay, lambda: None)
        for name, tensor in learned.group.tensors().items():
            assert torch.equal(tensor, expected.group.tensors()[name][agents]), name
        for name, curve in learned.curves.items():
            assert torch.equal(curve, expected.curves[name][agents]), name
