"""Deep deterministic policy gradient for a group of agents from the shared replay.

Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1; with `twin_critics` and `policy_delay` the clipped double
estimate and delayed policy of TD3, Fujimoto et al. 2018 (arXiv:1802.09477), sections 4.2 and 5.2, without its target
noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import Config
from eigen_core.learners.adam import adam_step, clip_rows
from eigen_core.networks import AgentNetwork, MarketSight
from eigen_core.population import Population
from eigen_core.replay import Replay, TransitionBatch
from eigen_core.trading import episode_places


@dataclass(frozen=True)
class LearningPlan:
    """Which transitions each agent learns from.

    Attributes:
        slots: slots in the replay, int64 `[agents, gradient steps, accumulation steps, batch]`.
        first_days: first day of each batch's block, `[gradient steps][accumulation steps]`.
        block_days: days of a block.
        earlier_steps: gradient steps of all generations before this one; `policy_delay` counts on from them.
    """

    slots: Tensor
    first_days: tuple[tuple[int, ...], ...]
    block_days: int
    earlier_steps: int = 0

    @property
    def gradient_steps(self) -> int:
        """Optimizer steps of each agent."""
        return int(self.slots.shape[1])

    @property
    def accumulation_steps(self) -> int:
        """Batches of an optimizer step."""
        return int(self.slots.shape[2])


@dataclass(frozen=True)
class LearningCurves:
    """Statistics of every optimizer step, float64 `[agents, gradient steps]`; the actor's are NaN where it rested."""

    critic_loss: Tensor
    actor_loss: Tensor
    value: Tensor
    critic_gradient_norm: Tensor
    actor_gradient_norm: Tensor

    FIELDS = ("critic_loss", "actor_loss", "value", "critic_gradient_norm", "actor_gradient_norm")

    @classmethod
    def of_groups(cls, groups: list["LearningCurves"]) -> "LearningCurves":
        """Join the curves of groups of agents."""
        return cls(*(torch.cat([getattr(group, name) for group in groups]) for name in cls.FIELDS))


@dataclass(frozen=True)
class _Batch:
    transitions: TransitionBatch
    place: Tensor
    next_place: Tensor
    first_day: int


class DdpgLearner:
    """Learns in place on the rows that it is given.

    Args:
        network: the forward passes.
        config: learner and trading settings.
        replay: the shared transitions.
    """

    def __init__(self, network: AgentNetwork, config: Config, replay: Replay) -> None:
        self._network = network
        self._learner = config.learner
        self._places = episode_places(config.trading, replay.day.device)
        self._replay = replay
        self._critic = slice(0, network.critic_layout.size)
        self._actor = slice(network.critic_layout.size, network.parameters)

    def learn(self, group: Population, plan: LearningPlan, between_steps: Callable[[], None]) -> LearningCurves:
        """Take all optimizer steps of `plan` for the agents of `group`, whose tensors are changed in place.

        Args:
            group: rows of a population.
            plan: slots for exactly these agents.
            between_steps: called after each optimizer step.
        """
        critic_counts, actor_counts = group.critic_steps.tolist(), group.actor_steps.tolist()
        rows: list[list[Tensor]] = []
        resting = torch.full((group.size,), torch.nan, device=group.weights.device)
        for step in range(plan.gradient_steps):
            batches = [self._batch(plan, step, index) for index in range(plan.accumulation_steps)]
            critic_counts = [count + 1 for count in critic_counts]
            sights, critic_loss, value, critic_norm = self._critic_step(group, batches, plan.block_days, critic_counts)
            actor_loss, actor_norm = resting, resting
            if (plan.earlier_steps + step + 1) % self._learner.policy_delay == 0:
                actor_counts = [count + 1 for count in actor_counts]
                actor_loss, actor_norm = self._actor_step(group, batches, sights, actor_counts)
                group.targets.add_((group.weights - group.targets).mul_(self._learner.tau))
            rows.append([critic_loss, actor_loss, value, critic_norm, actor_norm])
            between_steps()
        group.critic_steps.copy_(torch.tensor(critic_counts))
        group.actor_steps.copy_(torch.tensor(actor_counts))
        return LearningCurves(*(torch.stack(curve, dim=1).double().cpu() for curve in zip(*rows, strict=True)))

    def _batch(self, plan: LearningPlan, step: int, index: int) -> _Batch:
        transitions = self._replay.pick(plan.slots[:, step, index])
        return _Batch(
            transitions,
            self._places[transitions.steps],
            self._places[transitions.steps + 1],
            plan.first_days[step][index],
        )

    def _observed(self, portfolio: Tensor) -> Tensor | None:
        return portfolio if self._network.portfolio_values else None

    def _scaled(self, rewards: Tensor) -> Tensor:
        scaled = rewards * self._learner.reward_scale
        clip = self._learner.reward_clip
        return scaled if clip is None else scaled.clamp(-clip, clip)

    @torch.no_grad()
    def _bootstrapped(self, group: Population, batch: _Batch, block_days: int) -> Tensor:
        """Reward plus the discounted value that the targets give to the next day: float32 `[agents, batch]`."""
        network, transitions = self._network, batch.transitions
        critic = network.critic_layout.views(group.targets[:, self._critic])
        actor = network.actor_layout.views(group.targets[:, self._actor])
        sight = network.see_days(critic, transitions.days + 1, batch.first_day + 1, block_days)
        portfolio = self._observed(transitions.next_portfolios)
        actions = network.act(actor, network.prepare_actor(actor, sight, batch.next_place), portfolio)
        values = network.values(critic, sight, portfolio, batch.next_place, actions).amin(0)
        going_on = (~transitions.terminal).float() * self._learner.gamma
        return self._scaled(transitions.rewards) + going_on * values

    def _critic_step(
        self, group: Population, batches: list[_Batch], block_days: int, counts: list[int]
    ) -> tuple[list[MarketSight], Tensor, Tensor, Tensor]:
        network = self._network
        rows = group.weights[:, self._critic].clone().requires_grad_()
        sights = []
        losses, values_seen = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0])
        for batch in batches:
            transitions = batch.transitions
            goal = self._bootstrapped(group, batch, block_days)
            parameters = network.critic_layout.views(rows)
            sight = network.see_days(parameters, transitions.days, batch.first_day, block_days)
            values = network.values(
                parameters, sight, self._observed(transitions.portfolios), batch.place, transitions.actions
            )
            error = values - goal
            loss = (error * error).mean(-1).sum(0) / len(batches)
            torch.autograd.backward(loss.sum())
            sights.append(sight.detached())
            losses += loss.detach()
            values_seen += values[0].detach().mean(-1) / len(batches)
        assert rows.grad is not None
        norms = clip_rows(rows.grad, self._learner.gradient_clip)
        adam_step(
            group, self._critic, rows.grad, counts, self._learner.critic_learning_rate, self._learner.weight_decay
        )
        return sights, losses, values_seen, norms

    def _actor_step(
        self, group: Population, batches: list[_Batch], sights: list[MarketSight], counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Climb the first critic's value; what the critic step saw of the market is used again."""
        network = self._network
        rows = group.weights[:, self._actor].clone().requires_grad_()
        critic = network.critic_layout.views(group.weights[:, self._critic])
        losses = torch.zeros_like(rows[:, 0])
        for batch, sight in zip(batches, sights, strict=True):
            actor = network.actor_layout.views(rows)
            portfolio = self._observed(batch.transitions.portfolios)
            actions = network.act(actor, network.prepare_actor(actor, sight, batch.place), portfolio)
            value = network.values(critic, sight, portfolio, batch.place, actions)[0]
            loss = -value.mean(-1) / len(batches)
            torch.autograd.backward(loss.sum())
            losses += loss.detach()
        assert rows.grad is not None
        norms = clip_rows(rows.grad, self._learner.gradient_clip)
        adam_step(group, self._actor, rows.grad, counts, self._learner.actor_learning_rate, self._learner.weight_decay)
        return losses, norms
