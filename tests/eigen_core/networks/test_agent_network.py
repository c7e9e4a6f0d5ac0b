"""The networks of agents: shapes, sight, gradients, and the bank that holds them."""

from math import sqrt

import pytest
import torch
from science_cases import random_panel, small_config
from stand_in_gpu import GPU, stand_in_gpu
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.layout import add_product
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import initial_weights

CPU = torch.device("cpu")


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_the_number_of_assets_does_not_change_the_number_of_parameters(encoder: str) -> None:
    config = small_config(network={"encoder": encoder})
    panels = (random_panel(config, assets=assets) for assets in (3, 11))
    small, large = (AgentNetwork(panel, config, CPU, Heads()).layouts for panel in panels)
    assert small == large


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
    for layout, rows in ((network.critic_layout, weights[:, :size]), (network.actor_layout, weights[:, size:])):
        for shape, view in zip(layout.shapes, layout.views(rows).values(), strict=True):
            bound = 1.0 / sqrt(shape.fan_in)
            assert view.shape == (40, *shape.shape)
            assert view.abs().max() <= bound * (1.0 + 1e-6)
            assert abs(view.std() / bound - 1.0 / sqrt(3.0)) < 4.0 / sqrt(view.numel())
            assert abs(view.mean() / bound) < 5.0 / sqrt(view.numel())


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
