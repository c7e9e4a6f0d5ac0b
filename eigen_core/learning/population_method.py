"""Interface of population methods, and fitness from rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import GenerationRecord, Lineage
from eigen_core.config import Config, EvolutionConfig
from eigen_core.networks.population import Population

Number = float | int | None
NOISE_FACTOR = "noise_factor"
"""Name of the gene by which an agent's exploration noise is multiplied."""


@dataclass(frozen=True)
class Champion:
    """The agent with the best score so far.

    Attributes:
        weights: float32 `[parameters]`, as validated.
        validation: fitness in the validation episodes.
        score: see `EvaluationConfig.champion_validation_share`.
        generation, agent: the generation that found it, and its index there.
        task_state: the task's state in that generation (`Task.state`).
    """

    weights: Tensor
    validation: float
    score: float
    generation: int
    agent: int
    task_state: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodState:
    """State of a method besides the agents: numbers, which follow from the history of a run, and tensors."""

    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationResult:
    """A generation after evaluation and learning, from which a method breeds the next.

    Attributes:
        population: the agents after learning; not changed.
        fitness: fitness of their weights before learning, float64 `[agents]`.
        learned: whether any agent has learned.
        champion: the best agent so far.
        state: the method's state in this generation.
    """

    generation: int
    population: Population
    fitness: NDArray[np.float64]
    learned: bool
    champion: Champion
    state: MethodState

    @property
    def ranking(self) -> list[int]:
        """Agents by falling fitness, equal ones by index."""
        return sorted(range(self.population.size), key=lambda agent: (-self.fitness[agent], agent))


@dataclass(frozen=True)
class NextPopulation:
    """The next generation; `facts` are metrics of the method for the record of this one."""

    population: Population
    lineages: tuple[Lineage, ...]
    state: MethodState
    facts: Mapping[str, float]


M = TypeVar("M", bound=EvolutionConfig)


def method_settings(config: Config, kind: type[M]) -> M:
    """Return the section `evolution`; raise `TypeError` if it is of another method."""
    if not isinstance(config.evolution, kind):
        raise TypeError(f"evolution.method {config.evolution.method} has no {kind.__name__}.")
    return config.evolution


class NewAgents(Protocol):
    """The type of `Learner.new_agents`."""

    def __call__(self, weights: Tensor, teacher: Population | None = None) -> Population: ...


class PopulationMethod(Protocol):
    """Decides which agents the next generation has, which of them learn, and which state they inherit.

    `critic` is the number of weights of the critic, the first of an agent; the rest are its actor's.
    """

    def __init__(self, config: Config, critic: int, new_agents: NewAgents) -> None: ...

    @staticmethod
    def learning(config: Config) -> slice:
        """Return the agents that learn, a consecutive part of the population; by default all.

        Raises:
            InputError: the configuration asks for more than can learn.
        """
        return slice(0, config.population.size)

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """Bounds of the values of the method's tensors, in its state or of each agent, by name."""
        return {}

    def begin(self, weights: Tensor) -> tuple[Population, MethodState]:
        """Return the first generation and the method's state; the method may overwrite the initial weights."""

    def numbers(self, history: Sequence[GenerationRecord]) -> Mapping[str, Number]:  # noqa: ARG002
        """Return `MethodState.numbers` after the generations of a history."""
        return {}

    def breed(self, result: GenerationResult) -> NextPopulation: ...


def mean_of_lowest(rewards: NDArray[np.float64], lowest: int) -> NDArray[np.float64]:
    """Return the mean of the `lowest` smallest rewards of each agent: float64 `[agents, slices]` -> `[agents]`."""
    means: NDArray[np.float64] = np.sort(rewards, axis=1)[:, :lowest].mean(axis=1)
    return means


def spread_starts(starts: range, slices: int) -> NDArray[np.int64]:
    """Return the first days of `slices` episodes, spread evenly over `starts`: int64 `[slices]`."""
    return np.linspace(starts[0], starts[-1], slices).round().astype(np.int64)


def standard_errors(rewards: NDArray[np.float64], starts: NDArray[np.int64], episode_steps: int) -> NDArray[np.float64]:
    """Standard error of the mean reward of each agent over episodes that may overlap.

    If the rewards of single days are independent and alike, two episodes of T days whose starts differ by d correlate
    by r = max(0, 1 - d / T). With R the mean of r over all pairs of episodes, an episode with itself included, and v
    the variance of an episode, the mean has the variance v R, and the mean squared deviation from the mean the
    expectation v (1 - R): the squared error is the one times R / (1 - R). Without overlap that is the usual error.

    Args:
        rewards: float64 `[agents, slices]`.
        starts: first step of each episode, int64 `[slices]`.
        episode_steps: T.

    Returns:
        float64 `[agents]`; 0 if all episodes are the same one, from which no error can be estimated.
    """
    correlations = np.clip(1.0 - np.abs(starts[:, None] - starts) / episode_steps, 0.0, None)
    shared = float(correlations.mean())
    if (starts == starts[0]).all():
        return np.zeros(len(rewards))
    errors: NDArray[np.float64] = np.sqrt(rewards.var(axis=1) * shared / (1.0 - shared))
    return errors
