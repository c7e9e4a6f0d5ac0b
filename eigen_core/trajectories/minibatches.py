"""Minibatches of the steps of each agent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Minibatches:
    """The steps of each agent, in a random order, cut into minibatches.

    Attributes:
        slots: int64 `[agents, minibatches, batch]`.
        counted: bool `[agents, minibatches, batch]`; the other slots only fill the batch up.
    """

    slots: Tensor
    counted: Tensor


def draw_minibatches(
    slots: Sequence[NDArray[np.int64]],
    count: int,
    batch: int,
    generators: Sequence[np.random.Generator],
    device: torch.device,
) -> Minibatches:
    """Deal the steps of each agent out to its minibatches, which differ by one step at most.

    Args:
        slots: the steps of each agent.
        count: minibatches of each agent; an agent with fewer steps has empty ones.
        batch: slots of a minibatch; what is left of it is filled with a slot that does not count.
        generators: one for each agent.
        device: where the minibatches are needed.

    Raises:
        ValueError: the generators are not as many as the agents.
    """
    if len(generators) != len(slots):
        raise ValueError(f"{len(generators)} generators were given for {len(slots)} agents.")
    dealt = np.zeros((len(slots), count, batch), dtype=np.int64)
    counted = np.zeros(dealt.shape, dtype=np.bool_)
    for agent, (own, generator) in enumerate(zip(slots, generators, strict=True)):
        dealt[agent] = own[:1] if len(own) else 0
        for index, part in enumerate(np.array_split(generator.permutation(own), count)):
            dealt[agent, index, : len(part)] = part
            counted[agent, index, : len(part)] = True
    return Minibatches(torch.from_numpy(dealt).to(device), torch.from_numpy(counted).to(device))
