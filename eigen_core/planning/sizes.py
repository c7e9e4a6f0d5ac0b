"""Sizes of a run that are known before it computes: data, agents, transitions (rows of the replay buffer), files."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, Self

import torch

from eigen_core.checkpoint.run_contents import kept_generations
from eigen_core.checkpoint.store_location import is_remote
from eigen_core.common.errors import InputError
from eigen_core.common.text import size
from eigen_core.config import Config
from eigen_core.learning import learner_class, method_class
from eigen_core.machine.allocation import owned_bytes
from eigen_core.machine.reproducibility import compute_reproducibly
from eigen_core.task import task_class
from eigen_core.task.interface import TaskData
from eigen_core.task.replay import Column

Device = Literal["cpu", "cuda"]

# Half of a process's address space on 64-bit Linux (bytes).
_MOST_ADDRESSES = 1 << 46


class Memory(NamedTuple):
    """Memory on the host and on a GPU (bytes)."""

    host: int = 0
    device: int = 0

    def plus(self, other: "Memory") -> "Memory":
        return Memory(self.host + other.host, self.device + other.device)

    def excess_over(self, other: "Memory") -> "Memory":
        """Return this memory less `other`, at least 0."""
        return Memory(max(self.host - other.host, 0), max(self.device - other.device, 0))

    def times(self, share: float) -> "Memory":
        return Memory(int(self.host * share), int(self.device * share))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run that can be counted.

    Attributes:
        device: where its tensors will be; this machine may lack the GPU.
        data_bytes: size of all tensors and arrays of data and task.
        parameters: number of weights of one agent.
        agent_bytes: size of an agent's weights and of the learner's state for it.
        row_bytes, float_bytes, column_bytes: sizes of a stored transition, its float32 values, its largest field.
        episode_steps: number of steps of the longest episode.
        metadata_bytes: size of the JSON of `task.metadata()` in each checkpoint.
        learning_agents: number of agents that learn by gradients.
    """

    config: Config
    device: Device
    data_bytes: int
    parameters: int
    agent_bytes: int
    row_bytes: int
    float_bytes: int
    column_bytes: int
    episode_steps: int
    metadata_bytes: int
    learning_agents: int

    @classmethod
    def of(cls, config: Config, data: TaskData) -> Self:
        """Count the sizes of a run on its data, with a task built on the CPU.

        `InputError` if the task refuses configuration or data, or the replay needs more addresses than a process has.
        """
        cpu = torch.device("cpu")
        compute_reproducibly(config.instructions, cpu)
        learning = learner_class(config.learner)
        task = task_class(config)(config, data.content, cpu, learning.heads(config))
        parameters = task.critic_layout.size + task.actor_layout.size
        agents = range(config.population.size)[method_class(config.evolution).learning(config)]
        gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
        found = cls(
            config=config,
            device="cuda" if gpu else "cpu",
            data_bytes=owned_bytes((data.content, task)),
            parameters=parameters,
            agent_bytes=learning(config, task).new_agents(torch.zeros(1, parameters)).nbytes,
            row_bytes=sum(map(_column_bytes, task.columns.values())),
            float_bytes=sum(_column_bytes(column) for column in task.columns.values() if column.dtype == torch.float32),
            column_bytes=max(map(_column_bytes, task.columns.values())),
            episode_steps=task.episode_steps,
            metadata_bytes=len(json.dumps(task.metadata())),
            learning_agents=len(agents) if config.learner.learns else 0,
        )
        addresses = config.replay.capacity * found.row_bytes
        if addresses > _MOST_ADDRESSES:
            raise InputError(
                f"replay.capacity {config.replay.capacity:,} needs {size(addresses)} of address space, and a process "
                f"has {size(_MOST_ADDRESSES)} at most: lower it. This run appends {found.rows_written:,} transitions."
            )
        return found

    @property
    def rows_per_generation(self) -> int:
        """Largest number of transitions that a generation appends to the replay."""
        return self.config.population.size * self.config.evaluation.slices * self.episode_steps

    @property
    def rows_written(self) -> int:
        """Transitions that the whole run appends to the replay."""
        return self.rows_per_generation * self.config.generations

    @property
    def rows_stored(self) -> int:
        """Transitions in the replay at the run's end."""
        return min(self.rows_written, self.config.replay.capacity)

    @property
    def replay_bytes(self) -> int:
        return self.rows_stored * self.row_bytes

    @property
    def nonresident_bytes(self) -> int:
        """Bytes of replay addresses that never become resident: unfilled slots, and a buffer that a resume replaces."""
        row = self.row_bytes if self.device == "cpu" else torch.float32.itemsize
        return (2 * self.config.replay.capacity - self.rows_stored) * row

    @property
    def champion_bytes(self) -> int:
        return self.parameters * torch.float32.itemsize

    @property
    def population_bytes(self) -> int:
        return self.agent_bytes * self.config.population.size

    def tensors(self, amount: int) -> Memory:
        """Return the memory of `amount` bytes of tensors of the run's computations: on its GPU, or else on the host."""
        return Memory(device=amount) if self.device == "cuda" else Memory(host=amount)


def _column_bytes(column: Column) -> int:
    return column.dtype.itemsize * prod(column.shape)


# Size of float32 and of other columns of the replay, compressed (zstd or gzip), as a share; from preset quickstart.
_FLOATS_LEFT = 0.74
_OTHERS_LEFT = 0.15

_RECORD_BYTES_AN_AGENT = 152
_RECORD_BYTES = 220
_FIXED_BYTES = 10_000
_PLOT_PAGE_BYTES = 240_000


@dataclass(frozen=True)
class DiskPlan:
    """Bytes that a run writes.

    Attributes:
        checkpoint_bytes: checkpoint of a generation, on average over the run.
        run_bytes: the finished run in its store, with the generations that retention (`checkpoint.keep_last`) keeps.
        most_bytes: largest size while it trains, with one generation more than retention keeps.
        local_bytes: largest size of the files on this machine if the store is remote; otherwise 0.
        upload_bytes: all uploads to a remote store; otherwise 0.
    """

    checkpoint_bytes: int
    run_bytes: int
    most_bytes: int
    local_bytes: int
    upload_bytes: int

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        settings, last, rows = sizes.config.checkpoint, sizes.config.generations, sizes.rows_per_generation
        others = sizes.row_bytes - sizes.float_bytes
        shard = int(rows * (_FLOATS_LEFT * sizes.float_bytes + _OTHERS_LEFT * others))
        fixed = sizes.population_bytes + sizes.champion_bytes + _FIXED_BYTES + sizes.metadata_bytes
        growth = _RECORD_BYTES_AN_AGENT * sizes.config.population.size + _RECORD_BYTES

        def stored(generations: Collection[int]) -> int:
            """Return the size of the files of `generations`; a shard (one generation's transitions) counts once."""
            shards = newest = 0
            for generation in sorted(generations):
                before = max(generation * rows - sizes.config.replay.capacity, 0) // rows
                shards += generation - max(before, newest)
                newest = generation
            return len(generations) * fixed + sum(generations) * growth + shards * shard

        def retained(newest: int) -> int:
            """Return the run's size at its end: `newest` last generations, and generation 1 for the champion."""
            whole = range(last, max(last - newest, 0), -1)
            kept = kept_generations(range(1, last + 1), whole, settings.keep_every, 1)
            return stored(kept) + _PLOT_PAGE_BYTES

        written = last * (fixed + shard) + growth * last * (last + 1) // 2
        remote = is_remote(settings.store)
        waiting = min(settings.queue_generations + settings.keep_local, last)
        pages = -(-last // (sizes.config.reporting.plot_every or last))
        return cls(
            checkpoint_bytes=written // last,
            run_bytes=retained(settings.keep_last),
            most_bytes=retained(settings.keep_last + 1),
            local_bytes=remote * stored(range(last - waiting + 1, last + 1)),
            upload_bytes=remote * (written + pages * _PLOT_PAGE_BYTES),
        )
