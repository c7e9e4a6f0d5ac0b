"""The cross-entropy method: how the distribution moves, who learns, whose critic is inherited."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from science_cases import small_config

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.learning.cem import CemMethod, shares
from eigen_core.learning.method import Champion, GenerationResult, MethodState, NextPopulation
from eigen_core.networks.population import Population

CRITIC, ACTOR = 3, 8


def new_agents(weights: torch.Tensor, teacher: Population | None = None) -> Population:
    moment = torch.zeros_like(weights)
    if teacher is not None:
        moment[:, :CRITIC] = teacher.state["moment"][:, :CRITIC]
    return Population(weights, {"moment": moment})


def method_of(config: Config) -> CemMethod:
    return CemMethod(config, CRITIC, new_agents)


def begun(config: Config) -> tuple[CemMethod, Population, MethodState]:
    generator = keyed_generator(1, "weights")
    size = config.population.size
    weights = torch.tensor(generator.standard_normal((size, CRITIC + ACTOR)), dtype=torch.float32)
    method = method_of(config)
    return method, *method.begin(weights)


def ended(
    population: Population, fitness: np.ndarray, state: MethodState, generation: int = 1, learned: bool = True
) -> GenerationResult:
    champion = Champion(population.weights[0], 0.0, 0.0, 1, 0)
    return GenerationResult(generation, population, fitness, learned, champion, state)


def taught(method: CemMethod, population: Population) -> Population:
    after = population.clone()
    agents = range(population.size)[method.learning(method._config)]
    after.weights[agents] += 1.0 + torch.arange(len(agents))[:, None]
    after.state["moment"][agents] += 1.0
    return after


def next_of(
    method: CemMethod, population: Population, state: MethodState, fitness: list[float]
) -> tuple[GenerationResult, NextPopulation]:
    end = ended(taught(method, population), np.array(fitness), state)
    return end, method.breed(end)


def test_the_first_generation_is_drawn_around_one_actor_with_one_critic() -> None:
    config = small_config(population={"size": 4_000}, evolution={"method": "cem", "distribution_variance": 0.04})
    _, population, state = begun(config)
    assert (population.weights[:, :CRITIC] == population.weights[0, :CRITIC]).all()
    assert torch.equal(population.weights[0, CRITIC:], state.tensors["mean"])
    actors = population.weights[1:, CRITIC:]
    assert torch.allclose(actors.mean(0), state.tensors["mean"], atol=0.02)
    assert torch.allclose(actors.std(0), torch.full((ACTOR,), 0.2), rtol=0.1)


def test_agents_are_drawn_in_pairs_on_opposite_sides_of_the_mean() -> None:
    config = small_config(population={"size": 7}, evolution={"method": "cem", "learning_agents": 2})
    method, population, state = begun(config)
    _, bred = next_of(method, population, state, [float(agent) for agent in range(7)])
    for agents, mean, pairs in (
        (population, state.tensors["mean"], ((1, 2), (3, 4), (5, 6))),
        (bred.population, bred.state.tensors["mean"], ((3, 4), (5, 6))),
    ):
        moved = agents.weights[:, CRITIC:] - mean
        assert not moved[0].any()
        for one, other in pairs:
            assert moved[one].abs().min() > 0.0
            assert torch.allclose(moved[one], -moved[other], atol=1e-6)


@pytest.mark.parametrize("size", [4, 5, 6])
def test_the_fittest_move_the_distribution_by_their_weights_before_learning(size: int) -> None:
    """By hand, in double precision."""
    config = small_config(population={"size": size}, evolution={"method": "cem"})
    method, population, state = begun(config)
    fitness = [99.0, *(float((7 * agent) % size) for agent in range(1, size))]
    _, bred = next_of(method, population, state, fitness)
    old = state.tensors["mean"].double()
    # The mean is played to be seen, and moves nothing.
    best = sorted(range(1, size), key=lambda agent: -fitness[agent])[: round((size - 1) / 2)]
    raw = [math.log((1 + len(best)) / (1 + rank)) for rank in range(len(best))]
    mean, variance = torch.zeros(ACTOR).double(), torch.zeros(ACTOR).double()
    for agent, share in zip(best, raw, strict=True):
        actor = population.weights[agent, CRITIC:].double()
        mean += share / sum(raw) * actor
        variance += share / sum(raw) / len(best) * (actor - old) ** 2
    variance += 1e-5 + (1e-3 - 1e-5) * 0.95
    assert torch.allclose(bred.state.tensors["mean"].double(), mean, atol=1e-6)
    assert torch.allclose(bred.state.tensors["variance"].double(), variance, atol=1e-6)
    assert bred.facts["distribution_std"] == pytest.approx(float(variance.mean().sqrt()), rel=1e-5)


def test_who_has_learned_is_evaluated_once_more_and_its_critic_lives_on() -> None:
    config = small_config(population={"size": 6}, evolution={"method": "cem"})
    method, population, state = begun(config)
    assert method.learning(config) == slice(4, 6)
    end, bred = next_of(method, population, state, [9.0, 8.0, 7.0, 3.0, 1.0, 2.0])
    assert torch.equal(bred.population.weights[1:3], end.population.weights[4:])
    for agent in (0, 3, 4, 5):
        assert torch.equal(bred.population.weights[agent, :CRITIC], end.population.weights[5, :CRITIC])
        assert torch.equal(bred.population.state["moment"][agent, :CRITIC], end.population.state["moment"][5, :CRITIC])
    assert not bred.population.state["moment"][:, CRITIC:].any()
    assert torch.equal(bred.population.weights[0, CRITIC:], bred.state.tensors["mean"])
    assert [(one.agent, one.origin, one.parents) for one in bred.lineages] == [
        (0, "mean", (1,)),
        (1, "learner", (4,)),
        (2, "learner", (5,)),
        (3, "sample", (1,)),
        (4, "sample", (1,)),
        (5, "sample", (1,)),
    ]
    untaught = method.breed(replace(end, population=population, learned=False))
    assert {one.origin for one in untaught.lineages} == {"mean", "sample"}
    assert (untaught.population.weights[:, :CRITIC] == population.weights[0, :CRITIC]).all()


def test_where_half_of_the_agents_learn_the_weakest_of_them_makes_way_for_the_mean() -> None:
    config = small_config(population={"size": 4}, evolution={"method": "cem", "learning_agents": 2})
    method, population, state = begun(config)
    end, bred = next_of(method, population, state, [0.0, 1.0, 2.0, 3.0])
    assert [one.origin for one in bred.lineages] == ["mean", "learner", "sample", "sample"]
    assert torch.equal(bred.population.weights[1], end.population.weights[3])


def test_noise_falls_to_its_limit_and_shares_to_one() -> None:
    config = small_config(evolution={"method": "cem", "learning_agents": 0})
    method, population, state = begun(config)
    same = replace(population, weights=state.tensors["mean"].new_zeros(5, CRITIC + ACTOR))
    same.weights[:, CRITIC:] = state.tensors["mean"]
    later = method.breed(ended(same, np.arange(5.0), state, generation=1_000, learned=False))
    assert torch.allclose(later.state.tensors["variance"], torch.full((ACTOR,), 1e-5))
    for parents in range(1, 9):
        assert sum(shares(parents)) == pytest.approx(1.0)
        assert shares(parents) == sorted(shares(parents), reverse=True)


def test_it_climbs_a_synthetic_fitness() -> None:
    settings = {"method": "cem", "learning_agents": 0, "distribution_variance": 0.1, "elite_share": 0.25}
    config = small_config(population={"size": 40}, evolution=settings)
    method, population, state = begun(config)
    distances = []
    for generation in range(1, 31):
        fitness = -((population.weights[:, CRITIC:] - 2.0) ** 2).sum(1).double().numpy()
        distances.append(-fitness.mean())
        bred = method.breed(ended(population, fitness, state, generation, learned=False))
        population, state = bred.population, bred.state
    assert distances[-1] < 0.1 * distances[0]
