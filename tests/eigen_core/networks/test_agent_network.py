"""The networks of agents: shapes, sight, gradients, and the bank that holds them."""

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from science_cases import random_panel, small_config
from stand_in_gpu import GPU, stand_in_gpu
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning import learner_class
from eigen_core.networks import AgentNetwork, Heads
from eigen_core.networks.layout import add_product
from eigen_core.networks.population import Population, agent_groups, initial_weights

CPU = torch.device("cpu")


def network_and_weights(assets: int = 6, **sections: Any) -> tuple[AgentNetwork, Tensor]:
    config = small_config(**sections)
    network = AgentNetwork(
        random_panel(config, assets=assets), config, CPU, learner_class(config.learner).heads(config)
    )
    return network, initial_weights(network.layouts, config.population.size, config.seed, CPU)


def split(network: AgentNetwork, weights: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    size = network.critic_layout.size
    return network.critic_layout.views(weights[:, :size]), network.actor_layout.views(weights[:, size:])


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_the_number_of_assets_does_not_change_the_number_of_parameters(encoder: str) -> None:
    small, _ = network_and_weights(assets=3, network={"encoder": encoder})
    large, _ = network_and_weights(assets=11, network={"encoder": encoder})
    assert small.parameters == large.parameters


def test_actions_are_in_their_bounds_and_noise_keeps_them_there() -> None:
    network, weights = network_and_weights()
    critic, actor = split(network, weights * 30.0)
    market = network.encode_block(critic, 20, 9)
    policy = network.policy(actor, network.prepare_actor(actor, market, torch.zeros(9, 2)), torch.zeros(5, 9, 6, 4))
    noise = torch.linspace(-3.0, 3.0, policy.mean.numel()).reshape(policy.mean.shape)
    for some in (policy.mode, policy.play(noise).actions):
        assert some.shape == (5, 9, 6, 2)
        assert 0.0 <= some[..., 0].min() <= some[..., 0].max() <= 3.0
        assert some[..., 1].min() >= 0.1 - 1e-6
        assert some[..., 1].max() <= 0.5 + 1e-6


def test_unbounded_coefficients_stay_positive() -> None:
    network, weights = network_and_weights(trading={"max_coefficient": None})
    critic, actor = split(network, weights * 30.0)
    prepared = network.prepare_actor(actor, network.encode_block(critic, 20, 9), torch.zeros(9, 2))
    policy = network.policy(actor, prepared, torch.zeros(5, 9, 6, 4))
    actions = policy.mode
    assert actions[..., 0].min() >= 0.0
    assert actions[..., 0].max() > 3.0
    assert policy.play(torch.full_like(actions, -1.0)).actions[..., 0].min() >= 0.0


def test_columns_without_a_price_are_in_no_pool() -> None:
    config = small_config()
    panel = random_panel(config)
    day = next(day for day in range(20, 100) if not panel.valid[day].all())
    column = int((~panel.valid[day]).argmax())
    changed = panel.features.copy()
    changed[day, column] += 5.0
    values = []
    config = small_config(network={"scales": [1], "encoder": "tcn"}, market={"window": 1})
    for features in (panel.features, changed):
        network = AgentNetwork(replace(panel, features=features), config, CPU, Heads())
        weights = initial_weights(network.layouts, 3, 1, CPU)
        critic, _ = split(network, weights)
        market = network.encode_block(critic, day, 1)
        actions = torch.full((3, 1, 6, 2), 0.3)
        actions[:, :, column, 0] = 0.0
        values.append(
            (market.context, network.values(critic, market, torch.zeros(3, 1, 6, 4), torch.zeros(1, 2), actions))
        )
    torch.testing.assert_close(values[0][0], values[1][0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(values[0][1], values[1][1], rtol=1e-6, atol=1e-7)


def test_the_value_of_an_action_listens_to_what_will_be_bought() -> None:
    network, weights = network_and_weights()
    critic, _ = split(network, weights)
    market = network.encode_block(critic, 30, 1)
    actions = torch.zeros(5, 1, 6, 2)
    actions[:, :, 2, 0] = 3.0
    other = actions.clone()
    other[:, :, 2, 0], other[:, :, 4, 0] = 0.0, 3.0
    portfolio, episode_time = torch.zeros(5, 1, 6, 4), torch.zeros(1, 2)
    first = network.values(critic, market, portfolio, episode_time, actions)
    assert not torch.allclose(first, network.values(critic, market, portfolio, episode_time, other))


def test_without_an_observed_portfolio_nothing_depends_on_the_episode_time() -> None:
    network, weights = network_and_weights(trading={"observe_portfolio": False})
    critic, actor = split(network, weights)
    market = network.encode_block(critic, 30, 4)
    early, late = torch.zeros(4, 2), torch.ones(4, 2)
    assert torch.equal(network.prepare_actor(actor, market, early), network.prepare_actor(actor, market, late))
    assert network.portfolio_values == 0


def test_all_parameters_can_learn() -> None:
    network, weights = network_and_weights(learner={"twin_critics": True})
    size = network.critic_layout.size
    critic_rows = weights[:, :size].clone().requires_grad_()
    actor_rows = weights[:, size:].clone().requires_grad_()
    critic, actor = network.critic_layout.views(critic_rows), network.actor_layout.views(actor_rows)
    market = network.encode_block(critic, 20, 30)
    portfolio = torch.linspace(-1.0, 1.0, 5 * 30 * 6 * 4).reshape(5, 30, 6, 4)
    episode_time = torch.linspace(0.0, 1.0, 60).reshape(30, 2)
    actions = network.policy(actor, network.prepare_actor(actor, market.detach(), episode_time), portfolio).mode
    torch.autograd.backward(network.values(critic, market, portfolio, episode_time, actions).square().sum())
    for layout, rows in ((network.critic_layout, critic_rows), (network.actor_layout, actor_rows)):
        assert rows.grad is not None
        for name, gradient in layout.views(rows.grad).items():
            assert (gradient != 0).any(), name


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


AGENTS, INPUTS, OUTPUTS = 3, 24, 16


def normal(name: str, *shape: int) -> Tensor:
    return torch.tensor(keyed_generator(1, 0, "test", name).standard_normal(shape), dtype=torch.float32)


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [511, 512, 700, 5_000])
def test_a_sum_over_rows_that_do_not_lie_together_is_that_of_double_precision(rows: int) -> None:
    read, gradient = normal("read", AGENTS, rows + 40, INPUTS)[:, 40:], normal("gradient", AGENTS, rows, OUTPUTS)
    start = normal("start", AGENTS, INPUTS, OUTPUTS)
    expected = start.double() + read.double().transpose(1, 2) @ gradient.double()
    with stand_in_gpu():
        total = start.to(GPU)
        add_product(total, read.to(GPU).transpose(1, 2), gradient.to(GPU))
        found = total.cpu()
        alone = start[1:2].to(GPU)
        add_product(alone, read[1:2].to(GPU).transpose(1, 2), gradient[1:2].to(GPU))
        assert rows < 512 or torch.equal(alone.cpu(), found[1:2])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
