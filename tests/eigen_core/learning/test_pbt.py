"""Methods whose agents learn beside evolution: PBT copies, ERL adds learners, CEM moves a distribution."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import learner_with, random_panel, small_config
from training_cases import advance, saved_of, small_state

from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import registry
from eigen_core.generation import restore, start_training
from eigen_core.learning.cem import CemMethod
from eigen_core.learning.fitness import Champion
from eigen_core.learning.genetic import ErlMethod
from eigen_core.learning.pbt import HYPERPARAMETERS, PbtMethod, perturbed
from eigen_core.learning.population_method import GenerationResult, MethodState, NextPopulation
from eigen_core.networks.population import Population
from eigen_core.reporting.tables import population_table

LEARNERS = list(registry.LEARNERS)
CRITIC, ACTOR = 3, 8


def new_agents(weights: torch.Tensor, teacher: Population | None = None) -> Population:
    moment = torch.zeros_like(weights)
    if teacher is not None:
        moment[:, :CRITIC] = teacher.state["moment"][:, :CRITIC]
    return Population(weights, {"moment": moment})


def ended(
    population: Population, fitness: np.ndarray, state: MethodState, generation: int = 1, learned: bool = True
) -> GenerationResult:
    champion = Champion(population.weights[0], 9.0, 9.0, generation, 0)
    return GenerationResult(generation, population, fitness, learned, champion, state)


def bred(generation: int, size: int = 10) -> tuple[GenerationResult, NextPopulation]:
    config = small_config(population={"size": size}, evolution={"method": "pbt", "sync_generations": 5})
    method = PbtMethod(config, 2, new_agents)
    population, state = method.begin(torch.arange(4.0 * size).reshape(size, 4))
    population.state["moment"][:] = population.weights + 100.0
    end = ended(population, np.arange(float(size))[::-1].copy(), state, generation)
    return end, method.breed(end)


def test_the_weakest_fifth_copies_the_fittest_and_perturbs_its_hyperparameters() -> None:
    end, after = bred(generation=10)
    assert [one.origin for one in after.lineages] == ["elite"] * 8 + ["copy"] * 2
    for one in after.lineages:
        (parent,) = one.parents
        for name in ("weights", "moment"):
            tensor, before = after.population.tensors()[name], end.population.tensors()[name]
            assert torch.equal(tensor[one.agent], before[parent])
        assert one.genes == {name: float(held[one.agent]) for name, held in after.population.hyperparameters.items()}
        if one.origin == "elite":
            assert parent == one.agent
            continue
        assert parent in {0, 1}
        for name, value in (one.genes or {}).items():
            inherited = float(end.population.hyperparameters[name][parent])
            ratio = (1 - value) / (1 - inherited) if name == "gamma" else value / inherited
            assert min(abs(ratio - 0.8), abs(ratio - 1.2)) < 1e-4


def test_between_two_copies_nothing_changes() -> None:
    end, after = bred(generation=9)
    assert after.population is end.population
    assert {one.origin for one in after.lineages} == {"elite"}
    assert after.statistics["median_gamma"] == pytest.approx(
        np.median(end.population.hyperparameters["gamma"].tolist())
    )


def test_hyperparameters_begin_around_the_configured_ones_and_gamma_stays_below_one() -> None:
    end, _ = bred(generation=1)
    own = end.population.hyperparameters
    assert own.keys() == set(HYPERPARAMETERS)
    assert float(own["gamma"][0]) == pytest.approx(0.99)
    assert len(set(own["reward_scale"].tolist())) == 3
    assert perturbed("gamma", 0.99, 1.2) == pytest.approx(0.988)
    assert perturbed("gamma", 0.99999, 0.1) < 1.0
    assert perturbed("gamma", 0.1, 1.9) == 0.0


def equal_hyperparameters(algorithm: str, **evolution: Any) -> str:
    """What a small run comes to; with hyperparameters, each agent's are the configured settings."""
    rates = {"actor_learning_rate": 0.25, "critic_learning_rate": 0.0625}
    learner = learner_with(algorithm, gamma=0.5, reward_scale=0.125, **rates)
    state = small_state(learner=learner, evolution=evolution)
    advance(state, 2)
    return tensors_sha256({"weights": state.population.weights})


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_equal_hyperparameters_give_the_bits_of_settings(algorithm: str) -> None:
    pbt = {"method": "pbt", "perturbation": 0.0, "sync_generations": 100}
    assert equal_hyperparameters(algorithm, **pbt) == equal_hyperparameters(algorithm, enabled=False)


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_each_agent_learns_by_its_own_hyperparameters(algorithm: str) -> None:
    """Without a learning rate, an agent stays as it is, but for what it observes of its own expectations."""
    state = small_state(learner={"algorithm": algorithm}, evolution={"method": "pbt", "sync_generations": 100})
    for name in ("actor_learning_rate", "critic_learning_rate"):
        state.population.hyperparameters[name][2] = 0.0
    stepped = slice(0, state.task.critic_layout.size + state.task.actor_layout.learned)
    before = state.population.weights[:, stepped].clone()
    advance(state, 1)
    moved = (state.population.weights[:, stepped] != before).any(1)
    assert moved.tolist() == [True, True, False, True, True]


def test_hyperparameters_are_in_the_table_and_impossible_ones_are_refused() -> None:
    sections = {"method": "pbt", "sync_generations": 1}
    state = advance(small_state(evolution=sections), 2)
    for row in population_table(state.history):
        agent = row["agent"]
        assert isinstance(agent, int)
        assert row["gamma"] == pytest.approx((state.history[0].descent[agent].genes or {})["gamma"], rel=1e-2)
    saved = saved_of(state)
    saved.tensors["population"]["gene_gamma"][1] = 1.5
    config = small_config(evolution=sections)
    with pytest.raises(UnfitSnapshotError, match=r"holds gene_gamma from .* to 1\.5"):
        restore(start_training(config, random_panel(config)), saved)


@pytest.mark.parametrize(("generation", "synced"), [(4, False), (6, True)])
def test_learners_stay_and_the_others_breed_among_themselves(generation: int, synced: bool) -> None:
    """Every few generations the fittest learner is copied into the population too."""
    evolution = {"method": "erl", "sync_generations": 3, "learning_agents": 2}
    method = ErlMethod(small_config(population={"size": 6}, evolution=evolution), 2, new_agents)
    population, state = method.begin(torch.arange(24.0).reshape(6, 4))
    population.state["moment"][4:] = 1.0
    after = method.breed(ended(population, np.array([5.0, 4.0, 3.0, 2.0, 9.0, 7.0]), state, generation))
    for name, tensor in after.population.tensors().items():
        assert torch.equal(tensor[4:], population.tensors()[name][4:])
        assert not synced or torch.equal(tensor[3], population.tensors()[name][4])
    assert [one.agent for one in after.lineages] == list(range(6))
    assert [one.origin for one in after.lineages[4:]] == ["learner", "learner"]
    assert [(one.agent, one.parents) for one in after.lineages if one.origin == "copy"] == [(3, (4,))] * synced
    for one in after.lineages[: 3 if synced else 4]:
        assert one.origin in {"elite", "offspring", "mutant"}
        assert max(one.parents) < 4


def test_only_learners_learn_by_gradients() -> None:
    state = advance(small_state(evolution={"method": "erl", "sync_generations": 100}), 3)
    assert state.population.state["critic_steps"].tolist() == [0, 0, 0, 0, 9]


def begun(size: int, **evolution: Any) -> tuple[CemMethod, Population, MethodState]:
    config = small_config(population={"size": size}, evolution={"method": "cem", **evolution})
    values = keyed_generator(1, "weights").standard_normal((size, CRITIC + ACTOR))
    method = CemMethod(config, CRITIC, new_agents)
    return method, *method.begin(torch.tensor(values, dtype=torch.float32))


def taught(method: CemMethod, population: Population) -> Population:
    after = population.clone()
    agents = range(population.size)[method.learning(method._config)]
    moves = 1.0 + torch.arange(len(agents))[:, None].square()
    for tensor in (after.weights, after.state["moment"]):
        tensor[agents] += moves
    return after


def next_of(
    method: CemMethod, population: Population, state: MethodState, fitness: list[float], generation: int = 1
) -> tuple[GenerationResult, NextPopulation]:
    end = ended(taught(method, population), np.array(fitness), state, generation)
    return end, method.breed(end)


def test_the_first_generation_is_drawn_around_one_actor_with_one_critic() -> None:
    _, population, state = begun(4_000, distribution_variance=0.04)
    assert (population.weights[:, :CRITIC] == population.weights[0, :CRITIC]).all()
    assert torch.equal(population.weights[0, CRITIC:], state.tensors["mean"])
    actors = population.weights[1:, CRITIC:]
    assert torch.allclose(actors.mean(0), state.tensors["mean"], atol=0.02)
    assert torch.allclose(actors.std(0), torch.full((ACTOR,), 0.2), rtol=0.1)


def test_agents_are_drawn_in_pairs_on_opposite_sides_of_the_mean() -> None:
    method, population, state = begun(7, learning_agents=2)
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


@pytest.mark.parametrize(("size", "generation"), [(4, 1), (5, 1), (6, 2), (6, 1_000)])
def test_the_fittest_move_the_distribution_by_their_weights_before_learning(size: int, generation: int) -> None:
    """By hand, in double precision; noise falls to its limit."""
    method, population, state = begun(size, learning_agents=0 if generation > 1 else None)
    fitness = [99.0, *(float((7 * agent) % size) for agent in range(1, size))]
    _, bred = next_of(method, population, state, fitness, generation)
    old = state.tensors["mean"].double()
    # The mean is played to be seen, and moves nothing.
    best = sorted(range(1, size), key=lambda agent: -fitness[agent])[: round((size - 1) / 2)]
    raw = [math.log((1 + len(best)) / (1 + rank)) for rank in range(len(best))]
    mean, variance = torch.zeros(ACTOR).double(), torch.zeros(ACTOR).double()
    for agent, share in zip(best, raw, strict=True):
        actor = population.weights[agent, CRITIC:].double()
        mean += share / sum(raw) * actor
        variance += share / sum(raw) / len(best) * (actor - old) ** 2
    variance += 1e-5 + (1e-3 - 1e-5) * 0.95**generation
    assert torch.allclose(bred.state.tensors["mean"].double(), mean, atol=1e-6)
    assert torch.allclose(bred.state.tensors["variance"].double(), variance)
    assert bred.statistics["distribution_std"] == pytest.approx(float(variance.mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize(("shared_critic", "taught_by"), [("mean", [5, 6, 7]), ("fittest", [7])])
def test_all_agents_that_have_learned_teach_the_next_critic(shared_critic: str, taught_by: list[int]) -> None:
    """By hand, in double precision; runs of earlier versions go on with the critic of the fittest."""
    method, population, state = begun(8, shared_critic=shared_critic)
    end, bred = next_of(method, population, state, [9.0, 8.0, 7.0, 6.0, 5.0, 1.0, 2.0, 3.0])
    kept = [one.agent for one in bred.lineages if one.origin == "learner"]
    assert kept == [1, 2, 3]
    for name, tensor in bred.population.tensors().items():
        critics = end.population.tensors()[name][:, :CRITIC].double()
        mean = torch.stack([critics[agent] for agent in taught_by]).mean(0)
        for agent in set(range(8)) - set(kept):
            assert torch.allclose(tensor[agent, :CRITIC].double(), mean, rtol=1e-6)
    assert torch.equal(bred.population.weights[kept], end.population.weights[5:])


def test_who_has_learned_is_evaluated_once_more() -> None:
    method, population, state = begun(6)
    assert method.learning(method._config) == slice(4, 6)
    end, bred = next_of(method, population, state, [9.0, 8.0, 7.0, 3.0, 1.0, 2.0])
    assert torch.equal(bred.population.weights[1:3], end.population.weights[4:])
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
    method, population, state = begun(4, learning_agents=2)
    end, bred = next_of(method, population, state, [0.0, 1.0, 2.0, 3.0])
    assert [one.origin for one in bred.lineages] == ["mean", "learner", "sample", "sample"]
    assert torch.equal(bred.population.weights[1], end.population.weights[3])
