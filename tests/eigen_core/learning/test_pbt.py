"""Methods whose agents learn beside evolution: PBT copies and perturbs, ERL adds learners to a population."""

from typing import Any

import numpy as np
import pytest
import torch
from science_cases import learner_with, random_panel, small_config
from training_cases import advance, saved_of, small_state

from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.config import registry
from eigen_core.generation import restore, start_training
from eigen_core.learning.erl import ErlMethod
from eigen_core.learning.method import Champion, GenerationResult, NextPopulation
from eigen_core.learning.pbt import GENES, PbtMethod, perturbed
from eigen_core.networks.outcomes import RESERVE_VALUES
from eigen_core.networks.population import Population
from eigen_core.reporting.tables import population_table

LEARNERS = list(registry.LEARNERS)


def new_agents(weights: torch.Tensor, teacher: Population | None = None) -> Population:  # noqa: ARG001
    return Population(weights, {"moment": weights + 100.0})


def bred(generation: int, size: int = 10) -> tuple[GenerationResult, NextPopulation]:
    config = small_config(population={"size": size}, evolution={"method": "pbt", "sync_generations": 5})
    method = PbtMethod(config, 2, new_agents)
    population, state = method.begin(torch.arange(4.0 * size).reshape(size, 4))
    champion = Champion(population.weights[0], 9.0, 9.0, generation, 0)
    end = GenerationResult(generation, population, np.arange(float(size))[::-1].copy(), True, champion, state)
    return end, method.breed(end)


def test_the_weakest_fifth_copies_the_fittest_and_perturbs_its_genes() -> None:
    end, after = bred(generation=10)
    assert [one.origin for one in after.lineages] == ["elite"] * 8 + ["copy"] * 2
    for one in after.lineages:
        (parent,) = one.parents
        for name in ("weights", "moment"):
            tensor, before = after.population.tensors()[name], end.population.tensors()[name]
            assert torch.equal(tensor[one.agent], before[parent])
        assert one.genes == {name: float(held[one.agent]) for name, held in after.population.genes.items()}
        if one.origin == "elite":
            assert parent == one.agent
            continue
        assert parent in {0, 1}
        for name, value in (one.genes or {}).items():
            inherited = float(end.population.genes[name][parent])
            ratio = (1 - value) / (1 - inherited) if name == "gamma" else value / inherited
            assert min(abs(ratio - 0.8), abs(ratio - 1.2)) < 1e-4


def test_between_two_copies_nothing_changes() -> None:
    end, after = bred(generation=9)
    assert after.population is end.population
    assert {one.origin for one in after.lineages} == {"elite"}
    assert after.facts["median_gamma"] == pytest.approx(np.median(end.population.genes["gamma"].tolist()))


def test_genes_begin_around_the_configured_ones_and_gamma_stays_below_one() -> None:
    end, _ = bred(generation=1)
    genes = end.population.genes
    assert genes.keys() == set(GENES)
    assert float(genes["gamma"][0]) == pytest.approx(0.99)
    assert len(set(genes["reward_scale"].tolist())) == 3
    assert perturbed("gamma", 0.99, 1.2) == pytest.approx(0.988)
    assert perturbed("gamma", 0.99999, 0.1) < 1.0
    assert perturbed("gamma", 0.1, 1.9) == 0.0


def equal_genes(algorithm: str, **evolution: Any) -> str:
    """What a small run comes to; with genes, each agent's are the configured settings."""
    rates = {"actor_learning_rate": 0.25, "critic_learning_rate": 0.0625}
    learner = learner_with(algorithm, gamma=0.5, reward_scale=0.125, **rates)
    state = small_state(learner=learner, evolution=evolution)
    advance(state, 2)
    return tensors_sha256({"weights": state.population.weights})


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_equal_genes_give_the_bits_of_settings(algorithm: str) -> None:
    pbt = {"method": "pbt", "perturbation": 0.0, "sync_generations": 100}
    assert equal_genes(algorithm, **pbt) == equal_genes(algorithm, enabled=False)


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_each_agent_learns_by_its_own_genes(algorithm: str) -> None:
    """Without a learning rate, an agent stays as it is, but for what it observes of its own expectations."""
    state = small_state(learner={"algorithm": algorithm}, evolution={"method": "pbt", "sync_generations": 100})
    for name in ("actor_learning_rate", "critic_learning_rate"):
        state.population.genes[name][2] = 0.0
    stepped = slice(0, -RESERVE_VALUES if algorithm == "counterfactual" else None)
    before = state.population.weights[:, stepped].clone()
    advance(state, 1)
    moved = (state.population.weights[:, stepped] != before).any(1)
    assert moved.tolist() == [True, True, False, True, True]


def test_genes_are_in_the_table_and_impossible_ones_are_refused() -> None:
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


def bred_by_erl(generation: int, **evolution: Any) -> tuple[Population, NextPopulation]:
    config = small_config(population={"size": 6}, evolution={"method": "erl", "sync_generations": 3, **evolution})
    method = ErlMethod(config, 2, new_agents)
    population, state = method.begin(torch.arange(24.0).reshape(6, 4))
    population.state["moment"][4:] = 1.0
    champion = Champion(population.weights[0], 9.0, 9.0, generation, 0)
    end = GenerationResult(generation, population, np.array([5.0, 4.0, 3.0, 2.0, 9.0, 7.0]), True, champion, state)
    return population, method.breed(end)


def test_learners_stay_and_the_others_breed_among_themselves() -> None:
    population, after = bred_by_erl(4, learning_agents=2)
    for name, tensor in after.population.tensors().items():
        assert torch.equal(tensor[4:], population.tensors()[name][4:])
    assert [one.agent for one in after.lineages] == list(range(6))
    assert [one.origin for one in after.lineages[4:]] == ["learner", "learner"]
    for one in after.lineages[:4]:
        assert one.origin in {"elite", "offspring", "mutant"}
        assert max(one.parents) < 4


def test_the_fittest_learner_is_copied_into_the_population_every_few_generations() -> None:
    population, after = bred_by_erl(6, learning_agents=2)
    assert after.lineages[3].origin == "copy"
    assert after.lineages[3].parents == (4,)
    assert torch.equal(after.population.weights[3], population.weights[4])
    assert [one.origin for one in after.lineages].count("copy") == 1


def test_only_learners_learn_by_gradients() -> None:
    state = advance(small_state(evolution={"method": "erl", "sync_generations": 100}), 3)
    assert state.population.state["critic_steps"].tolist() == [0, 0, 0, 0, 9]
