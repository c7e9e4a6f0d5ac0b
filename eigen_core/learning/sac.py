"""Soft actor-critic: a group of agents learns from the replay that all share, each with its own temperature.

Haarnoja et al. 2018 (arXiv:1812.05905), algorithm 1: two critics, a squashed Gaussian policy, a learned temperature.
"""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config, SacConfig
from eigen_core.learning.base_learners import (
    OffPolicyLearner,
    StepInputs,
    adam_update,
    discounted_rewards,
    polyak_update,
)
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.policies import Heads, Policy
from eigen_core.networks.population import Population
from eigen_core.task.interface import Encoded, Observed, Transitions
from eigen_core.task.replay import Replay


class SacLearner(OffPolicyLearner[Observed, Encoded]):
    """Implements `Learner` by soft actor-critic; a temperature is the weight of the entropy in an agent's objective."""

    noises = ("next actions", "actions")
    settings = SacConfig
    _learner: SacConfig

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("critic_loss", "Mean squared soft temporal-difference error, in scaled rewards."),
        Curve("actor_loss", "Weighted log-density minus value of the actor's actions, in scaled rewards."),
        Curve("value", "Mean value of the stored actions, in scaled rewards."),
        Curve("entropy", "Entropy in nats of the actor's actions, which are scaled to [-1, 1]."),
        Curve("temperature", "Weight of the entropy relative to scaled rewards."),
        Curve("critic_gradient_norm", "Norm of an agent's critic gradient before clipping."),
        Curve("actor_gradient_norm", "Norm of an agent's actor gradient before clipping."),
    )

    @staticmethod
    def heads(config: Config) -> Heads:
        return Heads(critics=2, spread="observed", return_steps=learner_settings(config, SacConfig).n_step)

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        """Return new agents whose target critics equal their critics, with `learner.initial_temperature`.

        With a teacher, the new agents take over its target critics, optimizer state and temperature instead.
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

    def _step(self, group: Population, replay: Replay, step: StepInputs) -> list[Tensor]:
        (corrections,), (_, noise) = step.corrections, step.noise
        assert corrections is not None
        temperature = group.state["log_temperature"].exp()
        fitted = self._fit_critics(group, replay, step)
        log_probs = torch.zeros_like(fitted.loss)

        def actor_loss(batch: int, policy: Policy, values: Callable[[Tensor], Tensor]) -> Tensor:
            # Equation 9.
            raw = policy.sample(noise[batch])
            log_prob = policy.log_prob(raw)
            log_probs.add_(log_prob.detach().mean(-1) / len(noise))
            return temperature * log_prob - values(self._natural_actions(raw)).amin(0)

        loss, norm = self._fit_actor(group, fitted.encodings, actor_loss, corrections)
        # Raises the temperature where the entropy is below its target. The loss (section 5) is linear in its logarithm:
        # otherwise a low temperature could hardly rise.
        excess = log_probs + self._learner.entropy_target * noise[0, 0, 0].numel()
        names = ("log_temperature", "temperature_first_moment", "temperature_second_moment")
        logarithm, first, second = (group.state[name] for name in names)
        rate = self._learner.temperature_learning_rate
        adam_update(logarithm, first, second, -excess[:, None], corrections, rate)
        polyak_update(group.state["targets"], group.weights[:, self._critic], self._learner.tau)
        return [fitted.loss, loss, fitted.value, -log_probs, temperature[:, 0], fitted.gradient_norm, norm]

    def _natural_actions(self, stored: Tensor) -> Tensor:
        return self._task.box.actions(stored)

    @torch.no_grad()
    def _td_target(self, group: Population, batch: Transitions[Observed], noise: Sequence[Tensor]) -> Tensor:
        # Equations 2 and 3. The actor reads the observation by the current encoder, the target critics by their own.
        task = self._task
        own = task.critic_layout.views(group.weights[:, self._critic])
        policy = task.policy(
            task.actor_layout.views(group.weights[:, self._actor]), task.encode(own, batch.next_observations)
        )
        raw = policy.sample(noise[0])
        targets = task.critic_layout.views(group.state["targets"])
        encoding = task.encode(targets, batch.next_observations)
        values = task.values(targets, encoding, task.box.actions(raw)).amin(0)
        soft_values = values - group.state["log_temperature"].exp() * policy.log_prob(raw)
        rewards, discount = discounted_rewards(batch, group, self._learner)
        return rewards + discount * soft_values
