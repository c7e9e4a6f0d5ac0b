"""Sizes of a run that are known before it computes: data, agents, transitions, files."""

import json
from dataclasses import dataclass
from math import prod

import torch

from eigen_core.checkpoint.run_contents import kept_generations
from eigen_core.checkpoint.store import is_remote
from eigen_core.config import Config
from eigen_core.learning import learner_class, method_class
from eigen_core.machine.allocation import owned_bytes
from eigen_core.machine.arithmetic import compute_reproducibly
from eigen_core.task import TaskData, task_class
from eigen_core.task.replay import Column


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run that can be counted.

    Attributes:
        data_bytes: tensors and arrays of data and task.
        parameters: weights of one agent.
        agent_bytes: an agent's weights and the learner's state for it.
        row_bytes, float_bytes, column_bytes: a stored transition; its float32 values; its largest column.
        facts_bytes: the JSON of `task.facts()` in each checkpoint.
        learning_agents: agents that learn by gradients.
    """

    config: Config
    data_bytes: int
    parameters: int
    agent_bytes: int
    row_bytes: int
    float_bytes: int
    column_bytes: int
    episode_steps: int
    facts_bytes: int
    learning_agents: int

    @classmethod
    def of(cls, config: Config, data: TaskData) -> "Sizes":
        """Count the sizes of a run on its data, with a task built on the CPU.

        Raises `InputError` if configuration and data do not agree.
        """
        device = torch.device("cpu")
        compute_reproducibly(config.instructions, device)
        learning = learner_class(config.learner)
        task = task_class(config)(config, data.content, device, learning.heads(config))
        parameters = task.critic_layout.size + task.actor_layout.size
        agent = learning(config, task).new_agents(torch.zeros(1, parameters))
        columns = [_column_bytes(column) for column in task.columns.values()]
        agents = range(config.population.size)[method_class(config.evolution).learning(config)]
        return cls(
            config=config,
            data_bytes=owned_bytes((data.content, task)),
            parameters=parameters,
            agent_bytes=agent.nbytes,
            row_bytes=sum(columns),
            float_bytes=sum(_column_bytes(held) for held in task.columns.values() if held.dtype == torch.float32),
            column_bytes=max(columns),
            episode_steps=task.episode_steps,
            facts_bytes=len(json.dumps(task.facts())),
            learning_agents=len(agents) if config.learner.learns else 0,
        )

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
    def champion_bytes(self) -> int:
        return self.parameters * torch.float32.itemsize

    @property
    def population_bytes(self) -> int:
        return self.agent_bytes * self.config.population.size


def _column_bytes(column: Column) -> int:
    return column.dtype.itemsize * prod(column.shape)


# Compressed size of the replay's columns as a share (zstd or gzip), measured on runs of preset quickstart.
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
        run_bytes: the finished run in its store, with the generations that retention keeps.
        most_bytes: largest size while it trains, with one generation more.
        local_bytes: largest size on this machine if the store is remote; otherwise 0.
        upload_bytes: all uploads to a remote store; otherwise 0.
    """

    checkpoint_bytes: int
    run_bytes: int
    most_bytes: int
    local_bytes: int
    upload_bytes: int


def disk_plan(config: Config, sizes: Sizes) -> DiskPlan:
    settings, last = config.checkpoint, config.generations
    checkpoints = [_files_bytes(sizes, generation) + _shard_bytes(sizes) for generation in range(1, last + 1)]
    local = upload = 0
    if is_remote(settings.store):
        waiting = min(settings.queue_generations + settings.keep_local, last)
        local = _size_of_generations(sizes, set(range(last - waiting + 1, last + 1)))
        upload = sum(checkpoints) + _plot_pages(sizes) * _PLOT_PAGE_BYTES
    return DiskPlan(
        checkpoint_bytes=sum(checkpoints) // last,
        run_bytes=_size_of_generations(sizes, _retained_generations(sizes, settings.keep_last)) + _PLOT_PAGE_BYTES,
        most_bytes=_size_of_generations(sizes, _retained_generations(sizes, settings.keep_last + 1)) + _PLOT_PAGE_BYTES,
        local_bytes=local,
        upload_bytes=upload,
    )


def _shard_bytes(sizes: Sizes) -> int:
    """Return the compressed size of a generation's new transitions (bytes)."""
    others = sizes.row_bytes - sizes.float_bytes
    return int(sizes.rows_per_generation * (_FLOATS_LEFT * sizes.float_bytes + _OTHERS_LEFT * others))


def _files_bytes(sizes: Sizes, generation: int) -> int:
    """Return the size of a generation's files without replay: population, champion, records so far, manifest."""
    records = generation * (_RECORD_BYTES_AN_AGENT * sizes.config.population.size + _RECORD_BYTES)
    return sizes.population_bytes + sizes.champion_bytes + records + _FIXED_BYTES + sizes.facts_bytes


def _retained_generations(sizes: Sizes, newest: int) -> set[int]:
    """Return the generations kept at the run's end, if the champion is from generation 1."""
    last = sizes.config.generations
    every = sizes.config.checkpoint.keep_every
    whole = range(last, max(last - newest, 0), -1)
    return kept_generations(range(1, last + 1), whole, every, 1)


def _size_of_generations(sizes: Sizes, kept: set[int]) -> int:
    """Return the size of generations: the files of each, and once each replay shard that any of them needs (bytes)."""
    shards = set().union(*(_shards_of(sizes, generation) for generation in kept))
    return sum(_files_bytes(sizes, generation) for generation in kept) + len(shards) * _shard_bytes(sizes)


def _shards_of(sizes: Sizes, generation: int) -> set[int]:
    """Return the training generations whose transitions are in the replay at the end of training `generation`."""
    written = generation * sizes.rows_per_generation
    oldest = max(written - sizes.config.replay.capacity, 0)
    return set(range(oldest // sizes.rows_per_generation + 1, generation + 1))


def _plot_pages(sizes: Sizes) -> int:
    every, last = sizes.config.reporting.plot_every, sizes.config.generations
    return (last // every if every else 0) + (0 if every and last % every == 0 else 1)
