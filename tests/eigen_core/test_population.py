"""The bank of agents: who draws what, what is shared and what is not, groups."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from science_cases import random_panel, small_config

from eigen_core.networks import AgentNetwork
from eigen_core.population import Population, agent_groups

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> AgentNetwork:
    config = small_config(learner={"twin_critics": True})
    return AgentNetwork(random_panel(config), config, CPU)


def test_an_agent_depends_on_the_seed_and_its_index_alone(network: AgentNetwork) -> None:
    three, seven = (Population.initial(network, size, 4, CPU).weights for size in (3, 7))
    assert torch.equal(three, seven[:3])
    assert len({tuple(row.tolist()) for row in seven}) == 7
    other = Population.initial(network, 3, 5, CPU).weights
    assert (other != three).float().mean() > 0.99


def test_initial_weights_are_uniform_within_their_bounds(network: AgentNetwork) -> None:
    weights = Population.initial(network, 40, 1, CPU).weights
    size = network.critic_layout.size
    assert weights.shape == (40, network.parameters)
    for layout, rows in ((network.critic_layout, weights[:, :size]), (network.actor_layout, weights[:, size:])):
        for shape, view in zip(layout.shapes, layout.views(rows).values(), strict=True):
            bound = 1.0 / sqrt(shape.fan_in)
            assert view.shape == (40, *shape.shape)
            assert view.abs().max() <= bound * (1.0 + 1e-6)
            assert abs(view.std() / bound - 1.0 / sqrt(3.0)) < 4.0 / sqrt(view.numel())
            assert abs(view.mean() / bound) < 5.0 / sqrt(view.numel())


def test_agents_start_with_their_own_targets_and_have_not_learned(network: AgentNetwork) -> None:
    population = Population.initial(network, 4, 1, CPU)
    assert torch.equal(population.targets, population.weights)
    assert population.targets.data_ptr() != population.weights.data_ptr()
    for name in ("first_moment", "second_moment", "critic_steps", "actor_steps"):
        assert not getattr(population, name).any()
    pointers = {tensor.data_ptr() for tensor in population.tensors().values()}
    assert len(pointers) == len(Population.FIELDS)
    assert population.size == 4
    assert population.nbytes == 4 * (4 * network.parameters * 4 + 2 * 8)


def filled(agents: int = 5, parameters: int = 7) -> Population:
    values = torch.arange(agents * parameters, dtype=torch.float32).reshape(agents, parameters)
    tensors = {name: values + 100.0 * place for place, name in enumerate(Population.FIELDS[:4])}
    counts = {name: torch.arange(agents) + place for place, name in enumerate(Population.FIELDS[4:])}
    return Population(**tensors, **counts)


def test_copies_are_equal_and_share_nothing() -> None:
    original = filled()
    for copy in (original.clone(), Population.from_tensors(original.tensors(), CPU)):
        for name, tensor in original.tensors().items():
            twin = copy.tensors()[name]
            assert torch.equal(tensor, twin)
            assert tensor.dtype == twin.dtype
            before = tensor.clone()
            twin.zero_()
            assert torch.equal(tensor, before)


def test_agents_of_weights_share_nothing_with_them() -> None:
    weights = torch.ones(2, 3)
    population = Population.of_weights(weights)
    population.weights.zero_()
    assert weights.all()
    assert population.targets.all()


def test_rows_are_windows_into_the_population() -> None:
    population, expected = filled(), filled()
    for tensor in population.rows(slice(1, 3)).tensors().values():
        tensor.add_(1)
    for name, tensor in expected.tensors().items():
        tensor[1:3] += 1
        assert torch.equal(population.tensors()[name], tensor)


@given(st.integers(1, 60), st.integers(0, 70))
def test_groups_cover_every_agent_once_and_in_order(size: int, group_size: int) -> None:
    groups = agent_groups(size, group_size)
    agents = list(range(size))
    assert [agent for group in groups for agent in agents[group]] == agents
    step = group_size or size
    assert [(group.start, group.stop) for group in groups] == [
        (start, min(start + step, size)) for start in range(0, size, step)
    ]
