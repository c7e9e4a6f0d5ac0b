"""Population based training: agents inherit and perturb hyperparameters while all of them learn.

Jaderberg et al. 2017 (arXiv:1711.09846), algorithm 1 and section 4.1.1: truncation selection (the weakest share copies
weights, learning state and hyperparameters of the fittest share), and perturbation of the latter. Fitness is that of
the weights before a generation's learning; copies get the weights after it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Lineage
from eigen_core.config import Config, PbtConfig
from eigen_core.learning.population_method import (
    NOISE_FACTOR,
    GenerationResult,
    MethodState,
    NewAgents,
    NextPopulation,
    PopulationMethod,
    method_settings,
)
from eigen_core.networks.layout import Gene
from eigen_core.networks.population import Population

HYPERPARAMETERS = ("actor_learning_rate", "critic_learning_rate", "gamma", "reward_scale", NOISE_FACTOR)
"""Settings of the learner of which each agent has its own value, and a factor on its exploration noise."""
_LONGEST_HORIZON = 0.9999
"""Highest value that perturbation gives to gamma."""


def perturbed(name: str, value: float, factor: float) -> float:
    """Return a hyperparameter times a factor; the factor of gamma applies to 1 - gamma, which keeps gamma below 1."""
    return value * factor if name != "gamma" else min(max(1.0 - (1.0 - value) * factor, 0.0), _LONGEST_HORIZON)


def _values_of(population: Population) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in population.hyperparameters.items()}


class PbtMethod(PopulationMethod):
    """Implements `PopulationMethod`; the values of `HYPERPARAMETERS` are in `Population.hyperparameters`."""

    def __init__(self, config: Config, critic: int, new_agents: NewAgents, genes: Sequence[Gene] = ()) -> None:  # noqa: ARG002
        self._config = config
        self._evolution = method_settings(config, PbtConfig)
        self._new_agents = new_agents

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {
            Population.hyperparameter_key(name): (0.0, 1.0 if name == "gamma" else math.inf) for name in HYPERPARAMETERS
        }

    def begin(self, weights: Tensor) -> tuple[Population, MethodState]:
        """Return agents with `weights`; agent 0 has the configured hyperparameters, the others have perturbed ones."""
        population = self._new_agents(weights)
        configured = {name: getattr(self._config.learner, name, 1.0) for name in HYPERPARAMETERS}
        drawn = [configured, *(self._explored(configured, 0, agent) for agent in range(1, population.size))]
        tensors = {
            Population.hyperparameter_key(name): torch.tensor(
                [own[name] for own in drawn], dtype=torch.float32, device=weights.device
            )
            for name in HYPERPARAMETERS
        }
        return Population(population.weights, {**population.state, **tensors}), MethodState()

    def _explored(self, hyperparameters: Mapping[str, float], generation: int, agent: int) -> dict[str, float]:
        generator = keyed_generator(self._config.seed, generation, "evolve", agent, "genes")
        size = self._evolution.perturbation
        return {
            name: perturbed(name, value, 1.0 + size * generator.choice((-1, 1)))
            for name, value in hyperparameters.items()
        }

    def breed(self, result: GenerationResult) -> NextPopulation:
        """Every `evolution.sync_generations` generations, let the weakest copy the fittest; else keep all agents."""
        population = result.population
        parents = list(range(population.size))
        if result.generation % self._evolution.sync_generations == 0:
            population = population.clone()
            parents = self._copy_fittest(result, population)
        hyperparameters = _values_of(population)
        lineages = tuple(
            Lineage(
                agent,
                "elite" if agent == parent else "copy",
                (parent,),
                genes={name: values[agent] for name, values in hyperparameters.items()},
            )
            for agent, parent in enumerate(parents)
        )
        statistics = {f"median_{name}": float(np.median(values)) for name, values in hyperparameters.items()}
        return NextPopulation(population, lineages, result.state, statistics)

    def _copy_fittest(self, result: GenerationResult, population: Population) -> list[int]:
        """Overwrite the weakest agents with perturbed copies of the fittest; return the parent of every agent."""
        size = population.size
        share = min(max(1, round(size * self._evolution.exploit_share)), size // 2)
        generator = keyed_generator(self._config.seed, result.generation, "evolve", "population", "exploit")
        parents = list(range(size))
        hyperparameters = _values_of(population)
        for agent in result.ranking[-share:]:
            parents[agent] = result.ranking[int(generator.integers(share))]
            for tensor in population.tensors().values():
                tensor[agent] = tensor[parents[agent]]
            inherited = {name: values[parents[agent]] for name, values in hyperparameters.items()}
            for name, value in self._explored(inherited, result.generation, agent).items():
                population.hyperparameters[name][agent] = value
        return parents
