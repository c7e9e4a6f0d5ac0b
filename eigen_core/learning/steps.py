"""Batches of a generation, their noise, and the gradient steps that take them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import SINGLE
from eigen_core.config import BatchSamplingConfig, Config
from eigen_core.learning.adam import bias_corrections
from eigen_core.learning.interface import learner_settings
from eigen_core.machine.chunk_sizes import noise_at_once
from eigen_core.machine.gpu import CapturedStep, on_device
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.population import Population
from eigen_core.task import BatchSampler, Task
from eigen_core.task.replay import Replay

Draw = Callable[[int], Tensor]
"""Returns new noise for so many gradient steps at each call."""


@dataclass(frozen=True)
class BatchPlan:
    """Which transitions each agent learns from. Implements `LearningPlan`.

    Attributes:
        slots: slots in the replay, int64 `[agents, gradient steps, accumulation steps, batch]`.
        blocks: block of each batch, `[gradient steps][accumulation steps]`.
        earlier_steps: gradient steps of all generations before this one.
        generation: the generation that learns.
        first_agent: index of the first agent in the population.
    """

    slots: Tensor
    blocks: tuple[tuple[int, ...], ...]
    earlier_steps: int = 0
    generation: int = 1
    first_agent: int = 0

    @property
    def gradient_steps(self) -> int:
        """Optimizer steps of each agent."""
        return int(self.slots.shape[1])

    @property
    def accumulation_steps(self) -> int:
        """Batches of an optimizer step."""
        return int(self.slots.shape[2])

    def rows(self, agents: slice) -> "BatchPlan":
        """The plan of consecutive agents."""
        return replace(self, slots=self.slots[agents], first_agent=self.first_agent + agents.start)

    def noise(self, seed: int, purpose: str, shape: Sequence[int], device: torch.device) -> Draw:
        """Return what draws standard normal noise for each action of the batches.

        It is float32 `[gradient steps, accumulation steps, agents, batch, *shape]`. What an agent draws depends on the
        seed, the generation, its index, the purpose and the batches before.
        """
        agents = range(self.first_agent, self.first_agent + len(self.slots))
        generators = [keyed_generator(seed, self.generation, "train", agent, purpose) for agent in agents]

        def draw(steps: int) -> Tensor:
            batches = (steps, self.accumulation_steps, len(generators))
            noise = np.empty((*batches, self.slots.shape[-1], *shape), dtype=np.float32)
            for index in np.ndindex(batches):
                generators[index[-1]].standard_normal(dtype=np.float32, out=noise[index])
            return on_device(noise, device)

        return draw


def draw_batches(
    config: Config, task: Task[Any, Any], replay: Replay, agents: int, generation: int
) -> BatchPlan | None:
    """Draw the batches of a generation; all agents' batches of a step are from the same block.

    None while the replay has fewer transitions than `replay.minimum`, or too few for a batch.
    """
    learner = learner_settings(config, BatchSamplingConfig)
    if learner.gradient_steps == 0 or replay.size < config.replay.minimum:
        return None
    return drawn_batches(config, task.sampler(replay, learner.batch_size), agents, generation)


def drawn_batches(config: Config, sampler: BatchSampler | None, agents: int, generation: int) -> BatchPlan | None:
    """Draw the batches of a generation from a sampler; None without one, and where nothing is to be learned."""
    learner, seed = learner_settings(config, BatchSamplingConfig), config.seed
    if learner.gradient_steps == 0 or sampler is None:
        return None
    batches = (learner.gradient_steps, learner.accumulation_steps)
    blocks = sampler.draw_blocks(keyed_generator(seed, generation, "train", "shared", "blocks"), batches)
    slots = np.empty((agents, *batches, learner.batch_size), dtype=np.int64)
    for agent in range(agents):
        generator = keyed_generator(seed, generation, "train", agent, "batches")
        for step, index in np.ndindex(*batches):
            slots[agent, step, index] = sampler.draw(generator, int(blocks[step, index]))
    return BatchPlan(
        slots=torch.tensor(slots),
        blocks=tuple(tuple(int(block) for block in row) for row in blocks),
        earlier_steps=(generation - 1) * learner.gradient_steps,
        generation=generation,
    )


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
