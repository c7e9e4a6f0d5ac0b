"""The bank of agents: who draws what, what is shared and what is not, groups."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from science_cases import random_panel, small_config

from eigen_core.networks import AgentNetwork, Heads
from eigen_core.networks.population import Population, agent_groups, initial_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> AgentNetwork:
    config = small_config(learner={"twin_critics": True})
    return AgentNetwork(random_panel(config), config, CPU, Heads(critics=2))


def test_an_agent_depends_on_the_seed_and_its_index_alone(network: AgentNetwork) -> None:
    three, seven = (initial_weights(network.layouts, size, 4, CPU) for size in (3, 7))
    assert torch.equal(three, seven[:3])
    assert len({tuple(row.tolist()) for row in seven}) == 7
    other = initial_weights(network.layouts, 3, 5, CPU)
    assert (other != three).float().mean() > 0.99


def test_initial_weights_are_uniform_within_their_bounds(network: AgentNetwork) -> None:
    weights = initial_weights(network.layouts, 40, 1, CPU)
    size = network.critic_layout.size
    assert weights.shape == (40, network.parameters)
    for layout, rows in ((network.critic_layout, weights[:, :size]), (network.actor_layout, weights[:, size:])):
        for shape, view in zip(layout.shapes, layout.views(rows).values(), strict=True):
            bound = 1.0 / sqrt(shape.fan_in)
            assert view.shape == (40, *shape.shape)
            assert view.abs().max() <= bound * (1.0 + 1e-6)
            assert abs(view.std() / bound - 1.0 / sqrt(3.0)) < 4.0 / sqrt(view.numel())
            assert abs(view.mean() / bound) < 5.0 / sqrt(view.numel())


def filled(agents: int = 5, parameters: int = 7) -> Population:
    values = torch.arange(agents * parameters, dtype=torch.float32).reshape(agents, parameters)
    return Population(values, {"moments": values + 100.0, "steps": torch.arange(agents)})


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


def test_rows_are_copies_that_can_be_put_back() -> None:
    population, expected = filled(), filled()
    rows = population.rows(slice(1, 3))
    for name, tensor in rows.tensors().items():
        tensor.add_(1)
        assert torch.equal(population.tensors()[name], expected.tensors()[name])
    population.put(slice(1, 3), rows)
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
