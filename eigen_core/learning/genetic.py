"""The genetic algorithm, over all agents or beside agents that learn by gradients (ERL).

Elites survive, parents win tournaments, offspring blend two parents, and mutation grows while there is no progress.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import GenerationRecord, Lineage, Record
from eigen_core.config import BreedingConfig, Config, ErlConfig, GeneticConfig
from eigen_core.learning.population_method import (
    GenerationResult,
    MethodState,
    NewAgents,
    NextPopulation,
    Number,
    PopulationMethod,
    method_settings,
)
from eigen_core.machine.gpu import on_device
from eigen_core.networks.layout import Gene
from eigen_core.networks.population import Population


class MutationState(Record):
    """Strength of mutation, and generations without progress (`after` says what progress is).

    Attributes:
        rate: share of a mutant's weights that are changed.
        std: standard deviation of the change of a weight.
        reference: the score of the last generation with progress, or else of the first one; None before that.
        generations_without_progress: generations since the reference was set, or since mutation last grew.
    """

    rate: float
    std: float
    reference: float | None = None
    generations_without_progress: int = 0

    @classmethod
    def initial(cls, config: BreedingConfig) -> "MutationState":
        return cls(rate=config.mutation_rate, std=config.mutation_std)

    def after(self, score: float, config: BreedingConfig) -> "MutationState":
        """Return the state after a generation, given its score (`GeneticMethod._score`).

        Progress is an improvement on the reference by at least the share `plateau_improvement` of its size; it resets
        `rate` and `std` to the configured values. After `plateau_generations` generations without progress both grow by
        the factor `mutation_growth`, up to their limits, and the count restarts.
        """
        if self.reference is None:
            return self.model_copy(update={"reference": score})
        if score - self.reference >= config.plateau_improvement * abs(self.reference) and score > self.reference:
            return MutationState.initial(config).model_copy(update={"reference": score})
        waited = self.generations_without_progress + 1
        if waited < config.plateau_generations:
            return self.model_copy(update={"generations_without_progress": waited})
        return MutationState(
            rate=min(self.rate * config.mutation_growth, config.mutation_rate_limit),
            std=min(self.std * config.mutation_growth, config.mutation_std_limit),
            reference=self.reference,
        )


class GeneticMethod(PopulationMethod):
    """Implements `PopulationMethod`: the genetic algorithm over all agents, which all learn by gradients too.

    If `evolution.enabled` is false, nothing is bred: the next generation has the same agents.
    """

    def __init__(self, config: Config, critic: int, new_agents: NewAgents, genes: Sequence[Gene] = ()) -> None:  # noqa: ARG002
        self._config = config
        self._evolution = method_settings(config, BreedingConfig)
        self._genes = genes if self._evolution.evolves == "genes" else ()
        self._new_agents = new_agents
        self._evolving = slice(0, config.population.size)

    def begin(self, weights: Tensor) -> tuple[Population, MethodState]:
        return self._new_agents(weights), MethodState(MutationState.initial(self._evolution).model_dump())

    def numbers(self, history: Sequence[GenerationRecord]) -> Mapping[str, Number]:
        mutation = MutationState.initial(self._evolution)
        for record in history:
            fitness = np.array(record.fitness[self._evolving])
            score = self._score(record.champion_score, record.champion_generation, fitness)
            mutation = mutation.after(score, self._evolution)
        return mutation.model_dump()

    def _score(self, champion_score: float, champion_generation: int, fitness: NDArray[np.float64]) -> float:
        """Return the score by which progress is measured: the champion's, or the agents' median fitness.

        An agent of the first generation that does nothing can be the champion for long, while others still learn to
        trade. So the median counts as long as the champion is of the first generation, unless
        `evolution.first_champion_plateau` is true.
        """
        if champion_generation > 1 or self._evolution.first_champion_plateau:
            return champion_score
        return float(np.median(fitness))

    def breed(self, result: GenerationResult) -> NextPopulation:
        """Breed from all agents: the next generation has elites by falling fitness, then offspring, then mutants.

        Elites keep their learning state; all others start with a fresh one, unless they have a parent's weights and
        other genes (`evolution.evolves`). Parents win tournaments over the whole population. Offspring blend two
        parents, alpha w1 + (1 - alpha) w2, with alpha from `blend_low` to `blend_high`.
        With `evolution.reinject_champion` the weights of `Champion` replace the weakest elite, unless this generation
        found the champion and it is one of the elites.
        """
        score = self._score(result.champion.score, result.champion.generation, result.fitness)
        mutation = MutationState.model_validate(result.state.numbers).after(score, self._evolution)
        if isinstance(self._evolution, GeneticConfig) and not self._evolution.enabled:
            population = result.population
            lineages = [Lineage(agent=agent, origin="elite", parents=(agent,)) for agent in range(population.size)]
        else:
            population, lineages = self._next_population(result, mutation)
        statistics = {"mutation_rate": mutation.rate, "mutation_std": mutation.std}
        return NextPopulation(population, tuple(lineages), MethodState(mutation.model_dump()), statistics)

    def _next_population(self, result: GenerationResult, mutation: MutationState) -> tuple[Population, list[Lineage]]:
        config, champion, old = self._evolution, result.champion, result.population.weights
        generator = keyed_generator(self._config.seed, result.generation, "evolve", "population", "breeding")

        def win_tournament() -> int:
            drawn = generator.integers(0, len(old), config.tournament_size)
            return int(min(drawn, key=lambda agent: (-result.fitness[agent], agent)))

        size, ranking = result.population.size, result.ranking
        elites = ranking[: max(1, round(size * config.elite_share))]
        first_mutant = len(elites) + min(round(size * config.offspring_share), size - len(elites))
        lineages = [Lineage(agent=index, origin="elite", parents=(agent,)) for index, agent in enumerate(elites)]
        weights, kept = old[ranking], dict(enumerate(elites))
        columns = [gene.column for gene in self._genes] or slice(None)
        changes = np.empty((size - first_mutant, len(self._genes) or weights.shape[1]), dtype=np.float32)
        if config.reinject_champion and not (champion.generation == result.generation and champion.agent in elites):
            weights[len(elites) - 1] = champion.weights
            lineages[-1] = Lineage(agent=len(elites) - 1, origin="champion", parents=(champion.agent,))
            kept.pop(len(elites) - 1)
        for index in range(len(elites), size):
            first = win_tournament()
            weights[index] = old[first]
            if self._genes:
                kept[index] = first
            if index < first_mutant:
                second = win_tournament()
                blend = float(generator.uniform(config.blend_low, config.blend_high))
                weights[index, columns] = old[first, columns] * blend + old[second, columns] * (1.0 - blend)
                lineages.append(Lineage(agent=index, origin="offspring", parents=(first, second), blend=blend))
            else:
                changed = True if self._genes else generator.random(changes.shape[1]) < mutation.rate
                changes[index - first_mutant] = generator.standard_normal(changes.shape[1]) * mutation.std * changed
                lineages.append(Lineage(agent=index, origin="mutant", parents=(first,)))
        self._mutate(weights[first_mutant:], on_device(changes, weights.device))
        population = self._new_agents(weights)
        for name, tensor in population.state.items():
            tensor[list(kept)] = result.population.state[name][list(kept.values())]
        return population, [self._with_genes(lineage, weights) for lineage in lineages] if self._genes else lineages

    def _mutate(self, mutants: Tensor, changes: Tensor) -> None:
        """Add the changes to the mutants' rows of weights, in place; those of genes are shares of their ranges."""
        if not self._genes:
            mutants += changes
            return
        for gene, change in zip(self._genes, changes.unbind(1), strict=True):
            mutants[:, gene.column].add_(change * (gene.high - gene.low)).clamp_(gene.low, gene.high)

    def _with_genes(self, lineage: Lineage, weights: Tensor) -> Lineage:
        genes = {gene.name: float(weights[lineage.agent, gene.column]) for gene in self._genes}
        return replace(lineage, genes=genes)


class ErlMethod(GeneticMethod):
    """Implements `PopulationMethod`: the genetic algorithm over the first agents; the last ones learn by gradients.

    Evolutionary reinforcement learning: Khadka & Tumer 2018 (arXiv:1805.07917), algorithm 1. The replay holds episodes
    of all agents. Every `sync_generations` generations, the fittest learning agent is copied over one that evolves.
    Unlike in the paper, the agents that evolve play with exploration noise too, and the size of a mutation does not
    depend on the size of the weight.
    """

    def __init__(self, config: Config, critic: int, new_agents: NewAgents, genes: Sequence[Gene] = ()) -> None:
        super().__init__(config, critic, new_agents, genes)
        self._evolving = slice(0, self.learning(config).start)
        self._sync_generations = method_settings(config, ErlConfig).sync_generations

    @staticmethod
    def learning(config: Config) -> slice:
        size, wanted = config.population.size, method_settings(config, ErlConfig).learning_agents
        learning = 1 if wanted is None else wanted
        if not 1 <= learning < size:
            raise InputError(
                f"evolution.learning_agents {learning} does not fit population.size {size}: method erl needs at least "
                "one agent that learns and one that evolves: set it to at least 1, and below population.size."
            )
        return slice(size - learning, size)

    def breed(self, result: GenerationResult) -> NextPopulation:
        """Breed from the agents that evolve, and keep the agents that learn.

        Every `evolution.sync_generations` generations the fittest learning agent replaces the last of the bred agents:
        a mutant or offspring if there is one, else the weakest elite.
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
