"""Adam over rows of the bank, each agent by itself.

Every operation is one rounding per value, and norms are summed in fixed pieces, so that the bits of an agent do not
depend on which agents are computed beside it or on how many threads compute.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import LearnerConfig
from eigen_core.machine.gpu import on_device
from eigen_core.networks.population import Population

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_PIECE = 1_024


def adam_state(weights: Tensor) -> dict[str, Tensor]:
    """Return what Adam keeps of agents beside their weights, float32 `[agents, parameters]`, before the first step."""
    return {
        "first_moment": torch.zeros_like(weights),
        "second_moment": torch.zeros_like(weights),
        "steps": torch.zeros(len(weights), dtype=torch.int64, device=weights.device),
    }


def bias_corrections(counts: NDArray[np.int64], device: torch.device) -> Tensor:
    """Return what the moments are multiplied by at the steps of these numbers, from 1 on.

    Args:
        counts: `[...]`.
        device: where the steps are taken.

    Returns:
        float32 `[..., 2]` for the first and the second moment.
    """
    # Plain Python powers: a vectorised power rounds differently at the end of a row.
    factors = [[1.0 / (1.0 - beta**count) for beta in (_BETA1, _BETA2)] for count in counts.flatten().tolist()]
    return on_device(np.array(factors, dtype=np.float32).reshape(*counts.shape, 2), device)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norm of each row of float32 `[agents, values]`: float32 `[agents]`."""
    squares = rows * rows
    padded = torch.nn.functional.pad(squares, (0, -squares.shape[1] % _PIECE))
    return padded.reshape(len(rows), -1, _PIECE).sum(-1).sum(-1).sqrt()


def clip_rows(gradients: Tensor, limit: float) -> Tensor:
    """Scale each row down to a norm of at most `limit`, in place; return the norms before: float32 `[agents]`."""
    norms = row_norms(gradients)
    gradients.mul_((limit / norms.clamp_min(1e-12)).clamp_max(1.0)[:, None])
    return norms


def adam_step(
    population: Population,
    columns: slice,
    gradients: Tensor,
    corrections: Tensor,
    learning_rate: float | Tensor,
    decay: float,
) -> None:
    """Move the weights in `columns` of all rows of `population` by one step, in place.

    Args:
        population: a group of agents whose state has `first_moment` and `second_moment`, each `[agents, parameters]`.
        columns: which parameters.
        gradients: float32 `[agents, columns]`.
        corrections: `bias_corrections` of each agent's steps, float32 `[agents, 2]`.
        learning_rate: step size, or each agent's own, float32 `[agents, 1]`.
        decay: decoupled weight decay, times the learning rate.
    """
    first, second = population.state["first_moment"][:, columns], population.state["second_moment"][:, columns]
    adam_update(population.weights[:, columns], first, second, gradients, corrections, learning_rate, decay)


def clipped_step(
    population: Population,
    columns: slice,
    rows: Tensor,
    corrections: Tensor,
    learning_rate: float | Tensor,
    config: LearnerConfig,
    agents: list[int] | None = None,
) -> Tensor:
    """Clip the gradients of `rows`, a copy of the weights in `columns`, and step; return the norms before clipping.

    With `agents`, only these step: the others keep weights and moments. `corrections` are of those that step.
    """
    assert rows.grad is not None
    norms = clip_rows(rows.grad, config.gradient_clip)
    if agents is None or len(agents) == population.size:
        adam_step(population, columns, rows.grad, corrections, learning_rate, config.weight_decay)
    elif agents:
        moments = {name: population.state[name][agents] for name in ("first_moment", "second_moment")}
        stepping = Population(population.weights[agents], moments)
        own_rate = learning_rate[agents] if isinstance(learning_rate, Tensor) else learning_rate
        adam_step(stepping, columns, rows.grad[agents], corrections, own_rate, config.weight_decay)
        for name, tensor in stepping.tensors().items():
            population.tensors()[name][agents] = tensor
    return norms


def adam_update(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    corrections: Tensor,
    learning_rate: float | Tensor,
    decay: float = 0.0,
) -> None:
    """Move weights and both moments, float32 `[agents, values]` each, by one step, in place; see `adam_step`.

    Adam: Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1. Decoupled decay: Loshchilov & Hutter 2019
    (arXiv:1711.05101), algorithm 2.
    """
    first.mul_(_BETA1).add_(gradients * (1.0 - _BETA1))
    second.mul_(_BETA2).add_((gradients * gradients).mul_(1.0 - _BETA2))
    step = (first * corrections[:, :1]) / ((second * corrections[:, 1:]).sqrt_().add_(_EPSILON))
    step.add_(weights * decay)
    weights.sub_(step.mul_(learning_rate))
