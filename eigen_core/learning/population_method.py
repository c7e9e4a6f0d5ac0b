"""Interface of population methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import GenerationRecord, Lineage
from eigen_core.config import Config, EvolutionConfig
from eigen_core.learning.champion import Champion
from eigen_core.networks.population import Population

Number = float | int | None
NOISE_FACTOR = "noise_factor"
"""Name of the gene by which an agent's exploration noise is multiplied."""


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
