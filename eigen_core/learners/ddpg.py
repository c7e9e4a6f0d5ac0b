"""Deep deterministic policy gradient for a group of agents from the shared replay.

Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1; with `twin_critics` and `policy_delay` the clipped double
estimate and delayed policy of TD3, Fujimoto et al. 2018 (arXiv:1802.09477), sections 4.2 and 5.2, without its target
noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic

import numpy as np
import torch
from torch import Tensor

from eigen_core.config import Config
from eigen_core.learners.adam import adam_step, clip_rows
from eigen_core.learners.interface import Learned
from eigen_core.networks import Heads
from eigen_core.population import Population
from eigen_core.randomness import keyed_generator
from eigen_core.records import Curve
from eigen_core.replay import Replay
from eigen_core.task import Encoded, Observed, Task, Transitions


@dataclass(frozen=True)
class DdpgPlan:
    """Which transitions each agent learns from.

    Attributes:
        slots: slots in the replay, int64 `[agents, gradient steps, accumulation steps, batch]`.
        blocks: block of each batch, `[gradient steps][accumulation steps]`.
        earlier_steps: gradient steps of all generations before this one; `policy_delay` counts on from them.
    """

    slots: Tensor
    blocks: tuple[tuple[int, ...], ...]
    earlier_steps: int = 0

    @property
    def gradient_steps(self) -> int:
        """Optimizer steps of each agent."""
        return int(self.slots.shape[1])

    @property
    def accumulation_steps(self) -> int:
        """Batches of an optimizer step."""
        return int(self.slots.shape[2])

    def rows(self, agents: slice) -> "DdpgPlan":
        """The plan of consecutive agents."""
        return replace(self, slots=self.slots[agents])


class DdpgLearner(Generic[Observed, Encoded]):
    """Implements `Learner`.

    Args:
        config: learner and replay settings.
        task: what is played.
    """

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("critic_loss", "Mean squared temporal-difference error, in scaled rewards."),
        Curve("actor_loss", "Minus the critic's value of the actor's actions, in scaled rewards."),
        Curve("value", "Mean value of the stored actions, in scaled rewards."),
        Curve("critic_gradient_norm", "Norm of an agent's critic gradient before clipping."),
        Curve("actor_gradient_norm", "Norm of an agent's actor gradient before clipping."),
    )

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        self._config = config
        self._learner = config.learner
        self._task = task
        self._critic = slice(0, task.critic_layout.size)
        self._actor = slice(task.critic_layout.size, task.critic_layout.size + task.actor_layout.size)

    @staticmethod
    def heads(config: Config) -> Heads:
        """Return critics of actions, one or two, and a deterministic actor."""
        return Heads(critics=2 if config.learner.twin_critics else 1)

    def new_agents(self, weights: Tensor) -> Population:
        """Return agents whose targets are their weights, without moments."""
        counts = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
        state = {
            "targets": weights.clone(),
            "first_moment": torch.zeros_like(weights),
            "second_moment": torch.zeros_like(weights),
            "critic_steps": counts,
            "actor_steps": counts.clone(),
        }
        return Population(weights, state)

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        """Return within what targets, moments and counts of steps lie after so many generations."""
        steps = (0.0, float(generation * self._learner.gradient_steps))
        return {
            "targets": (-math.inf, math.inf),
            "first_moment": (-math.inf, math.inf),
            "second_moment": (0.0, math.inf),
            "critic_steps": steps,
            "actor_steps": steps,
        }

    def plan(self, replay: Replay, agents: int, generation: int) -> DdpgPlan | None:
        """Draw the batches of a generation; all agents' batches of a step are from the same block."""
        learner, seed = self._learner, self._config.seed
        if learner.gradient_steps == 0 or replay.size < self._config.replay.minimum:
            return None
        sampler = self._task.sampler(replay, learner.batch_size)
        if sampler is None:
            return None
        batches = (learner.gradient_steps, learner.accumulation_steps)
        blocks = sampler.draw_blocks(keyed_generator(seed, generation, "train", "shared", "blocks"), batches)
        slots = np.empty((agents, *batches, learner.batch_size), dtype=np.int64)
        for agent in range(agents):
            generator = keyed_generator(seed, generation, "train", agent, "batches")
            for step, index in np.ndindex(*batches):
                slots[agent, step, index] = sampler.draw(generator, int(blocks[step, index]))
        return DdpgPlan(
            slots=torch.tensor(slots),
            blocks=tuple(tuple(int(block) for block in row) for row in blocks),
            earlier_steps=(generation - 1) * learner.gradient_steps,
        )

    def learn(self, group: Population, plan: DdpgPlan, replay: Replay, between_steps: Callable[[], None]) -> Learned:
        """Take all optimizer steps of `plan`; see `Learner.learn`."""
        state = group.state
        critic_counts, actor_counts = state["critic_steps"].tolist(), state["actor_steps"].tolist()
        slots = plan.slots.to(group.weights.device)
        rows: list[list[Tensor]] = []
        for step in range(plan.gradient_steps):
            critic_counts = [count + 1 for count in critic_counts]
            moves_actor = (plan.earlier_steps + step + 1) % self._learner.policy_delay == 0
            if moves_actor:
                actor_counts = [count + 1 for count in actor_counts]
            batches = zip(slots[:, step].unbind(1), plan.blocks[step], strict=True)
            transitions = [self._task.transitions(replay, *batch) for batch in batches]
            rows.append(self._step(group, transitions, critic_counts, actor_counts if moves_actor else None))
            between_steps()
        state["critic_steps"].copy_(torch.tensor(critic_counts))
        state["actor_steps"].copy_(torch.tensor(actor_counts))
        curves = (torch.stack(curve, dim=1).double().cpu() for curve in zip(*rows, strict=True))
        return Learned(group, dict(zip((curve.name for curve in self.curves), curves, strict=True)))

    def _step(
        self,
        group: Population,
        batches: list[Transitions[Observed]],
        critic_counts: list[int],
        actor_counts: list[int] | None,
    ) -> list[Tensor]:
        """Take one optimizer step, of the actor and the targets too if its counts are given; return `curves`.

        What was encoded for it is freed with it.
        """
        encodings, critic_loss, value, critic_norm = self._critic_step(group, batches, critic_counts)
        if actor_counts is None:
            actor_loss = actor_norm = torch.full_like(critic_loss, torch.nan)
        else:
            actor_loss, actor_norm = self._actor_step(group, encodings, actor_counts)
            targets = group.state["targets"]
            targets.add_((group.weights - targets).mul_(self._learner.tau))
        return [critic_loss, actor_loss, value, critic_norm, actor_norm]

    def _scaled(self, rewards: Tensor) -> Tensor:
        scaled = rewards * self._learner.reward_scale
        clip = self._learner.reward_clip
        return scaled if clip is None else scaled.clamp(-clip, clip)

    @torch.no_grad()
    def _td_target(self, group: Population, batch: Transitions[Observed]) -> Tensor:
        """Reward plus the discounted value that the targets give to the next observation: float32 `[agents, batch]`."""
        targets, task = group.state["targets"], self._task
        critic = task.critic_layout.views(targets[:, self._critic])
        actor = task.actor_layout.views(targets[:, self._actor])
        encoding = task.encode(critic, batch.next_observations)
        values = task.values(critic, encoding, task.policy(actor, encoding).mode).amin(0)
        discount = (~batch.terminal).float() * self._learner.gamma
        return self._scaled(batch.rewards) + discount * values

    def _critic_step(
        self, group: Population, batches: list[Transitions[Observed]], counts: list[int]
    ) -> tuple[list[Encoded], Tensor, Tensor, Tensor]:
        task = self._task
        rows = group.weights[:, self._critic].clone().requires_grad_()
        encodings = []
        losses, values_seen = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0])
        for batch in batches:
            td_target = self._td_target(group, batch)
            critic = task.critic_layout.views(rows)
            encoding = task.encode(critic, batch.observations)
            values = task.values(critic, encoding, batch.actions)
            error = values - td_target
            loss = (error * error).mean(-1).sum(0) / len(batches)
            torch.autograd.backward(loss.sum())
            encodings.append(encoding.detached())
            losses += loss.detach()
            values_seen += values[0].detach().mean(-1) / len(batches)
        assert rows.grad is not None
        norms = clip_rows(rows.grad, self._learner.gradient_clip)
        adam_step(
            group, self._critic, rows.grad, counts, self._learner.critic_learning_rate, self._learner.weight_decay
        )
        return encodings, losses, values_seen, norms

    def _actor_step(self, group: Population, encodings: list[Encoded], counts: list[int]) -> tuple[Tensor, Tensor]:
        """Ascend the gradient of the first critic's value, with the encodings of the critic step."""
        task = self._task
        rows = group.weights[:, self._actor].clone().requires_grad_()
        critic = task.critic_layout.views(group.weights[:, self._critic])
        losses = torch.zeros_like(rows[:, 0])
        for encoding in encodings:
            value = task.values(critic, encoding, task.policy(task.actor_layout.views(rows), encoding).mode)[0]
            loss = -value.mean(-1) / len(encodings)
            torch.autograd.backward(loss.sum())
            losses += loss.detach()
        assert rows.grad is not None
        norms = clip_rows(rows.grad, self._learner.gradient_clip)
        adam_step(group, self._actor, rows.grad, counts, self._learner.actor_learning_rate, self._learner.weight_decay)
        return losses, norms
