"""The gradient steps of a plan of batches, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.text import SINGLE
from eigen_core.config import Config
from eigen_core.learners.adam import bias_corrections
from eigen_core.learners.batches import BatchPlan
from eigen_core.machine.cuda_graphs import CapturedStep
from eigen_core.machine.devices import on_device
from eigen_core.machine.pieces import noise_at_once
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.population import Population


class Step(NamedTuple):
    """Inputs that differ from one gradient step of a group to the next.

    Attributes:
        slots: what each agent learns from, int64 `[agents, accumulation steps, batch]`.
        blocks: first day of each batch's block.
        corrections: `bias_corrections` of each optimizer, float32 `[agents, 2]`; None: it takes no step.
        noise: of each purpose and batch, float32 `[agents, batch, ...]`.
    """

    slots: Tensor
    blocks: Sequence[FirstDay]
    corrections: tuple[Tensor | None, ...]
    noise: tuple[tuple[Tensor, ...], ...]

    @property
    def batches(self) -> list[tuple[Tensor, FirstDay]]:
        """Slots, int64 `[agents, batch]`, and block of each batch."""
        return list(zip(self.slots.unbind(1), self.blocks, strict=True))


def take_steps(
    step: Callable[[Step], list[Tensor]],
    group: Population,
    plan: BatchPlan,
    config: Config,
    optimizers: Mapping[str, Sequence[bool]],
    noise: Mapping[str, Sequence[int]],
    between_steps: Callable[[], None],
) -> list[list[Tensor]]:
    """Take all steps of a plan; return what each has returned.

    Args:
        step: takes one, in place, from what differs.
        group: agents.
        plan: of these agents.
        config: whether steps are captured as CUDA graphs.
        optimizers: in which steps each optimizer takes one, by the name of what counts them in the state of `group`.
        noise: shape of the noise of an action, by purpose.
        between_steps: called after each step.
    """
    device = group.weights.device
    slots = plan.slots.to(device)
    blocks: Sequence[Sequence[FirstDay]] = plan.blocks
    if device.type != "cpu":
        # So that a step is the same work for any block.
        blocks = [list(first_days) for first_days in on_device(np.array(plan.blocks), device)]
    draws = [plan.noise(config.seed, purpose, shape, device) for purpose, shape in noise.items()]
    corrections = [count_steps(group, name, moves) for name, moves in optimizers.items()]
    step_bytes = SINGLE * slots[:, 0].numel() * sum(map(prod, noise.values()))
    at_once = noise_at_once(plan.gradient_steps, step_bytes, device.type)
    repeated = CapturedStep(step, device, captures=config.cuda_graphs)
    drawn: list[Tensor] = []
    results = []
    for index, first_days in enumerate(blocks):
        if index % at_once == 0:
            # What was drawn before is freed first: no step keeps its inputs.
            drawn.clear()
            drawn.extend(draw(min(at_once, plan.gradient_steps - index)) for draw in draws)
        results.append(
            repeated(
                Step(
                    slots[:, index],
                    first_days,
                    tuple(optimizer[index] for optimizer in corrections),
                    tuple(of_steps[index % at_once].unbind() for of_steps in drawn),
                )
            )
        )
        between_steps()
    return results


def count_steps(group: Population, name: str, moves: Sequence[bool]) -> list[Tensor | None]:
    """Count the steps of an optimizer beforehand, in the state of this name.

    Args:
        group: agents.
        name: of the steps that each has taken, int64 `[agents]`.
        moves: in which steps it takes one.

    Returns:
        `bias_corrections` in each step, float32 `[agents, 2]`; None where it takes none.
    """
    counts = group.state[name]
    numbers = counts.cpu().numpy() + np.cumsum(moves)[:, None]
    counts.copy_(torch.from_numpy(numbers[-1]))
    moving = iter(bias_corrections(numbers[list(moves)], group.weights.device))
    return [next(moving) if moved else None for moved in moves]
