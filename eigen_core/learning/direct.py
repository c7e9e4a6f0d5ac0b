"""Direct reinforcement: gradient ascent on the growth of an agent's account over stretches of training days.

Moody and Saffell 2001, "Learning to trade via direct reinforcement", IEEE Transactions on Neural Networks 12, section
II: an agent's trades do not move prices, so that the account, costs included, is a differentiable function of its
weights. There is no critic, and the replay is not read; the task provides the gradient (`DifferentiableGrowth`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Curve
from eigen_core.config import Config, DirectConfig
from eigen_core.learning.base_learners import BaseLearner, clipped_step, count_steps
from eigen_core.learning.interface import LearningResult, learner_settings, setting
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task.interface import DifferentiableGrowth, Task
from eigen_core.task.replay import Replay


@dataclass(frozen=True)
class StretchPlan:
    """The stretches of consecutive days that all agents learn from in a generation. Implements `LearningPlan`.

    Attributes:
        starts: index of the first day of each stretch, int64 `[gradient steps, stretches of a step]`.
        days: number of days of a stretch.
    """

    starts: NDArray[np.int64]
    days: int

    @property
    def gradient_steps(self) -> int:
        return len(self.starts)

    def rows(self, agents: slice) -> "StretchPlan":  # noqa: ARG002 - they are the same for all
        return self


class DirectLearner(BaseLearner[Any, Any]):
    """Implements `Learner`; `InputError` if the task does not implement `DifferentiableGrowth`, as `portfolio` does."""

    settings = DirectConfig
    _learner: DirectConfig

    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("growth", "Mean reward of a day of the stretches, before the step."),
        Curve("variance", "Variance of the rewards of the stretches' days."),
        Curve("turnover", "Traded value of a day, as a share of the equity."),
        Curve("encoder_gradient_norm", "Norm of the gradient of an agent's encoder before clipping."),
        Curve("actor_gradient_norm", "Norm of the gradient of an agent's actor before clipping."),
    )

    def __init__(self, config: Config, task: Task[Any, Any]) -> None:
        if not isinstance(task, DifferentiableGrowth):
            raise InputError(
                f"learner.algorithm {config.learner.algorithm} needs the gradient of an account's growth, and task "
                f"{config.task} has none: use task portfolio, or another learner.algorithm."
            )
        super().__init__(config, task, learner_settings(config, DirectConfig).gradient_steps)
        self._account = task

    @staticmethod
    def heads(config: Config) -> Heads:  # noqa: ARG004 - for any settings
        return Heads(critics=0)

    def plan(self, replay: Replay, agents: int, generation: int) -> StretchPlan | None:  # noqa: ARG002
        """Draw the stretches of a generation, the same for all agents; None if `learner.gradient_steps` is 0."""
        learner, known = self._learner, self._account.growth_days
        if learner.gradient_steps == 0:
            return None
        days = min(learner.stretch_bars, max(map(len, known)))
        starts = np.concatenate([np.arange(piece.start, piece.stop - days + 1) for piece in known])
        generator = keyed_generator(self._config.seed, generation, "train", "shared", "stretches")
        shape = (learner.gradient_steps, learner.stretches)
        return StretchPlan(starts[generator.integers(len(starts), size=shape)], days)

    def learn(
        self,
        group: Population,
        plan: StretchPlan,
        replay: Replay,  # noqa: ARG002 - it is not read
        between_steps: Callable[[], None],
    ) -> LearningResult:
        every_step = [True] * plan.gradient_steps
        rows: list[list[Tensor]] = []
        for starts, corrections in zip(plan.starts.tolist(), count_steps(group, "steps", every_step), strict=True):
            assert corrections is not None
            rows.append(self._step(group, starts, plan.days, corrections))
            between_steps()
        return LearningResult.of(group, self.curves, rows)

    def _step(self, group: Population, starts: list[int], days: int, corrections: Tensor) -> list[Tensor]:
        learner = self._learner
        aversion = setting(group, learner, "risk_aversion")
        stepped = (self._critic, self._learned_actor)
        parts = [group.weights[:, columns].clone().requires_grad_() for columns in stepped]
        seen = torch.zeros((3, group.size), device=group.weights.device)
        for start in starts:
            weights = torch.cat([parts[0], self._whole_actor(group, parts[1])], dim=1)
            growth, turnover = self._account.growth(weights, start, days)
            mean = growth.mean(-1)
            variance = (growth - mean[:, None]).square().mean(-1)
            worth = mean - (aversion[:, 0] if isinstance(aversion, Tensor) else aversion) * variance
            torch.autograd.backward(-worth.sum() / len(starts))
            seen += torch.stack([mean.detach(), variance.detach(), turnover.mean(-1)]) / len(starts)
        rates = ("critic_learning_rate", "actor_learning_rate")
        norms = [
            clipped_step(group, columns, part, corrections, rate, learner)
            for columns, part, rate in zip(stepped, parts, rates, strict=True)
        ]
        return [*seen, *norms]
