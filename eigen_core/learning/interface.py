"""Interface of learners, which train groups of agents (stacked tensors, see `Population`) by gradient steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config, LearnerConfig
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import Population
from eigen_core.task.interface import Task
from eigen_core.task.replay import Replay


class LearningPlan(Protocol):
    """Data that agents learn from in one generation, drawn before any of them learns."""

    @property
    def gradient_steps(self) -> int:
        """Most optimizer steps that any agent takes in the generation."""

    def rows(self, agents: slice) -> Self:
        """Return the plan for the slice `agents` of its agents alone."""


@dataclass(frozen=True)
class LearningResult:
    """A group of agents after learning, and the learner's statistics (`Learner.curves`) by name.

    `curves` are float64 `[agents, gradient steps]` on the host, NaN where a step has no value for an agent.
    """

    group: Population
    curves: dict[str, Tensor]

    @classmethod
    def of(cls, group: Population, curves: Sequence[Curve], steps: Sequence[Sequence[Tensor]]) -> "LearningResult":
        """Join `steps`: each gradient step has one tensor `[agents]`, on the group's device, for each of `curves`."""
        # All at once: each copy to the host makes a GPU wait.
        stacked = torch.stack([torch.stack(list(curve), dim=1) for curve in zip(*steps, strict=True)]).double().cpu()
        return cls(group, dict(zip((curve.name for curve in curves), stacked, strict=True)))


class Learner(Protocol):
    """Trains agents, a group at a time; an agent's result does not depend on the other agents in its group."""

    curves: ClassVar[tuple[Curve, ...]]
    """Statistics that the learner computes in each gradient step, such as losses."""

    def __init__(self, config: Config, task: Task[Any, Any]) -> None: ...

    @staticmethod
    def heads(config: Config) -> Heads:
        """Return the critics and the kind of policy that the learner needs from the task's networks."""

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        """Return agents that have not learned yet.

        Args:
            weights: float32 `[agents, parameters]`; not copied.
            teacher: one agent from which the new agents take over the critic's optimizer state and target network, and
                the actor's too where both share an optimizer; None: they begin with fresh state.
        """

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        """Return lowest and highest valid value of tensors in `Population.state` after so many generations, by name."""

    def plan(self, replay: Replay, agents: int, generation: int) -> LearningPlan | None:
        """Draw the plan of a generation for `agents` agents; None if too little is stored, or no step is configured."""

    def learn(
        self, group: Population, plan: LearningPlan, replay: Replay, between_steps: Callable[[], None]
    ) -> LearningResult:
        """Let a group of agents learn for one generation.

        Args:
            group: the agents; the learner may write to their tensors.
            plan: the plan of exactly these agents, see `LearningPlan.rows`.
            replay: the replay buffer from which the plan was drawn.
            between_steps: called after each gradient step, to report progress.
        """


C = TypeVar("C", bound=LearnerConfig)


def learner_settings(config: Config, kind: type[C]) -> C:
    """Return the configuration's section `learner`; raise `TypeError` if it is not of the type `kind`."""
    if not isinstance(config.learner, kind):
        raise TypeError(f"Settings of learner.algorithm {config.learner.algorithm} are not a {kind.__name__}.")
    return config.learner


def setting(group: Population, config: LearnerConfig, name: str) -> float | Tensor:
    """Return a learner's setting: each agent's value, `[agents, 1]`, if agents have their own; else a number."""
    own = group.hyperparameters.get(name)
    if own is not None:
        return own[:, None]
    value: float = getattr(config, name)
    return value
