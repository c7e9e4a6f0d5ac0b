"""Performance: automatic chunk sizes and numbers of threads.

A chunk is what is computed at a time: columns, or a group of agents. A chunk size of 0 in the settings means: as many
as fit into a fixed number of bytes. On a CPU an intermediate tensor should fit into the processor's cache, and be
smaller than those that the allocator maps and unmaps (`memory_usage.tune_allocator`). On a GPU small operations
are slow, so chunks are large; they do not depend on the GPU's memory, since bits may depend on groups there.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from eigen_core.common.text import BYTES_PER_MB
from eigen_core.config import PopulationConfig
from eigen_core.machine.limits import control_groups

logger = logging.getLogger(__name__)


class _Megabytes(NamedTuple):
    cpu: float
    gpu: float

    def on(self, device: str) -> float:
        return self.cpu if device == "cpu" else self.gpu


_COLUMNS = _Megabytes(2.0, 16.0)
_GROUP = _Megabytes(4.0, 1_024.0)
_PLAYING = _Megabytes(96.0, 2_048.0)
_ENCODED = _Megabytes(4.0, 256.0)
_TIMES_BEFORE, _AFTER_MB = 8, 64.0
# Copied to a GPU in some milliseconds: larger copies would save no measurable time.
_NOISE = _Megabytes(4.0, 64.0)


def columns_at_once(chosen: int, columns: int, column_bytes: int, device: str) -> int:
    """Return how many columns (symbols) are encoded at a time.

    The number does not depend on how many agents are computed together: gradients are summed chunk by chunk, and their
    bits must not depend on groups of agents. `chosen` is `network.column_chunk` (0: automatic), `column_bytes` the size
    of one column of one agent in an intermediate tensor.
    """
    if chosen:
        return min(chosen, columns)
    return _even(columns, _COLUMNS.on(device), column_bytes)


def agents_at_once(population: PopulationConfig, block_bytes: int, device: str) -> int:
    """Return how many agents at most learn at a time; on a CPU no bit of the results depends on it.

    `block_bytes` is the size of one agent's largest intermediate tensor in learning from a batch.
    """
    agents = population.size
    if population.group_size:
        return min(population.group_size, agents)
    group = _even(agents, _GROUP.on(device), block_bytes)
    # Threads share the agents of a group; with one agent they would have to share each single product.
    return max(group, min(agents, 2))


def playing_at_once(population: PopulationConfig, agent_bytes: int, device: str) -> int:
    """Return how many agents of `agent_bytes` each at most play at a time; on a CPU no bit depends on it."""
    if population.group_size:
        return min(population.group_size, population.size)
    return _even(population.size, _PLAYING.on(device), agent_bytes)


def encoded_at_once(
    agents: int, days: int, day_bytes: int, device: str, steps: int, days_before: int
) -> tuple[int, int]:
    """Return how many agents and days are encoded at a time, without a gradient; on a CPU no bit depends on it.

    Args:
        agents, days: numbers of all agents and days to encode.
        day_bytes: size of one day of one agent in the largest intermediate tensor.
        steps: days of an episode. More are encoded at a time only if `days_before` is large.
        days_before: days that each chunk computes additionally, before its first day; as far as memory allows, chunks
            are so long that these are a small part of the work.
    """
    megabytes = _ENCODED.on(device)
    fewest = max(min(_TIMES_BEFORE * days_before, int(_AFTER_MB * BYTES_PER_MB) // day_bytes), 1)
    days = min(days, max(steps, fewest), max(int(megabytes * BYTES_PER_MB) // day_bytes, fewest))
    return _even(agents, megabytes, days * day_bytes), days


def noise_at_once(steps: int, step_bytes: int, device: str) -> int:
    """Return for how many of a group's `steps` (gradient steps) noise is drawn at a time; no bit depends on it."""
    return _even(steps, _NOISE.on(device), step_bytes)


def _even(count: int, megabytes: float, each: int) -> int:
    """Return how many of `count` items, of `each` bytes, form a chunk of at most `megabytes`, at least one.

    Chunks are nearly equal, since a small last one would need as many operations as a full one.
    """
    most = max(int(megabytes * BYTES_PER_MB) // max(each, 1), 1)
    parts = -(-count // most)
    return -(-count // parts)


# Timed steps with each number of threads; the first one only warms up.
_TIMED_STEPS = 6


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many processor cores this process may use, by its affinity and its control groups; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = (group.cores() for group in control_groups(root, "cpu"))
    return min([cores, *(math.ceil(share) for share in given if share is not None)])


@contextmanager
def computing_threads(chosen: int) -> Iterator[None]:
    """Let torch compute with `chosen` threads in the block; 0: as many as before, but at most one for each usable core.

    The number of threads is restored afterwards.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(chosen or min(before, usable_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadTrial:
    """Times gradient steps with all of torch's threads and with one by turns, and then keeps the faster number.

    Call `begin` before a group of agents learns, and `step` after each of its steps. Results do not depend on it. It
    compares the shortest times: a busy machine makes steps longer, never shorter.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        most = torch.get_num_threads()
        self._clock = clock
        self._took: dict[int, list[float]] = {most: [], 1: []}
        self._chosen = most == 1
        self._began = 0.0

    def begin(self) -> None:
        self._began = self._clock()

    def step(self) -> None:
        """Record the end of a step, and set the number of threads of the next one."""
        if self._chosen:
            return
        now = self._clock()
        self._took[torch.get_num_threads()].append(now - self._began)
        # By turns: other load of the machine makes steps of all counts longer.
        fewest = min(self._took, key=lambda count: len(self._took[count]))
        if len(self._took[fewest]) < _TIMED_STEPS:
            torch.set_num_threads(fewest)
        else:
            self._choose()
        self._began = self._clock()

    def _choose(self) -> None:
        least = {count: min(took[1:]) for count, took in self._took.items()}
        best = min(least, key=lambda count: (least[count], count))
        torch.set_num_threads(best)
        self._chosen = True
        most, one = (1e3 * seconds for seconds in least.values())
        times = f"{most:.1f} ms with {max(least)} threads and {one:.1f} ms with one"
        logger.info("threads: %d, since a gradient step takes %s", best, times)
