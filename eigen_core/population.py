"""The population: P agents whose weights, targets and optimizer moments are stacked matrices `[P, D]`."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from eigen_core.networks import AgentNetwork
from eigen_core.randomness import keyed_generator


class Population:
    """Weights and optimizer state of all agents; a row is an agent.

    Attributes:
        weights: float32 `[agents, parameters]`.
        targets: slowly moving copies of the weights, float32 `[agents, parameters]`.
        first_moment, second_moment: Adam's moments, float32 `[agents, parameters]`.
        critic_steps, actor_steps: optimizer steps taken by each agent, int64 `[agents]`.
    """

    FIELDS = ("weights", "targets", "first_moment", "second_moment", "critic_steps", "actor_steps")

    def __init__(self, **tensors: Tensor) -> None:
        self.weights = tensors["weights"]
        self.targets = tensors["targets"]
        self.first_moment = tensors["first_moment"]
        self.second_moment = tensors["second_moment"]
        self.critic_steps = tensors["critic_steps"]
        self.actor_steps = tensors["actor_steps"]

    @classmethod
    def of_weights(cls, weights: Tensor) -> "Population":
        """Agents with these weights `[agents, parameters]`, which have not learned yet."""
        counts = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
        return cls(
            weights=weights.clone(),
            targets=weights.clone(),
            first_moment=torch.zeros_like(weights),
            second_moment=torch.zeros_like(weights),
            critic_steps=counts,
            actor_steps=counts.clone(),
        )

    @classmethod
    def initial(cls, network: AgentNetwork, size: int, seed: int, device: torch.device) -> "Population":
        """Draw `size` agents; each one's weights depend on the seed and its index alone."""
        rows = []
        for agent in range(size):
            generator = keyed_generator(seed, 0, "initialise", agent, "weights")
            layouts = (network.critic_layout, network.actor_layout)
            rows.append(np.concatenate([layout.initial_row(generator) for layout in layouts]))
        return cls.of_weights(torch.tensor(np.stack(rows), device=device))

    @property
    def size(self) -> int:
        """Number of agents."""
        return int(self.weights.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {name: getattr(self, name) for name in self.FIELDS}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> "Population":
        """Inverse of `tensors`, on `device`."""
        return cls(**{name: tensors[name].to(device, copy=True) for name in cls.FIELDS})

    def clone(self) -> "Population":
        """A copy that shares nothing."""
        return Population(**{name: tensor.clone() for name, tensor in self.tensors().items()})

    def rows(self, agents: slice) -> "Population":
        """Views of consecutive agents: what is written to them is written here."""
        return Population(**{name: tensor[agents] for name, tensor in self.tensors().items()})


def agent_groups(size: int, group_size: int) -> list[slice]:
    """Cut `size` agents into groups that are computed at a time; 0: all of them."""
    step = group_size or size
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
