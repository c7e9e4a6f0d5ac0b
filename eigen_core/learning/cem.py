"""The cross-entropy method over actors, some of which learn by gradients: CEM-RL.

Pourchot & Sigaud 2019 (arXiv:1810.01222), section 4 and algorithm 1. In the paper, actors are drawn, half of them
learn, all are evaluated, and the fittest half moves the distribution. Here, learning follows evaluation: an agent is
evaluated as it was drawn; if it then learns, it is evaluated once more in the next generation, and then makes way. So
each generation evaluates as many agents that have learned, and as many newly drawn ones, as in the paper; agents that
have learned were drawn from the distribution of the generation before. Fitness always belongs to weights that played.

All drawn agents have one critic, as in the paper. With its optimizer and target it lives on through all generations;
actors and their optimizers begin anew. In the paper, actors train it one after the other. Here, each trains a copy, so
that no agent depends on the others in its group, and the mean of the copies, their targets and their moments goes on
(local SGD: Stich 2019, arXiv:1805.09767; McMahan et al. 2017, arXiv:1602.05629). As in the authors' code
(github.com/apourchot/CEM-RL), agents are drawn in pairs on opposite sides of the mean. The mean itself is played and
can become the champion; its fitness does not move the distribution. The paper's importance mixing is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import GenerationRecord, Lineage
from eigen_core.config import CemConfig, Config
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

_MEAN = 0
"""Index of the agent that is the mean of the distribution."""


def shares(parents: int) -> list[float]:
    """Weight of each parent in the new mean, the fittest first: log((1 + parents) / rank), scaled to a sum of 1."""
    logarithms = [math.log((1 + parents) / rank) for rank in range(1, parents + 1)]
    return [logarithm / sum(logarithms) for logarithm in logarithms]


def _mean_agent(population: Population, agents: list[int]) -> Population:
    """Return one agent, each of whose tensors is the mean of those of `agents`, rounded down if of integers."""
    means = {}
    for name, held in population.tensors().items():
        # One after the other: the order of a reduction can depend on the machine.
        total = reduce(torch.add, [held[agent : agent + 1] for agent in agents])
        means[name] = total.div(len(agents), rounding_mode=None if held.is_floating_point() else "floor")
    return Population(means.pop("weights"), means)


class CemMethod(PopulationMethod):
    """Implements `PopulationMethod`. `MethodState.tensors`: `mean` and `variance`, float32 `[actor weights]` each.

    Agent 0 is the mean. Agents that learned in the generation before come next, then new ones, of which the last learn.
    """

    def __init__(self, config: Config, critic: int, new_agents: NewAgents, genes: Sequence[Gene] = ()) -> None:  # noqa: ARG002
        self._config = config
        self._evolution = method_settings(config, CemConfig)
        self._new_agents = new_agents
        self._actor = slice(critic, None)
        self._learning = range(config.population.size)[self.learning(config)]

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {"variance": (0.0, math.inf)}

    @staticmethod
    def learning(config: Config) -> slice:
        size, wanted = config.population.size, method_settings(config, CemConfig).learning_agents
        if wanted is not None and wanted > size // 2:
            raise InputError(
                f"evolution.learning_agents {wanted} is more than half of population.size {size}: method cem keeps "
                "each agent that learns for a second generation, so at most half can learn. Lower it."
            )
        return slice(size - ((size - 1) // 2 if wanted is None else wanted), size)

    def begin(self, weights: Tensor) -> tuple[Population, MethodState]:
        """Return agents with the critic of agent 0, whose actor becomes the mean; other actors are drawn around it."""
        mean = weights[0, self._actor].clone()
        state = MethodState(
            tensors={"mean": mean, "variance": torch.full_like(mean, self._evolution.distribution_variance)}
        )
        weights[:] = weights[0].clone()
        self._draw_into(weights, range(1, len(weights)), 1, state)
        return self._new_agents(weights), state

    def _draw_into(self, weights: Tensor, agents: range, generation: int, state: MethodState) -> None:
        for agent in agents:
            weights[agent, self._actor] = self._sample_actor(generation, agent, state)

    def _sample_actor(self, generation: int, agent: int, state: MethodState) -> Tensor:
        """Return the actor with which a drawn agent begins a generation; `state` is the method's state at that time.

        Agents are paired from the last one backwards; the two of a pair lie on opposite sides of the mean.
        """
        mean, variance = state.tensors["mean"], state.tensors["variance"]
        last = self._config.population.size - 1
        pair, mirrored = divmod(last - agent, 2)
        generator = keyed_generator(self._config.seed, generation, "evolve", last - 2 * pair, "sample")
        noise = on_device(generator.standard_normal(len(mean), dtype=np.float32), mean.device)
        noise.mul_(variance.sqrt())
        return mean - noise if mirrored else mean + noise

    def numbers(self, history: Sequence[GenerationRecord]) -> Mapping[str, Number]:
        """Return no numbers; `InputError` if a version of Eigen with other rules made the newest generation."""
        if all(lineage.origin != "mean" for lineage in history[-1].descent):
            raise InputError(
                f"Generation {history[-1].generation} was made by an earlier version's rules of evolution.method cem, "
                "which let the variance grow without bound: this version cannot continue it. Train a new run; "
                "`eigen backtest`, `eigen report` and `eigen export` still read this one."
            )
        return {}

    def breed(self, result: GenerationResult) -> NextPopulation:
        """Move the distribution; the next agents are its mean, those that have learned, and new ones drawn from it.

        If half of the agents learn, there is no place for the weakest of those that have learned: the mean takes it.
        """
        size = result.population.size
        candidates = [agent for agent in result.ranking if agent != _MEAN]
        parents = candidates[: max(1, round(len(candidates) * self._evolution.elite_share))]
        state = self._next_distribution(result, parents)
        learned = [agent for agent in candidates if result.learned and agent in self._learning]
        kept = sorted(learned[: size - 1 - len(self._learning)])
        taught = learned[:1] if self._evolution.shared_critic == "fittest" else learned
        teacher = _mean_agent(result.population, taught or [_MEAN])
        drawn = range(1 + len(kept), size)
        weights = torch.cat([teacher.weights, result.population.weights[kept], teacher.weights.expand(len(drawn), -1)])
        weights[_MEAN, self._actor] = state.tensors["mean"]
        self._draw_into(weights, drawn, result.generation + 1, state)
        bred = self._new_agents(weights, teacher)
        lineages = (
            Lineage(_MEAN, "mean", (parents[0],)),
            *(Lineage(agent, "learner", (parent,)) for agent, parent in enumerate(kept, 1)),
            *(Lineage(agent, "sample", (parents[0],)) for agent in drawn),
        )
        variance = state.tensors["variance"].cpu().numpy()
        statistics = {"distribution_std": float(np.sqrt(variance.mean(dtype=np.float64)))}
        return NextPopulation(bred, lineages, state, statistics)

    def _next_distribution(self, result: GenerationResult, parents: Sequence[int]) -> MethodState:
        """Return the distribution after a generation (equations 1 and 2 of the paper).

        The variance is divided by the number of parents, as in the authors' code but not in the paper: otherwise the
        distance by which learning moves agents would add to it, and it would grow without bound.
        """
        old = result.state.tensors["mean"]
        mean, variance = torch.zeros_like(old), torch.zeros_like(old)
        for agent, share in zip(parents, shares(len(parents)), strict=True):
            actor = result.population.weights[agent, self._actor]
            if agent in self._learning:
                # The actor that was evaluated, before it learned.
                actor = self._sample_actor(result.generation, agent, result.state)
            mean.add_(actor * share)
            variance.add_((actor - old).square_().mul_(share / len(parents)))
        config = self._evolution
        limit, decay = config.distribution_variance_limit, config.distribution_variance_decay**result.generation
        variance.add_(limit + (config.distribution_variance - limit) * decay)
        return replace(result.state, tensors={"mean": mean, "variance": variance})
