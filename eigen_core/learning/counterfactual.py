"""Regression on the outcome of every alternative (an asset with a sale target), which a task knows without playing.

Prices do not react to a small trader, so the gain of each asset, bought on each day with each sale target, is known:
a decision process whose inputs are exogenous, learned in hindsight (Sinclair et al. 2023, ICML, "Hindsight learning for
MDPs with exogenous inputs"). An actor learns to predict the outcomes of all alternatives. It takes the one that most
exceeds its reserve price, the price of blocking the asset until its sale (`eigen_core.networks.actions`).
"""

from typing import ClassVar, cast

import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Curve
from eigen_core.config import Config, CounterfactualConfig
from eigen_core.learning.base_learners import BatchLearner, StepInputs, clipped_step, scaled
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.actions import RESERVE_VALUES, ExpectedOutcomes, update_reserve
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task import task_class
from eigen_core.task.interface import BatchSampler, Encoded, KnownOutcomes, Observed, Outcomes, Task
from eigen_core.task.replay import Replay


class CounterfactualLearner(BatchLearner[Observed, Encoded]):
    """Implements `Learner` for tasks that implement `KnownOutcomes`; it does not read the replay."""

    settings = CounterfactualConfig
    _learner: CounterfactualConfig

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("reward_loss", "Mean squared error of the predicted rewards, in scaled rewards."),
        Curve("time_loss", "Mean squared error of the predicted holding times, as shares of the longest one."),
        Curve("spread", "Standard deviation of each asset's best predicted reward, in scaled rewards."),
        Curve("gradient_norm", "Norm of an agent's gradient before clipping."),
    )

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        super().__init__(config, task)
        self._known = cast("KnownOutcomes", task)
        self._stepped = slice(0, task.critic_layout.size + task.actor_layout.size - RESERVE_VALUES)

    @staticmethod
    def heads(config: Config) -> Heads:
        if not issubclass(task_class(config), KnownOutcomes):
            raise InputError(
                f"learner.algorithm {config.learner.algorithm} learns from the outcomes of actions that were "
                f"not played, and task {config.task} has none: use task market, or another learner.algorithm."
            )
        return Heads(critics=0, outcomes=learner_settings(config, CounterfactualConfig).target_bins)

    def _sampler(self, replay: Replay) -> BatchSampler | None:  # noqa: ARG002 - outcomes are not stored there
        return self._known.outcome_sampler(self._learner.batch_size)

    def _step(self, group: Population, replay: Replay, step: StepInputs) -> list[Tensor]:  # noqa: ARG002
        (corrections,), batches = step.corrections, step.batches
        assert corrections is not None
        rows = group.weights[:, self._stepped].clone().requires_grad_()
        reward_losses, time_losses = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0])
        seen = []
        for moments, block in batches:
            observed, outcomes = self._known.outcomes(moments, block)
            # The reserve price has no gradient.
            whole = torch.cat([rows, group.weights[:, self._stepped.stop :]], dim=1)
            encoding = self._task.encode(self._task.critic_layout.views(whole[:, self._critic]), observed)
            expected = self._known.expected_outcomes(self._task.actor_layout.views(whole[:, self._actor]), encoding)
            reward_loss, time_loss = self._losses(group, expected, outcomes)
            torch.autograd.backward((reward_loss + time_loss).sum() / len(batches))
            reward_losses += reward_loss.detach() / len(batches)
            time_losses += time_loss.detach() / len(batches)
            seen.append((ExpectedOutcomes(expected.rewards.detach(), expected.shares.detach()), outcomes.known))
        norms = clipped_step(group, self._stepped, rows, corrections, "critic_learning_rate", self._learner)
        actor = self._task.actor_layout.views(group.weights[:, self._actor])
        for found, known in seen:
            update_reserve(actor, found, known)
        return [reward_losses, time_losses, actor["actor.log_spread"][:, 0].exp(), norms]

    def _losses(self, group: Population, expected: ExpectedOutcomes, outcomes: Outcomes) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of predicted rewards and `shares`, where `Outcomes.known`: `[agents]` each."""
        rewards = scaled(outcomes.rewards.flatten(1), group, self._learner).reshape(outcomes.rewards.shape)
        known = outcomes.known[..., None]
        count = outcomes.known.sum((1, 2)).clamp_min(1) * outcomes.rewards.shape[-1]

        def loss(error: Tensor) -> Tensor:
            counted = error * known
            return (counted * counted).flatten(2).sum(-1).sum(-1) / count

        return loss(expected.rewards - rewards), loss(expected.shares - outcomes.shares)
