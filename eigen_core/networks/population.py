"""The population: weights and learning state of agents as stacked tensors, one row for each agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.networks.layout import ParameterLayout

_HYPERPARAMETER = "gene_"
"""Prefix of stored names."""


@dataclass(frozen=True)
class Population:
    """Weights and learning state of all agents or of a group; a row of each tensor belongs to one agent.

    Attributes:
        weights: float32 `[agents, parameters]`, the critic's parameters first.
        state: the learner's tensors (target networks, moments, steps) and `hyperparameters`; each `[agents, ...]`.
    """

    weights: Tensor
    state: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        return int(self.weights.shape[0])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights, **self.state}

    @staticmethod
    def hyperparameter_key(name: str) -> str:
        return f"{_HYPERPARAMETER}{name}"

    @property
    def hyperparameters(self) -> dict[str, Tensor]:
        """Settings of the learner of which each agent has its own value, float32 `[agents]` each, by name."""
        prefix = _HYPERPARAMETER
        return {name.removeprefix(prefix): held for name, held in self.state.items() if name.startswith(prefix)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> "Population":
        """Inverse of `tensors`, on `device`; the tensors are copied."""
        copied = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        return cls(copied.pop("weights"), copied)

    def clone(self) -> "Population":
        return self.from_tensors(self.tensors(), self.weights.device)

    def with_weights(self, weights: Tensor) -> "Population":
        """Return agents with `weights`, `[agents, parameters]`; each gets the state of the one agent in `self`."""
        repeated = {name: held.repeat(len(weights), *[1] * (held.dim() - 1)) for name, held in self.state.items()}
        return Population(weights, repeated)

    def rows(self, agents: slice) -> "Population":
        """Return a copy of consecutive agents."""
        return Population(
            self.weights[agents].clone(), {name: held[agents].clone() for name, held in self.state.items()}
        )

    def put(self, agents: slice, others: "Population") -> None:
        """Overwrite the slice `agents` with the agents in `others`."""
        for name, tensor in self.tensors().items():
            tensor[agents] = others.tensors()[name]


def initial_weights(layouts: Sequence[ParameterLayout], size: int, seed: int, device: torch.device) -> Tensor:
    """Draw the initial weights of `size` agents, float32 `[agents, parameters]`, by the seed and each agent's index."""
    rows = []
    for agent in range(size):
        generator = keyed_generator(seed, 0, "initialise", agent, "weights")
        rows.append(np.concatenate([layout.initial_row(generator) for layout in layouts]))
    return torch.tensor(np.stack(rows), device=device)


def agent_groups(size: int, group_size: int, first: int = 0) -> list[slice]:
    """Cut the agents from `first` to before `size` into groups of `group_size`; 0: one group."""
    step = group_size or size
    return [slice(start, min(start + step, size)) for start in range(first, size, step)]
