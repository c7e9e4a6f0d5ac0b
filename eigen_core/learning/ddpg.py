"""Deep deterministic policy gradient: a group of agents learns from the replay that all share.

Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1; with `twin_critics` and `policy_delay` the clipped double
estimate and delayed policy of Fujimoto et al. 2018 (arXiv:1802.09477), sections 4.2 and 5.2.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config, DdpgConfig, LearnerConfig, Td3Config
from eigen_core.learning.base_learners import BatchPlan, OffPolicyLearner, StepInputs, discounted_rewards, polyak_update
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.policies import Heads, Policy
from eigen_core.networks.population import Population
from eigen_core.task.interface import Encoded, Observed, Transitions
from eigen_core.task.replay import Replay


class DdpgLearner(OffPolicyLearner[Observed, Encoded]):
    """Implements `Learner` by DDPG: the actor ascends the gradient of the first critic's value of its actions."""

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("critic_loss", "Mean squared temporal-difference error, in scaled rewards."),
        Curve("actor_loss", "Minus the critic's value of the actor's actions, in scaled rewards."),
        Curve("value", "Mean value of the stored actions, in scaled rewards."),
        Curve("critic_gradient_norm", "Norm of an agent's critic gradient before clipping."),
        Curve("actor_gradient_norm", "Norm of an agent's actor gradient before clipping."),
    )

    settings: ClassVar[type[LearnerConfig]] = DdpgConfig
    _learner: DdpgConfig | Td3Config

    @staticmethod
    def heads(config: Config) -> Heads:
        learner = learner_settings(config, DdpgConfig)
        return Heads(critics=2 if learner.twin_critics else 1, return_steps=learner.n_step)

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        state = {"targets": weights.clone(), **super().new_agents(weights).state}
        steps = state.pop("steps")
        state |= {"critic_steps": steps, "actor_steps": steps.clone()}
        if teacher is not None:
            for name in ("targets", "first_moment", "second_moment"):
                state[name][:, self._critic] = teacher.state[name][:, self._critic]
            state["critic_steps"][:] = teacher.state["critic_steps"]
        return Population(weights, state)

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        bounds = super().bounds(generation)
        steps = bounds.pop("steps")
        return {**bounds, "critic_steps": steps, "actor_steps": steps}

    def _target_actions(self, policy: Policy, noise: Sequence[Tensor]) -> Tensor:  # noqa: ARG002 - for TD3
        """Return the target actor's actions; the target critics value them for the temporal-difference target."""
        return policy.mode

    def _moves(self, plan: BatchPlan) -> dict[str, list[bool]]:
        numbers = np.arange(1, plan.gradient_steps + 1) + plan.earlier_steps
        actor_moves = (numbers % self._learner.policy_delay == 0).tolist()
        return {"critic_steps": [True] * plan.gradient_steps, "actor_steps": actor_moves}

    def _step(self, group: Population, replay: Replay, step: StepInputs) -> list[Tensor]:
        _, of_actor = step.corrections
        fitted = self._fit_critics(group, replay, step)
        if of_actor is None:
            actor_loss = actor_norm = torch.full_like(fitted.loss, torch.nan)
        else:
            # Ascends the gradient of the first critic's value.
            actor_loss, actor_norm = self._fit_actor(
                group, fitted.encodings, lambda _, policy, values: -values(policy.mode)[0], of_actor
            )
            polyak_update(group.state["targets"], group.weights, self._learner.tau)
        return [fitted.loss, actor_loss, fitted.value, fitted.gradient_norm, actor_norm]

    @torch.no_grad()
    def _td_target(self, group: Population, batch: Transitions[Observed], noise: Sequence[Tensor]) -> Tensor:
        targets, task = group.state["targets"], self._task
        critic = task.critic_layout.views(targets[:, self._critic])
        actor = task.actor_layout.views(targets[:, self._actor])
        encoding = task.encode(critic, batch.next_observations)
        values = task.values(critic, encoding, self._target_actions(task.policy(actor, encoding), noise)).amin(0)
        rewards, discount = discounted_rewards(batch, group, self._learner)
        return rewards + discount * values


class Td3Learner(DdpgLearner[Observed, Encoded]):
    """Implements `Learner` by TD3: DDPG with two critics, a delayed actor and noise on the target actor's actions."""

    noises = ("target noise",)
    settings = Td3Config
    _learner: Td3Config

    @staticmethod
    def heads(config: Config) -> Heads:
        return Heads(critics=2, return_steps=learner_settings(config, Td3Config).n_step)

    def _target_actions(self, policy: Policy, noise: Sequence[Tensor]) -> Tensor:
        # So that similar actions get similar values (Fujimoto et al. 2018, section 5.3).
        (drawn,), clip = noise, self._learner.target_noise_clip
        return self._task.box.explore(policy.mode, (drawn * self._learner.target_noise).clamp_(-clip, clip))
