"""The learner `jitter`: weights are stretched at random; it shows what a learner has to say."""

from typing import Any, ClassVar

from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config
from eigen_core.learning.base_learners import BatchLearner, StepInputs, row_norms
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task.replay import Replay


class JitterLearner(BatchLearner[Any, Any]):
    curves: ClassVar[tuple[Curve, ...]] = (Curve("length", "Length of an agent's weights."),)
    noises = ("jitter",)

    @staticmethod
    def heads(config: Config) -> Heads:  # noqa: ARG004
        return Heads()

    def _step(self, group: Population, replay: Replay, step: StepInputs) -> list[Tensor]:  # noqa: ARG002
        group.weights.mul_(1.0 + 0.01 * step.noise[0][0].flatten(1)[:, :1])
        return [row_norms(group.weights)]
