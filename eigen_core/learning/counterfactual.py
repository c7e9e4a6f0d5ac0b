"""Regression on the outcome of every alternative (an asset with a sale target), which a task knows without playing.

Prices do not react to a small trader, so the gain of each asset, bought on each day with each sale target, is known:
a decision process whose inputs are exogenous, learned in hindsight (Sinclair et al. 2023, ICML, "Hindsight learning for
MDPs with exogenous inputs"). An actor learns to predict the outcomes of all alternatives. It takes the one that most
exceeds its reserve price, the price of blocking the asset until its sale (`eigen_core.networks.actions`).

With `network.linear_scales` the prediction is a ridge regression's, plus a share of the network's output, the gate.
Where outcomes are linear in the features, a regression beats a network, since it learns less noise; the gate lets an
agent depart from it as far as days confirm from which it has not learned.

With `learner.ema_decay` agents act by an average of the weights of their gradient steps (Polyak and Juditsky 1992,
"Acceleration of stochastic approximation by averaging"; Izmailov et al. 2018, arXiv:1803.05407): noise in the weights
of single steps is noise in the highest predictions, by which agents act.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Curve
from eigen_core.config import Config, CounterfactualConfig
from eigen_core.learning.base_learners import BatchLearner, BatchPlan, StepInputs, clipped_step, scaled
from eigen_core.learning.interface import LearningResult, learner_settings
from eigen_core.networks.actions import ExpectedOutcomes, set_reserve, update_reserve
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task import task_class
from eigen_core.task.interface import BatchSampler, Encoded, KnownOutcomes, Observed, Outcomes, Task
from eigen_core.task.replay import Replay

_SMALLEST = 1e-12


class CounterfactualLearner(BatchLearner[Observed, Encoded]):
    """Implements `Learner` for tasks that implement `KnownOutcomes`; it does not read the replay."""

    settings = CounterfactualConfig
    _learner: CounterfactualConfig

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("reward_loss", "Mean squared error of the predicted rewards, in scaled rewards."),
        Curve("time_loss", "Mean squared error of the predicted holding times, as shares of the longest one."),
        Curve("spread", "Standard deviation of each asset's best predicted reward, in scaled rewards."),
        Curve("gate", "Share of the network's output in an agent's predictions; 1 without a linear part."),
        Curve("gradient_norm", "Norm of an agent's gradient before clipping."),
    )

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        super().__init__(config, task)
        self._known = cast("KnownOutcomes", task)
        self._stepped = slice(0, self._learned_actor.stop)

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        agents = super().new_agents(weights, teacher)
        if not self._learner.ema_decay:
            return agents
        return Population(weights, {**agents.state, "stepped_weights": weights.clone()})

    @staticmethod
    def heads(config: Config) -> Heads:
        if not issubclass(task_class(config), KnownOutcomes):
            raise InputError(
                f"learner.algorithm {config.learner.algorithm} learns from the outcomes of actions that were "
                f"not played, and task {config.task} has none: use task market, or another learner.algorithm."
            )
        learner = learner_settings(config, CounterfactualConfig)
        return Heads(critics=0, outcomes=learner.target_bins)

    def learn(
        self, group: Population, plan: BatchPlan, replay: Replay, between_steps: Callable[[], None]
    ) -> LearningResult:
        stepped = group
        if self._learner.ema_decay:
            stepped = Population(group.state["stepped_weights"], {**group.state, "average": group.weights})
        result = super().learn(stepped, plan, replay, between_steps)
        if self._config.network.linear_scales:
            self._set_gates(group)
        if self._learner.ema_decay:
            self._set_reserves(group)
        return replace(result, group=group)

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
            seen.append((expected.detach(), outcomes.known))
        norms = clipped_step(group, self._stepped, rows, corrections, "critic_learning_rate", self._learner)
        if decay := self._learner.ema_decay:
            average = group.state["average"]
            average[:, self._stepped].lerp_(group.weights[:, self._stepped], 1.0 - decay)
            actor = self._task.actor_layout.views(average[:, self._actor])
        else:
            actor = self._task.actor_layout.views(group.weights[:, self._actor])
            for found, known in seen:
                update_reserve(actor, found, known)
        gate = actor["actor.gate"][:, 0] if self._config.network.linear_scales else torch.ones_like(norms)
        return [reward_losses, time_losses, actor["actor.log_spread"][:, 0].exp(), gate, norms]

    @torch.no_grad()
    def _set_gates(self, group: Population) -> None:
        """Set how much of each agent's network is added to its linear part, by the days from which none learns.

        It is the slope, from 0 to 1, of the linear part's errors on the network's outputs, both less their mean over
        the assets of a moment. It is shrunk by its variance if the network knows nothing, as the mean of a normal
        distribution is (James and Stein 1961, "Estimation with quadratic loss", in the form that is never negative); it
        is 0 unless it exceeds `gate_standard_errors` of these. Outcomes that overlap in time, and those of the same
        asset, count once.
        """
        sums = torch.zeros((4, group.size), dtype=torch.float64, device=group.weights.device)
        for expected, outcomes in self._held_out(group):
            assert expected.linear is not None
            known = outcomes.known[..., None]
            output = _within_moments(expected.learned, known)
            error = _within_moments(self._scaled(group, outcomes) - expected.linear, known)
            products = (output * error, output * output, error * error, known.expand_as(error))
            sums += torch.stack([part.double().flatten(2).sum(-1).sum(-1) for part in products])
        product, squares, errors, count = sums
        slope = product / squares.clamp_min(_SMALLEST)
        repeated = self._known.longest_blocked() * self._learner.target_bins
        variance = repeated * errors / count.clamp_min(1.0) / squares.clamp_min(_SMALLEST)
        opened = slope > self._learner.gate_standard_errors * variance.sqrt()
        gate = torch.where(opened, slope - variance / slope.clamp_min(_SMALLEST), 0.0)
        self._task.actor_layout.views(group.weights[:, self._actor])["actor.gate"].copy_(gate.clamp(0.0, 1.0)[:, None])

    @torch.no_grad()
    def _set_reserves(self, group: Population) -> None:
        """Set mean and spread of the reserve price to those of the assets' best predictions on the days held out."""
        sums = torch.zeros((3, group.size), dtype=torch.float64, device=group.weights.device)
        for expected, outcomes in self._held_out(group):
            best = (expected.rewards.amax(-1) * outcomes.known).double()
            parts = (best, best * best, outcomes.known.double())
            sums += torch.stack([part.sum(-1).sum(-1) for part in parts])
        total, squares, count = sums
        mean = total / count.clamp_min(1.0)
        variance = squares / count.clamp_min(1.0) - mean * mean
        set_reserve(self._task.actor_layout.views(group.weights[:, self._actor]), mean, variance.clamp_min(0.0).sqrt())

    def _held_out(self, group: Population) -> Iterator[tuple[ExpectedOutcomes, Outcomes]]:
        """Yield predicted and known outcomes of the days that are held out, a batch at a time."""
        critic = self._task.critic_layout.views(group.weights[:, self._critic])
        actor = self._task.actor_layout.views(group.weights[:, self._actor])
        for moments, block in self._known.held_out(self._learner.batch_size):
            observed, outcomes = self._known.outcomes(moments.expand(group.size, -1), block)
            yield self._known.expected_outcomes(actor, self._task.encode(critic, observed)), outcomes

    def _scaled(self, group: Population, outcomes: Outcomes) -> Tensor:
        return scaled(outcomes.rewards.flatten(1), group, self._learner).reshape(outcomes.rewards.shape)

    def _losses(self, group: Population, expected: ExpectedOutcomes, outcomes: Outcomes) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of predicted rewards and `shares`, where `Outcomes.known`: `[agents]` each."""
        error = expected.whole - self._scaled(group, outcomes)
        known = outcomes.known[..., None]
        count = outcomes.known.sum((1, 2)).clamp_min(1) * outcomes.rewards.shape[-1]

        def loss(error: Tensor) -> Tensor:
            counted = error * known
            return (counted * counted).flatten(2).sum(-1).sum(-1) / count

        if self._config.network.linear_scales:
            error = _within_moments(error, known)
        return loss(error), loss(expected.shares - outcomes.shares)


def _within_moments(values: Tensor, known: Tensor) -> Tensor:
    """Subtract the mean over the candidates of a moment: `[agents, batch, candidates, settings]`; 0 if not `known`."""
    values = values * known
    return (values - values.sum(2, keepdim=True) / known.sum(2, keepdim=True).clamp_min(1)) * known
