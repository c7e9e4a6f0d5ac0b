"""The batches that agents learn from, drawn before any of them learns, and the noise they learn with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import BatchSamplingConfig, Config
from eigen_core.learners.settings import learner_settings
from eigen_core.machine.devices import on_device
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
