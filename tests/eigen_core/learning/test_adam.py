"""Adam over rows equals the library's AdamW agent by agent; norms and clipping are each agent's own."""

import numpy as np
import pytest
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import DdpgConfig
from eigen_core.learning.base_learners import bias_corrections, clip_rows, clipped_step
from eigen_core.networks.population import Population

MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}


def draw(*shape: int, key: str = "values") -> Tensor:
    return torch.tensor(keyed_generator(1, key).standard_normal(shape), dtype=torch.float32)


def new_agents(weights: Tensor) -> Population:
    return Population(weights.clone(), {name: torch.zeros_like(weights) for name in MOMENTS})


def step_of(population: Population, columns: slice, gradients: Tensor, counts: list[int], config: DdpgConfig) -> Tensor:
    rows = population.weights[:, columns].clone()
    rows.grad = gradients.clone()
    corrections = bias_corrections(np.array(counts), torch.device("cpu"))
    return clipped_step(population, columns, rows, corrections, "critic_learning_rate", config)


@pytest.mark.parametrize(("learning_rate", "decay"), [(1e-2, 0.0), (1e-2, 0.1), (3e-4, 1e-5), (0.0, 0.5)])
def test_steps_equal_the_librarys_adamw(learning_rate: float, decay: float) -> None:
    """Three agents of which one has five steps behind it and one two."""
    config = DdpgConfig(critic_learning_rate=learning_rate, weight_decay=decay, gradient_clip=1e9)
    agents, columns, experience = 3, slice(7, 47), (5, 2, 0)
    population = new_agents(draw(agents, 60, key="weights"))
    before = population.clone()
    rows = [population.weights[agent, columns].clone().requires_grad_() for agent in range(agents)]
    optimizers = [torch.optim.AdamW([row], lr=learning_rate, weight_decay=decay) for row in rows]

    def plain_step(agent: int, gradient: Tensor) -> None:
        rows[agent].grad = gradient.clone()
        optimizers[agent].step()

    for agent, steps in enumerate(experience):
        alone = population.rows(slice(agent, agent + 1))
        for step in range(steps):
            gradient = draw(1, 40, key=f"alone{agent}{step}") * 10.0 ** (step - 3)
            step_of(alone, columns, gradient, [step + 1], config)
            plain_step(agent, gradient[0])
        population.put(slice(agent, agent + 1), alone)
    for step in range(6):
        gradients = draw(agents, 40, key=f"together{step}") * 10.0 ** (step - 3)
        gradients[1, :4] = 0.0
        step_of(population, columns, gradients, [steps + step + 1 for steps in experience], config)
        for agent in range(agents):
            plain_step(agent, gradients[agent])
            torch.testing.assert_close(population.weights[agent, columns], rows[agent].detach(), rtol=1e-6, atol=1e-6)
            for name, key in MOMENTS.items():
                expected = optimizers[agent].state[rows[agent]][key]
                torch.testing.assert_close(population.state[name][agent, columns], expected, rtol=1e-5, atol=1e-9)
    outside = torch.ones(60, dtype=torch.bool)
    outside[columns] = False
    for name, tensor in population.tensors().items():
        assert torch.equal(tensor[:, outside], before.tensors()[name][:, outside])


@pytest.mark.parametrize(("agents", "values"), [(7, 3_001), (3_000, 4)])
def test_an_agents_bits_do_not_depend_on_the_others_and_their_experience(agents: int, values: int) -> None:
    """Also in populations so large that kernels take many agents' counts at a time."""
    config = DdpgConfig(critic_learning_rate=1.0, weight_decay=1e-2, gradient_clip=0.5)
    counts, gradients = list(range(1, agents + 1)), draw(agents, values, key="gradients")

    def moved(group: slice) -> Tensor:
        # From zero, so that no bit of the step is lost in the weight.
        population = new_agents(torch.zeros_like(gradients[group]))
        norms = step_of(population, slice(0, values), gradients[group], counts[group], config)
        return torch.cat([population.weights, norms[:, None]], dim=1)

    step = agents // 3
    parts = torch.cat([moved(slice(start, start + step)) for start in range(0, agents, step)])
    assert torch.equal(moved(slice(0, agents)), parts)


@pytest.mark.parametrize("values", [1, 1_023, 1_025])
def test_rows_are_clipped_as_the_library_clips_each_agent(values: int) -> None:
    gradients = draw(5, values) * torch.tensor([1e-8, 0.01, 1.0, 1e8, 0.0])[:, None]
    expected, clipped = torch.zeros_like(gradients), gradients.clone()
    norms = clip_rows(clipped, 1.0)
    for agent, row in enumerate(gradients):
        parameter = torch.zeros(values, requires_grad=True)
        parameter.grad = row.clone()
        assert norms[agent].item() == pytest.approx(torch.nn.utils.clip_grad_norm_([parameter], 1.0).item(), rel=1e-6)
        expected[agent] = row if norms[agent] < 1.0 else parameter.grad
    torch.testing.assert_close(clipped, expected, rtol=3e-6, atol=0.0)
