"""Interface of learners: state of each agent, learning plan, and how groups of agents learn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from eigen_core.common.records import Curve
from eigen_core.config import Config, LearnerConfig
from eigen_core.networks import Heads
from eigen_core.networks.population import Population
from eigen_core.task import Task
from eigen_core.task.replay import Replay


class LearningPlan(Protocol):
    """Data that agents learn from in one generation, drawn before any of them learns."""

    @property
    def gradient_steps(self) -> int:
        """Most optimizer steps that any agent takes."""

    def rows(self, agents: slice) -> Self:
        """Return the part of the plan for a slice of the agents."""


@dataclass(frozen=True)
class LearningResult:
    """Agents after learning.

    Curves, by name, are float64 `[agents, gradient steps]` on the host, NaN where a step has no value.
    """

    group: Population
    curves: dict[str, Tensor]

    @classmethod
    def of(cls, group: Population, curves: Sequence[Curve], steps: Sequence[Sequence[Tensor]]) -> "LearningResult":
        """Return the result of gradient steps: each has a tensor `[agents]` on the device for every curve, in order."""
        # All at once: each copy to the host makes a GPU wait.
        stacked = torch.stack([torch.stack(list(curve), dim=1) for curve in zip(*steps, strict=True)]).double().cpu()
        return cls(group, dict(zip((curve.name for curve in curves), stacked, strict=True)))


class Learner(Protocol):
    """Trains agents, a group at a time; an agent's result does not depend on its group."""

    curves: ClassVar[tuple[Curve, ...]]
    """Curves that describe a generation's learning."""

    def __init__(self, config: Config, task: Task[Any, Any]) -> None: ...

    @staticmethod
    def heads(config: Config) -> Heads:
        """Return the critics and the kind of policy that the learner needs from the task's networks."""

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        """Return agents that have not learned yet.

        Args:
            weights: float32 `[agents, parameters]`; not copied.
            teacher: one agent whose critic, with its optimizer and target, the new agents continue; a learner with one
                optimizer for critic and actor continues both.
        """

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        """Return lowest and highest value of tensors in `Population.state` after `generation` generations, by name."""

    def plan(self, replay: Replay, agents: int, generation: int) -> LearningPlan | None:
        """Draw the plan of a generation for `agents` agents; None if the replay holds too little or no step is due."""

    def learn(
        self, group: Population, plan: LearningPlan, replay: Replay, between_steps: Callable[[], None]
    ) -> LearningResult:
        """Let agents learn.

        Args:
            group: agents; the learner may write to their tensors.
            plan: the plan of exactly these agents, see `LearningPlan.rows`.
            replay: the buffer with the transitions of the plan.
            between_steps: called after each optimizer step.
        """


C = TypeVar("C", bound=LearnerConfig)


def learner_settings(config: Config, kind: type[C]) -> C:
    """Return the section `learner`; raise `TypeError` if it is not of the type `kind`."""
    if not isinstance(config.learner, kind):
        raise TypeError(f"Settings of learner.algorithm {config.learner.algorithm} are not a {kind.__name__}.")
    return config.learner


def setting(group: Population, config: LearnerConfig, name: str) -> float | Tensor:
    """Return a setting of the learner: if it is a gene, each agent's value, float32 `[agents, 1]`; else a number."""
    gene = group.genes.get(name)
    if gene is not None:
        return gene[:, None]
    value: float = getattr(config, name)
    return value
