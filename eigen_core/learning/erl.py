"""Evolutionary reinforcement learning: some agents evolve, others learn by gradients.

Khadka & Tumer 2018 (arXiv:1805.07917), algorithm 1: the population does not learn by gradients. The learning agent
learns from its episodes, and its weights are copied into the population every few generations. Unlike there, the agents
that evolve explore as those that learn do, and mutation adds noise of an absolute size.
"""

from dataclasses import replace

import torch

from eigen_core.common.errors import InputError
from eigen_core.common.records import Lineage
from eigen_core.config import Config, ErlConfig
from eigen_core.learning.genetic import GeneticMethod
from eigen_core.learning.method import GenerationResult, NewAgents, NextPopulation, method_settings
from eigen_core.networks.population import Population


class ErlMethod(GeneticMethod):
    """Implements `PopulationMethod`: the genetic algorithm over the first agents; the last ones learn."""

    def __init__(self, config: Config, critic: int, new_agents: NewAgents) -> None:
        super().__init__(config, critic, new_agents)
        self._evolving = slice(0, self.learning(config).start)
        self._sync_generations = method_settings(config, ErlConfig).sync_generations

    @staticmethod
    def learning(config: Config) -> slice:
        size, wanted = config.population.size, method_settings(config, ErlConfig).learning_agents
        learning = 1 if wanted is None else wanted
        if not 1 <= learning < size:
            raise InputError(
                f"evolution.learning_agents {learning} does not fit population.size {size}: method erl needs at least "
                "one agent that learns and one that evolves."
            )
        return slice(size - learning, size)

    def breed(self, result: GenerationResult) -> NextPopulation:
        """Breed from the agents that evolve, and keep the agents that learn.

        Every `evolution.sync_generations` generations the fittest learning agent replaces the agent that was bred last:
        not an elite, unless all are elites, and then the weakest.
        """
        first, old = self._evolving.stop, result.population
        evolving = Population(old.weights[:first], {name: tensor[:first] for name, tensor in old.state.items()})
        bred = super().breed(replace(result, population=evolving, fitness=result.fitness[:first]))
        kept = old.tensors()
        tensors = {name: torch.cat([tensor, kept[name][first:]]) for name, tensor in bred.population.tensors().items()}
        agents = range(first, old.size)
        lineages = [*bred.lineages, *(Lineage(agent, "learner", (agent,)) for agent in agents)]
        if result.generation % self._sync_generations == 0:
            replaced, learner = first - 1, min(agents, key=result.ranking.index)
            for tensor in tensors.values():
                tensor[replaced] = tensor[learner]
            lineages[replaced] = Lineage(replaced, "copy", (learner,))
        population = Population(tensors.pop("weights"), tensors)
        return replace(bred, population=population, lineages=tuple(lineages))
