"""Chunk sizes of computations for settings that are 0: as much at a time as a number of bytes allows.

On a CPU a block of values should stay in the processor's cache, and below the size from which the allocator maps and
unmaps it (`eigen_core.machine.tune_allocator`). On a GPU many small operations cost more than memory, and chunks are
large; they do not depend on the GPU's memory, since bits may depend on groups there.
"""

from typing import NamedTuple

from eigen_core.common.text import BYTES_PER_MB
from eigen_core.config import PopulationConfig


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
# As much as a GPU is sent in some milliseconds: sent at once, more would save no time that could be seen.
_NOISE = _Megabytes(4.0, 64.0)


def columns_at_once(chosen: int, columns: int, column_bytes: int, device: str) -> int:
    """Return how many columns are encoded at a time.

    It does not depend on the agents that are computed together, since gradients are added up column chunk after column
    chunk: their bits must not depend on groups.

    `chosen` is `network.column_chunk` (0: by bytes), `column_bytes` the size of a column in one block of values of one
    agent.
    """
    if chosen:
        return min(chosen, columns)
    return _even(columns, _COLUMNS.on(device), column_bytes)


def agents_at_once(population: PopulationConfig, block_bytes: int, device: str) -> int:
    """Return how many agents are computed at a time, at most; on a CPU no bit depends on it.

    `block_bytes` is the size of the largest block of values that learning from a batch makes for one agent.
    """
    agents = population.size
    if population.group_size:
        return min(population.group_size, agents)
    group = _even(agents, _GROUP.on(device), block_bytes)
    # The products of an agent by itself, and those of its gradients, are divided one by one.
    return max(group, min(agents, 2))


def playing_at_once(population: PopulationConfig, agent_bytes: int, device: str) -> int:
    """Return how many agents play at a time, at most; on a CPU no bit depends on it."""
    if population.group_size:
        return min(population.group_size, population.size)
    return _even(population.size, _PLAYING.on(device), agent_bytes)


def encoded_at_once(
    agents: int, days: int, day_bytes: int, device: str, steps: int, days_before: int
) -> tuple[int, int]:
    """Return how many agents and days are encoded at a time, without a gradient; on a CPU no bit depends on it.

    Args:
        day_bytes: of a day of an agent in the largest block of values.
        steps: days of an episode. More are encoded at a time only if `days_before` is large.
        days_before: days that are computed before the first, whatever the number of days after it; they should be a
            small part of the work, as far as that takes little memory.
    """
    megabytes = _ENCODED.on(device)
    fewest = max(min(_TIMES_BEFORE * days_before, int(_AFTER_MB * BYTES_PER_MB) // day_bytes), 1)
    days = min(days, max(steps, fewest), max(int(megabytes * BYTES_PER_MB) // day_bytes, fewest))
    return _even(agents, megabytes, days * day_bytes), days


def noise_at_once(steps: int, step_bytes: int, device: str) -> int:
    """Return for how many gradient steps of a group noise is drawn at a time; no bit depends on it."""
    return _even(steps, _NOISE.on(device), step_bytes)


def _even(count: int, megabytes: float, each: int) -> int:
    """Return the size of parts of at most `megabytes`, all of about one size: small ones cost as many operations."""
    most = max(int(megabytes * BYTES_PER_MB) // max(each, 1), 1)
    parts = -(-count // most)
    return -(-count // parts)
