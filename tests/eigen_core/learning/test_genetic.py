"""Breeding: who survives, who is parent, what a child is made of; mutation that grows while nothing improves."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from science_cases import small_config

from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Lineage
from eigen_core.config import GeneticConfig
from eigen_core.learning.fitness import Champion
from eigen_core.learning.genetic import GeneticMethod, MutationState
from eigen_core.learning.population_method import GenerationResult, MethodState
from eigen_core.networks.layout import Gene
from eigen_core.networks.population import Population

STATE_FIELDS = ("first_moment", "second_moment", "critic_steps", "actor_steps")
GENERATION = 7


def agents_that_have_learned(size: int, parameters: int = 11) -> Population:
    generator = keyed_generator(size, parameters, "test", "agents")
    tensors = {
        name: torch.tensor(generator.standard_normal((size, parameters)), dtype=torch.float32)
        for name in ("weights", "targets", "first_moment", "second_moment")
    }
    counts = {name: torch.arange(1, size + 1) * (index + 1) for index, name in enumerate(STATE_FIELDS[2:])}
    return Population(tensors.pop("weights"), {**tensors, **counts})


def new_agents(weights: torch.Tensor, teacher: Population | None = None) -> Population:  # noqa: ARG001
    moments = {name: torch.zeros_like(weights) for name in STATE_FIELDS[:2]}
    counts = {name: torch.zeros(len(weights), dtype=torch.int64) for name in STATE_FIELDS[2:]}
    return Population(weights, {"targets": weights.clone(), **moments, **counts})


def champion_of(population: Population, generation: int = 1, agent: int = 0) -> Champion:
    weights = torch.full_like(population.weights[0], 5.0)
    return Champion(weights=weights, validation=1.0, score=1.0, generation=generation, agent=agent)


def bred(
    population: Population,
    fitness: NDArray[np.float64],
    champion: Champion | None = None,
    seed: int = 1,
    mutation: MutationState | None = None,
    genes: Sequence[Gene] = (),
    **settings: Any,
) -> tuple[Population, tuple[Lineage, ...]]:
    config = small_config(seed=seed, evolution=settings)
    state = MethodState((mutation or MutationState.initial(GeneticConfig(**settings))).model_dump())
    ended = GenerationResult(GENERATION, population, fitness, True, champion or champion_of(population), state)
    found = GeneticMethod(config, 2, new_agents, genes).breed(ended)
    return found.population, found.lineages


@st.composite
def shares(draw: st.DrawFn) -> dict[str, Any]:
    elite = draw(st.floats(0.01, 1.0))
    return {"elite_share": elite, "offspring_share": draw(st.floats(0.0, 1.0 - elite))}


FITNESS = st.lists(st.integers(-4, 4) | st.floats(-1e6, 1e6), min_size=2, max_size=17).map(
    lambda values: np.array(values, dtype=np.float64)
)


@settings(deadline=None)
@given(FITNESS, shares(), st.booleans(), st.integers(0, 3), st.integers(6, 7), st.integers(0, 16))
def test_every_agent_is_what_its_descent_says(
    fitness: NDArray[np.float64],
    share: dict[str, Any],
    reinject: bool,
    seed: int,
    champion_generation: int,
    champion_agent: int,
) -> None:
    size = len(fitness)
    population = agents_that_have_learned(size)
    untouched = population.clone()
    champion = champion_of(population, champion_generation, champion_agent % size)
    children, descent = bred(population, fitness, champion, seed, reinject_champion=reinject, **share)

    for name, tensor in untouched.tensors().items():
        assert torch.equal(population.tensors()[name], tensor)
        assert children.tensors()[name].shape == tensor.shape
        assert children.tensors()[name].dtype == tensor.dtype
    assert [one.agent for one in descent] == list(range(size))

    best = sorted(range(size), key=lambda agent: (-fitness[agent], agent))
    elites = max(1, round(size * share["elite_share"]))
    offspring = min(round(size * share["offspring_share"]), size - elites)
    returns = reinject and not (champion_generation == GENERATION and champion.agent in best[:elites])
    kinds = ["elite"] * elites + ["offspring"] * offspring + ["mutant"] * (size - elites - offspring)
    if returns:
        kinds[elites - 1] = "champion"
    assert [one.origin for one in descent] == kinds

    for one in descent:
        child = {name: tensor[one.agent] for name, tensor in children.tensors().items()}
        if one.origin == "elite":
            assert one.parents == (best[one.agent],)
            for name, tensor in untouched.tensors().items():
                assert torch.equal(child[name], tensor[one.parents[0]])
            continue
        for name in STATE_FIELDS:
            assert not child[name].any()
        assert torch.equal(child["targets"], child["weights"])
        parents = untouched.weights[list(one.parents)]
        if one.origin == "offspring":
            assert one.blend is not None
            assert 0.3 <= one.blend <= 0.7
            expected = parents[0].double() * one.blend + parents[1].double() * (1.0 - one.blend)
            torch.testing.assert_close(child["weights"].double(), expected, rtol=1e-6, atol=1e-6)
        elif one.origin == "mutant":
            assert len(one.parents) == 1
        else:
            assert one.parents == (champion.agent,)
            assert torch.equal(child["weights"], champion.weights)


@pytest.mark.parametrize("tournament_size", [1, 3])
def test_parents_win_tournaments_of_random_agents(tournament_size: int) -> None:
    """An agent that is fitter than a share x of all wins with the density of the best of k uniform draws."""
    size = 4_000
    population, fitness = agents_that_have_learned(size, parameters=1), np.arange(float(size))
    for share in (0.0, 1.0 - 1.0 / size):
        rules: dict[str, Any] = {"tournament_size": tournament_size, "offspring_share": share}
        _, descent = bred(population, fitness, elite_share=1.0 / size, **rules)
        parents = [parent / size for one in descent[1:] for parent in one.parents]
        # The best of k uniform draws raised to the power k is uniform; Kolmogorov's 99.9 % bound is 1.95 / sqrt(n).
        uniform = np.sort(np.array(parents) ** tournament_size)
        assert len(parents) in (size - 1, 2 * (size - 1))
        distance = abs(uniform - np.arange(1, len(parents) + 1) / len(parents)).max()
        assert distance < 1.95 / sqrt(len(parents)) + 2.0 * tournament_size / size


@pytest.mark.parametrize(("rate", "std"), [(0.0, 0.5), (0.1, 0.01), (0.4, 0.05), (1.0, 0.3), (0.5, 0.0)])
def test_a_mutant_differs_in_about_rate_of_its_weights_by_about_std(rate: float, std: float) -> None:
    parameters = 40_000
    population = agents_that_have_learned(3, parameters)
    children, descent = bred(
        population,
        np.arange(3.0),
        mutation=MutationState(rate=rate, std=std),
        elite_share=0.34,
        offspring_share=0.0,
    )
    assert [one.origin for one in descent[1:]] == ["mutant", "mutant"]
    changes = [(children.weights[one.agent] - population.weights[one.parents[0]]).double() for one in descent[1:]]
    wanted = rate if std else 0.0
    for difference in changes:
        moved = difference[difference != 0.0]
        # Next to nothing is lost to rounding a small change away.
        bound = 5.0 * sqrt(wanted * (1.0 - wanted) / parameters) + 2e-4 * wanted
        assert abs(len(moved) / parameters - wanted) <= bound
        if wanted:
            assert abs(moved.std() / std - 1.0) < 5.0 / sqrt(2 * len(moved))
            assert abs(moved.mean() / std) < 5.0 / sqrt(len(moved))
    assert not wanted or not torch.equal(*changes)


START = {"rate": 0.1, "std": 0.01}
GROWN = {"rate": 0.15, "std": 0.015}


@pytest.mark.parametrize(
    ("validations", "expected", "reference", "waited"),
    [
        ([100.0], START, 100.0, 0),
        # At least 2 % of the reference's size is progress, whatever its sign; less is not.
        ([100.0, 102.0], START, 102.0, 0),
        ([100.0, 101.9], START, 100.0, 1),
        ([-100.0, -98.0], START, -98.0, 0),
        ([-100.0, -98.1], START, -100.0, 1),
        # From nothing, anything more than nothing is progress; the same again is not.
        ([0.0, 0.0], START, 0.0, 1),
        ([0.0, 1e-9], START, 1e-9, 0),
        # Small steps add up against the same reference.
        ([100.0, 101.0, 102.0], START, 102.0, 0),
        # Three generations without progress let it grow once, and count anew, up to the limits.
        ([100.0] * 3, START, 100.0, 2),
        ([100.0] * 4, GROWN, 100.0, 0),
        ([100.0] * 40, {"rate": 0.4, "std": 0.05}, 100.0, 0),
        # Progress resets the strength.
        ([100.0] * 7 + [103.0], START, 103.0, 0),
        ([100.0] * 7 + [101.0], {"rate": 0.225, "std": 0.0225}, 100.0, 1),
    ],
)
def test_mutation_grows_on_a_plateau_and_resets_with_progress(
    validations: list[float], expected: dict[str, float], reference: float, waited: int
) -> None:
    config = GeneticConfig()
    state = MutationState.initial(config)
    for validation in validations:
        state = state.after(validation, config)
    assert {"rate": state.rate, "std": state.std} == pytest.approx(expected)
    assert state.reference == reference
    assert state.generations_without_progress == waited


@pytest.mark.parametrize(
    ("fitness", "champion_generation", "settings", "grows"),
    [
        # All others still learn what to do.
        ([-1000.0, -500.0, -300.0, -200.0, -150.0, -120.0], 1, {}, False),
        ([-1000.0, -500.0, -300.0, -200.0, -150.0, -120.0], 1, {"first_champion_plateau": True}, True),
        # Nothing improves, nor does the champion's score of 0.
        ([-1000.0] * 6, 1, {}, True),
        # A champion that was bred or has learned is what the others have to surpass.
        ([-1000.0, -500.0, -300.0, -200.0, -150.0, -120.0], 2, {}, True),
    ],
)
def test_a_first_agent_that_does_nothing_makes_no_plateau_while_the_others_improve(
    fitness: list[float], champion_generation: int, settings: dict[str, Any], grows: bool
) -> None:
    config = small_config(population={"size": 4}, evolution=settings)
    method = GeneticMethod(config, 2, new_agents)
    population, state = method.begin(agents_that_have_learned(4).weights)
    begun = state.numbers["rate"]
    champion = replace(champion_of(population, champion_generation), score=0.0)
    for generation, of_most in enumerate(fitness, start=1):
        ended = GenerationResult(
            generation, population, np.array([of_most, of_most, 0.0, of_most]), True, champion, state
        )
        bred_now = method.breed(ended)
        population, state = bred_now.population, bred_now.state
    assert (bred_now.statistics["mutation_rate"] != begun) == grows


GENES = (Gene("selectivity", 10, -1.0, 3.0), Gene("size", 4, 0.0, 1.0))
COLUMNS = [gene.column for gene in GENES]


@pytest.mark.parametrize("reinject", [True, False])
def test_genes_are_bred_and_everything_else_is_inherited_whole(reinject: bool) -> None:
    old: Population = agents_that_have_learned(12)
    shares: dict[str, Any] = {"elite_share": 0.25, "offspring_share": 0.25}
    fitness = np.arange(12.0)
    population, lineages = bred(old, fitness, genes=GENES, evolves="genes", reinject_champion=reinject, **shares)
    others = [column for column in range(old.weights.shape[1]) if column not in COLUMNS]
    moved = []
    for lineage in lineages:
        row, first = population.weights[lineage.agent], lineage.parents[0]
        if lineage.origin == "champion":
            assert bool((row == 5.0).all())
            continue
        assert torch.equal(row[others], old.weights[first, others])
        for name, tensor in population.state.items():
            assert torch.equal(tensor[lineage.agent], old.state[name][first])
        assert lineage.genes == {gene.name: float(row[gene.column]) for gene in GENES}
        if lineage.origin == "offspring":
            low, high = torch.stack([old.weights[parent, COLUMNS] for parent in lineage.parents]).aminmax(dim=0)
            assert bool(((low - 1e-6 <= row[COLUMNS]) & (row[COLUMNS] <= high + 1e-6)).all())
        if lineage.origin == "mutant":
            assert all(gene.low <= float(row[gene.column]) <= gene.high for gene in GENES)
            moved += (row[COLUMNS] != old.weights[first, COLUMNS]).tolist()
    assert len(moved) == 12
    assert all(moved)


def test_agents_without_genes_evolve_their_weights() -> None:
    old = agents_that_have_learned(12)
    found, of_weights = (bred(old, np.arange(12.0), evolves=evolves)[0] for evolves in ("genes", "weights"))
    assert torch.equal(found.weights, of_weights.weights)
