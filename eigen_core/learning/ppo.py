"""Proximal policy optimization: each agent learns from the episodes that it has just played.

Schulman et al. 2017 (arXiv:1707.06347), algorithm 1 with the clipped objective (equation 7), advantages by Schulman et
al. 2016 (arXiv:1506.02438). Neither weights nor moments of observations (`Task.state`) change between playing and
learning, so log-densities and values are not stored while playing, but computed again here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Curve
from eigen_core.config import Config, PpoConfig
from eigen_core.learning.base_learners import BaseLearner, bias_corrections, clipped_step, scaled, with_known_returns
from eigen_core.learning.interface import LearningResult, learner_settings, setting
from eigen_core.learning.trajectories import TrajectoryBuffer
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task.interface import Encoded, Observed, Task
from eigen_core.task.replay import Column, Replay

_FLOAT32 = Column(torch.float32)
_COLUMNS = {"slot": Column(torch.int64), "reward": _FLOAT32, "terminal": Column(torch.bool), "log_prob": _FLOAT32}


@dataclass(frozen=True)
class EpisodePlan:
    """The episodes that each agent learns from in a generation. Implements `LearningPlan`.

    Attributes:
        starts: index in the replay buffer of each episode's first step, int64 `[agents, episodes]`.
        lengths: number of steps of each episode, int64 `[agents, episodes]`.
        epochs: passes over the episodes.
        minibatches: minibatches of an epoch, each with one optimizer step.
        generation: number of the generation, from 1.
        first_agent: index in the population of the first agent of this plan.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    epochs: int
    minibatches: int
    generation: int
    first_agent: int = 0

    @property
    def gradient_steps(self) -> int:
        return self.epochs * self.minibatches

    def rows(self, agents: slice) -> "EpisodePlan":
        first = self.first_agent + agents.start
        return replace(self, starts=self.starts[agents], lengths=self.lengths[agents], first_agent=first)


@dataclass(frozen=True)
class _Minibatch(Generic[Observed]):
    """Steps of each agent to learn from, `[agents, batch]`; steps where `counted` is false are padding."""

    observations: Observed
    actions: Tensor
    counted: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over each agent's `counted` steps, float32 `[agents]`; 0 if it has none."""
        return (values * self.counted).sum(-1) / self.counted.sum(-1).clamp_min(1)


class PpoLearner(BaseLearner[Observed, Encoded]):
    """Implements `Learner` by PPO, on the episodes that the generation has just played."""

    settings = PpoConfig
    _learner: PpoConfig

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("value_loss", "Mean squared error of the values against the returns, in scaled rewards."),
        Curve("policy_loss", "Minus the sum of the clipped objective and the weighted entropy."),
        Curve("entropy", "Entropy of the policy before squashing, in nats."),
        Curve("kl_divergence", "Estimated divergence of the policy from the one that played, in nats."),
        Curve("clipped_share", "Share of steps whose probability ratio lies outside of the clip range."),
        Curve("critic_gradient_norm", "Norm of an agent's critic gradient before clipping."),
        Curve("actor_gradient_norm", "Norm of an agent's actor gradient before clipping."),
    )

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        learner, self._episodes = learner_settings(config, PpoConfig), config.evaluation.slices
        self._minibatches = math.ceil(task.episode_steps * self._episodes / learner.batch_size)
        super().__init__(config, task, learner.epochs * self._minibatches)

    @staticmethod
    def heads(config: Config) -> Heads:
        if config.exploration.random_steps:
            raise InputError(
                f"exploration.random_steps {config.exploration.random_steps}: PPO learns from what its own policy "
                "played, not from random actions: set it to 0."
            )
        initial_log_std = learner_settings(config, PpoConfig).initial_log_std
        return Heads(action_values=False, spread="free", initial_log_std=initial_log_std, whole_episodes=True)

    def plan(self, replay: Replay, agents: int, generation: int) -> EpisodePlan | None:
        """Find the episodes in the replay that this generation played, ordered by agent; None if `epochs` is 0."""
        if self._learner.epochs == 0:
            return None
        episodes, column = agents * self._episodes, self._task.episode_end
        newest = min(replay.size, episodes * self._task.episode_steps + 1)
        numbers = np.arange(replay.written - newest, replay.written)
        ends = replay.pick(torch.tensor(numbers % replay.capacity), column)[column].cpu().numpy()
        before = np.concatenate([numbers[:1] - 1, numbers[ends]])[-episodes - 1 :]
        shape = (agents, self._episodes)
        return EpisodePlan(
            starts=((before[:-1] + 1) % replay.capacity).reshape(shape),
            lengths=np.diff(before).reshape(shape),
            epochs=self._learner.epochs,
            minibatches=self._minibatches,
            generation=generation,
        )

    def learn(
        self, group: Population, plan: EpisodePlan, replay: Replay, between_steps: Callable[[], None]
    ) -> LearningResult:
        """Train a group; an agent whose policy diverges by more than `learner.kl_limit` stops for this generation."""
        buffer = self._filled(group, plan, replay)
        generators = [
            keyed_generator(self._config.seed, plan.generation, "train", plan.first_agent + agent, "minibatches")
            for agent in range(group.size)
        ]
        counts, learning = group.state["steps"].tolist(), [True] * group.size
        left = max(0.0, 1.0 - (plan.generation - 1) / self._config.generations) if self._learner.anneal else 1.0
        rows: list[list[Tensor]] = []
        for _ in range(plan.epochs):
            dealt = buffer.minibatches(plan.minibatches, generators)
            for slots, counted in zip(*(part.unbind(1) for part in dealt), strict=True):
                picked = buffer.pick(slots, "slot", "log_prob", "value", "advantage", "return")
                batch = self._task.transitions(replay, picked.pop("slot"), 0)
                minibatch = _Minibatch(batch.observations, batch.actions, counted, *picked.values())
                rows.append(self._step(group, minibatch, counts, learning, left))
                between_steps()
        group.state["steps"].copy_(torch.tensor(counts))
        return LearningResult.of(group, self.curves, rows)

    @torch.no_grad()
    def _filled(self, group: Population, plan: EpisodePlan, replay: Replay) -> TrajectoryBuffer:
        device, task, learner = group.weights.device, self._task, self._learner
        buffer = TrajectoryBuffer(task.episode_steps, plan.lengths, _COLUMNS, device)
        # Slots beyond an episode's end repeat its last step.
        steps = np.minimum(np.arange(task.episode_steps), plan.lengths[..., None] - 1)
        slots = torch.tensor((plan.starts[..., None] + steps) % replay.capacity, device=device)
        columns = {name: buffer.of_agents(name) for name in (*_COLUMNS, "value")}
        columns["slot"].copy_(slots)
        critic = task.critic_layout.views(group.weights[:, self._critic])
        actor = task.actor_layout.views(group.weights[:, self._actor])
        at_once = max(1, learner.batch_size // self._episodes)
        for first in range(0, task.episode_steps, at_once):
            part = slice(first, min(first + at_once, task.episode_steps))
            batch = task.transitions(replay, slots[..., part].flatten(1), 0)
            encoding = task.encode(critic, batch.observations)
            found = {
                "reward": scaled(batch.rewards[..., 0], group, learner),
                "terminal": batch.terminal,
                "log_prob": task.policy(actor, encoding).log_prob(batch.actions),
                "value": task.values(critic, encoding, None)[0],
            }
            for name, values in found.items():
                columns[name][..., part] = values.reshape(slots[..., part].shape)
        last = task.encode(critic, task.transitions(replay, slots[..., -1], 0).next_observations)
        ends = torch.tensor(plan.lengths.flatten(), device=device)
        after_last = task.values(critic, last, None)[0].flatten()
        # No `scatter_`: with more than one dimension it makes a GPU wait (see `trading.environment._leave_out_held`).
        buffer.columns["value"][ends, torch.arange(len(ends), device=device)] = after_last
        gamma = setting(group, learner, "gamma")
        discount = gamma[:, 0].double().repeat_interleave(self._episodes) if isinstance(gamma, Tensor) else gamma
        buffer.estimate_advantages(discount, learner.gae_lambda)
        buffer.normalise_advantages()
        return buffer

    def _step(
        self, group: Population, batch: _Minibatch[Observed], counts: list[int], learning: list[bool], left: float
    ) -> list[Tensor]:
        """Take one optimizer step of the agents that are still `learning`; return the values of `curves`.

        `counts` of optimizer steps and `learning` are updated in place. Learning rates are multiplied by `left`.
        """
        task, learner = self._task, self._learner
        critic_rows = group.weights[:, self._critic].clone().requires_grad_()
        actor_rows = group.weights[:, self._learned_actor].clone().requires_grad_()
        critic = task.critic_layout.views(critic_rows)
        encoding = task.encode(critic, batch.observations)
        value_loss = self._value_loss(batch, task.values(critic, encoding, None)[0])
        torch.autograd.backward(with_known_returns(value_loss, task, critic, encoding, learner).sum())

        policy = task.policy(task.actor_layout.views(self._whole_actor(group, actor_rows)), encoding.detach())
        log_ratio = policy.log_prob(batch.actions) - batch.log_probs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - learner.clip_range, 1.0 + learner.clip_range)
        objective = batch.mean(torch.minimum(ratio * batch.advantages, clipped * batch.advantages))
        entropy = batch.mean(policy.entropy)
        policy_loss = -(objective + learner.entropy_coefficient * entropy)
        torch.autograd.backward(policy_loss.sum())

        # Schulman, "Approximating KL divergence" (2020): k3, whose terms are never negative.
        divergence = batch.mean((ratio - 1.0) - log_ratio).detach()
        # A divergence that is not finite stops an agent in any case, since its gradient is not finite either.
        limit = torch.finfo(torch.float32).max if learner.kl_limit is None else learner.kl_limit
        learning[:] = [goes_on and here <= limit for goes_on, here in zip(learning, divergence.tolist(), strict=True)]
        stepping = [
            goes_on and bool(some) for goes_on, some in zip(learning, batch.counted.any(-1).tolist(), strict=True)
        ]
        counts[:] = [count + steps for count, steps in zip(counts, stepping, strict=True)]
        chosen = [agent for agent, steps in enumerate(stepping) if steps]
        corrections = bias_corrections(np.array(counts)[chosen], group.weights.device)
        norms = [
            clipped_step(group, columns, rows, corrections, rate, learner, agents=chosen, annealing=left)
            for columns, rows, rate in (
                (self._critic, critic_rows, "critic_learning_rate"),
                (self._learned_actor, actor_rows, "actor_learning_rate"),
            )
        ]
        share = batch.mean(((ratio - 1.0).abs() > learner.clip_range).float())
        curves = [value_loss.detach(), policy_loss.detach(), entropy.detach(), divergence, share, *norms]
        idle = torch.tensor([not steps for steps in stepping], device=group.weights.device)
        return [curve.masked_fill(idle, torch.nan) for curve in curves]

    def _value_loss(self, batch: _Minibatch[Observed], values: Tensor) -> Tensor:
        error = (values - batch.returns).square()
        clip = self._learner.value_clip
        if clip is not None:
            # The larger error counts: that of the value, or of the value near that before learning.
            near = batch.values + (values - batch.values).clamp(-clip, clip)
            error = torch.maximum(error, (near - batch.returns).square())
        return batch.mean(error)
