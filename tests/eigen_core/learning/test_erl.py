"""A population that evolves beside agents that learn."""

from typing import Any

import numpy as np
import torch
from science_cases import small_config
from training_cases import advance, small_state

from eigen_core.learning.erl import ErlMethod
from eigen_core.learning.method import Champion, GenerationResult, NextPopulation
from eigen_core.networks.population import Population


def new_agents(weights: torch.Tensor, teacher: Population | None = None) -> Population:  # noqa: ARG001
    return Population(weights, {"moment": torch.zeros_like(weights)})


def bred(generation: int, **evolution: Any) -> tuple[Population, NextPopulation]:
    config = small_config(population={"size": 6}, evolution={"method": "erl", "sync_generations": 3, **evolution})
    method = ErlMethod(config, 2, new_agents)
    population, state = method.begin(torch.arange(24.0).reshape(6, 4))
    population.state["moment"][4:] = 1.0
    champion = Champion(population.weights[0], 9.0, 9.0, generation, 0)
    end = GenerationResult(generation, population, np.array([5.0, 4.0, 3.0, 2.0, 9.0, 7.0]), True, champion, state)
    return population, method.breed(end)


def test_learners_stay_and_the_others_breed_among_themselves() -> None:
    population, after = bred(4, learning_agents=2)
    for name, tensor in after.population.tensors().items():
        assert torch.equal(tensor[4:], population.tensors()[name][4:])
    assert [one.agent for one in after.lineages] == list(range(6))
    assert [one.origin for one in after.lineages[4:]] == ["learner", "learner"]
    for one in after.lineages[:4]:
        assert one.origin in {"elite", "offspring", "mutant"}
        assert max(one.parents) < 4


def test_the_fittest_learner_is_copied_into_the_population_every_few_generations() -> None:
    population, after = bred(6, learning_agents=2)
    assert after.lineages[3].origin == "copy"
    assert after.lineages[3].parents == (4,)
    assert torch.equal(after.population.weights[3], population.weights[4])
    assert [one.origin for one in after.lineages].count("copy") == 1


def test_only_learners_learn_by_gradients() -> None:
    state = advance(small_state(evolution={"method": "erl", "sync_generations": 100}), 3)
    assert state.population.state["critic_steps"].tolist() == [0, 0, 0, 0, 9]
