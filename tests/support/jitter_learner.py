"""The learner `jitter`: weights move at random; it shows what a learner has to say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Curve
from eigen_core.config import Config, DdpgConfig
from eigen_core.learning.interface import LearningResult, learner_settings
from eigen_core.networks import Heads
from eigen_core.networks.population import Population
from eigen_core.task import Task
from eigen_core.task.replay import Replay


@dataclass(frozen=True)
class JitterPlan:
    """The moves of each agent, float32 `[agents, steps, parameters]`."""

    moves: Tensor

    @property
    def gradient_steps(self) -> int:
        """Steps of each agent."""
        return int(self.moves.shape[1])

    def rows(self, agents: slice) -> "JitterPlan":
        """The plan of consecutive agents."""
        return JitterPlan(self.moves[agents])


class JitterLearner:
    """Implements `Learner`."""

    curves: ClassVar[tuple[Curve, ...]] = (Curve("moved", "Length of a step in the space of weights."),)

    def __init__(self, config: Config, task: Task[Any, Any]) -> None:
        self._config = config
        self._learner = learner_settings(config, DdpgConfig)
        self._parameters = task.critic_layout.size + task.actor_layout.size

    @staticmethod
    def heads(config: Config) -> Heads:  # noqa: ARG004
        """One critic of actions and a deterministic actor."""
        return Heads()

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:  # noqa: ARG002
        """Agents that have made no step."""
        return Population(weights, {"steps": torch.zeros(len(weights), dtype=torch.int64)})

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        """Steps of so many generations."""
        return {"steps": (0.0, float(generation * self._learner.gradient_steps))}

    def plan(self, replay: Replay, agents: int, generation: int) -> JitterPlan | None:  # noqa: ARG002
        """Draw the moves."""
        shape = (self._learner.gradient_steps, self._parameters)
        generators = [keyed_generator(self._config.seed, generation, "train", agent) for agent in range(agents)]
        moves = np.stack([generator.standard_normal(shape, dtype=np.float32) for generator in generators])
        return JitterPlan(torch.tensor(moves) * self._learner.actor_learning_rate)

    def learn(
        self,
        group: Population,
        plan: JitterPlan,
        replay: Replay,  # noqa: ARG002
        between_steps: Callable[[], None],
    ) -> LearningResult:
        """Make the moves."""
        for step in range(plan.gradient_steps):
            group.weights.add_(plan.moves[:, step].to(group.weights.device))
            between_steps()
        group.state["steps"].add_(plan.gradient_steps)
        return LearningResult(group, {"moved": plan.moves.norm(dim=2).double()})
