"""Interface of population methods, which decide from which agents, and how, the next generation is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import GenerationRecord, Lineage
from eigen_core.config import Config, EvolutionConfig
from eigen_core.learning.fitness import Champion
from eigen_core.networks.layout import Gene
from eigen_core.networks.population import Population

Number = float | int | None
NOISE_FACTOR = "noise_factor"
"""Name of the hyperparameter (`Population.hyperparameters`) by which an agent's exploration noise is multiplied."""


@dataclass(frozen=True)
class MethodState:
    """State of a population method besides the agents: tensors, and numbers (see `PopulationMethod.numbers`)."""

    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationResult:
    """A generation after evaluation and learning, from which a method breeds the next.

    Attributes:
        population: the agents after learning; methods do not change it.
        fitness: fitness of the agents' weights before learning, float64 `[agents]`.
        learned: whether any agent has learned in this generation.
        champion: the agent with the best score of all generations so far.
        state: the method's state with which this generation began.
    """

    generation: int
    population: Population
    fitness: NDArray[np.float64]
    learned: bool
    champion: Champion
    state: MethodState

    @property
    def ranking(self) -> list[int]:
        """Indices of the agents by falling fitness, those of equal fitness by index."""
        return sorted(range(self.population.size), key=lambda agent: (-self.fitness[agent], agent))


@dataclass(frozen=True)
class NextPopulation:
    """The next generation; `statistics`: numbers of the method, by name, for the `GenerationRecord` of its parents."""

    population: Population
    lineages: tuple[Lineage, ...]
    state: MethodState
    statistics: Mapping[str, float]


M = TypeVar("M", bound=EvolutionConfig)


def method_settings(config: Config, kind: type[M]) -> M:
    """Return the configuration's section `evolution`; raise `TypeError` if it is not of the type `kind`."""
    if not isinstance(config.evolution, kind):
        raise TypeError(f"Settings of evolution.method {config.evolution.method} are not a {kind.__name__}.")
    return config.evolution


class NewAgents(Protocol):
    """A function that makes new agents with given weights: `Learner.new_agents`."""

    def __call__(self, weights: Tensor, teacher: Population | None = None) -> Population: ...


class PopulationMethod(Protocol):
    """Decides which agents the next generation has, which of them learn, and which state they inherit.

    `critic` is the number of critic weights, which come first in an agent's row of weights; the rest are its actor's.
    `genes` are those among these weights.
    """

    def __init__(self, config: Config, critic: int, new_agents: NewAgents, genes: Sequence[Gene] = ()) -> None: ...

    @staticmethod
    def learning(config: Config) -> slice:
        """Return which agents learn by gradients, as a slice of the population; by default all.

        Raises:
            InputError: `evolution.learning_agents` does not suit the method and `population.size`.
        """
        return slice(0, config.population.size)

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """Lowest and highest valid value of the method's tensors in `MethodState` and `Population.state`, by name."""
        return {}

    def begin(self, weights: Tensor) -> tuple[Population, MethodState]:
        """Return the first generation and the method's state, given the initial `weights`, which may be overwritten."""

    def numbers(self, history: Sequence[GenerationRecord]) -> Mapping[str, Number]:  # noqa: ARG002
        """Compute `MethodState.numbers` as they are after the generations in `history`, to resume a run."""
        return {}

    def breed(self, result: GenerationResult) -> NextPopulation: ...
