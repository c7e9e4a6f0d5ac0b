"""Soft actor-critic for a group of agents from the shared replay, each with its own temperature.

Haarnoja et al. 2018 (arXiv:1812.05905), algorithm 1: two critics, a squashed Gaussian policy, a learned temperature.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config, SacConfig
from eigen_core.learning.interface import learner_settings, setting
from eigen_core.learning.steps import (
    BatchLearner,
    Step,
    adam_update,
    clipped_step,
    discounted_rewards,
    fit_critics,
    polyak_update,
)
from eigen_core.networks import Heads
from eigen_core.networks.population import Population
from eigen_core.task import Encoded, Observed, Task, Transitions
from eigen_core.task.replay import Replay


class _ActorStep(NamedTuple):
    loss: Tensor
    gradient_norm: Tensor
    log_prob: Tensor
    action_values: int


class SacLearner(BatchLearner[Observed, Encoded]):
    """Implements `Learner`."""

    noises = ("next actions", "actions")

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("critic_loss", "Mean squared soft temporal-difference error, in scaled rewards."),
        Curve("actor_loss", "Weighted log-density minus value of the actor's actions, in scaled rewards."),
        Curve("value", "Mean value of the stored actions, in scaled rewards."),
        Curve("entropy", "Entropy of the actor's actions, scaled to [-1, 1], in nats."),
        Curve("temperature", "Weight of the entropy relative to scaled rewards."),
        Curve("critic_gradient_norm", "Norm of an agent's critic gradient before clipping."),
        Curve("actor_gradient_norm", "Norm of an agent's actor gradient before clipping."),
    )

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        super().__init__(config, task)
        self._learner = learner_settings(config, SacConfig)

    @staticmethod
    def heads(config: Config) -> Heads:
        return Heads(critics=2, spread="observed", return_steps=learner_settings(config, SacConfig).n_step)

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        """Return new agents: target critics equal the critics, and the temperature is the initial one.

        With a teacher they continue with its target critics, optimizer moments and temperature.
        """
        new = super().new_agents(weights, teacher)
        if teacher is not None:
            return new
        alone = torch.zeros(len(weights), 1, device=weights.device)
        state = {
            "targets": weights[:, self._critic].clone(),
            "log_temperature": torch.full_like(alone, math.log(self._learner.initial_temperature)),
            "temperature_first_moment": alone,
            "temperature_second_moment": alone.clone(),
        }
        return Population(weights, {**new.state, **state})

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        return {**super().bounds(generation), "temperature_second_moment": (0.0, math.inf)}

    def _step(self, group: Population, replay: Replay, step: Step) -> list[Tensor]:
        """Take one optimizer step of critics, actor, temperature and targets; return `curves`."""
        batches = [self._task.transitions(replay, *batch) for batch in step.batches]
        (corrections,), (next_noise, noise) = step.corrections, step.noise
        assert corrections is not None
        of_next = iter(next_noise)
        temperature = group.state["log_temperature"].exp()
        fitted = fit_critics(
            self._task,
            group,
            batches,
            lambda batch: self._td_target(group, batch, temperature, next(of_next)),
            self._task.box.actions,
            corrections,
            self._learner,
        )
        acted = self._actor_step(group, fitted.encodings, temperature, noise, corrections)
        self._temperature_step(group, acted, corrections)
        polyak_update(group.state["targets"], group.weights[:, self._critic], self._learner.tau)
        norms = [fitted.gradient_norm, acted.gradient_norm]
        return [fitted.loss, acted.loss, fitted.value, -acted.log_prob, temperature[:, 0], *norms]

    @torch.no_grad()
    def _td_target(self, group: Population, batch: Transitions[Observed], temperature: Tensor, noise: Tensor) -> Tensor:
        """Reward plus the discounted soft value of the next observation (equations 2 and 3): `[agents, batch]`.

        The actor reads the observation by its own encoder, the target critics by theirs.
        """
        task = self._task
        own = task.critic_layout.views(group.weights[:, self._critic])
        policy = task.policy(
            task.actor_layout.views(group.weights[:, self._actor]), task.encode(own, batch.next_observations)
        )
        raw = policy.sample(noise)
        targets = task.critic_layout.views(group.state["targets"])
        encoding = task.encode(targets, batch.next_observations)
        values = task.values(targets, encoding, task.box.actions(raw)).amin(0)
        soft_values = values - temperature * policy.log_prob(raw)
        rewards, discount = discounted_rewards(batch, group, self._learner)
        return rewards + discount * soft_values

    def _actor_step(
        self,
        group: Population,
        encodings: list[Encoded],
        temperature: Tensor,
        noise: Sequence[Tensor],
        corrections: Tensor,
    ) -> _ActorStep:
        """Descend the weighted log-density minus the lower value (equation 9), by encodings of the critic step."""
        task = self._task
        rows = group.weights[:, self._actor].clone().requires_grad_()
        critic = task.critic_layout.views(group.weights[:, self._critic])
        losses, log_probs, values = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0]), 0
        for encoding, drawn in zip(encodings, noise, strict=True):
            policy = task.policy(task.actor_layout.views(rows), encoding)
            raw = policy.sample(drawn)
            log_prob = policy.log_prob(raw)
            value = task.values(critic, encoding, task.box.actions(raw)).amin(0)
            loss = (temperature * log_prob - value).mean(-1) / len(encodings)
            torch.autograd.backward(loss.sum())
            losses += loss.detach()
            log_probs += log_prob.detach().mean(-1) / len(encodings)
            values = raw[0, 0].numel()
        learning_rate = setting(group, self._learner, "actor_learning_rate")
        norms = clipped_step(group, self._actor, rows, corrections, learning_rate, self._learner)
        return _ActorStep(losses, norms, log_probs, values)

    def _temperature_step(self, group: Population, acted: _ActorStep, corrections: Tensor) -> None:
        """Raise the temperature where the entropy is below its target, else lower it (section 5).

        The loss is linear in the temperature's logarithm, so that a low temperature can still rise.
        """
        state = group.state
        gradients = -(acted.log_prob + self._learner.entropy_target * acted.action_values)[:, None]
        adam_update(
            state["log_temperature"],
            state["temperature_first_moment"],
            state["temperature_second_moment"],
            gradients,
            corrections,
            self._learner.temperature_learning_rate,
        )
