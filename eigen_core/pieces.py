"""How much is computed at a time where a setting leaves it open (0): as much as bytes allow.

On a CPU a block of values that an operation makes should stay in the processor's cache, and below the size from which
the allocator maps and unmaps it (`eigen_core.memory.tune_allocator`), which costs a page fault for each page. On a GPU
many small operations cost more than memory does.
"""

import torch

from eigen_core.config import PopulationConfig
from eigen_core.units import BYTES_PER_MB

_COLUMNS_MB_CPU, _COLUMNS_MB_GPU = 2.0, 16.0
_GROUP_MB_CPU = 4.0
_DAYS_MB_CPU = 4.0


def device_kind(wanted: str) -> str:
    """Return `cpu` or `cuda` for the setting `device`."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def columns_at_once(chosen: int, columns: int, column_bytes: int, device: str) -> int:
    """Return how many columns are encoded at a time.

    It does not depend on the agents that are computed together, since gradients are added up column chunk after column
    chunk: their bits must not depend on groups.

    Args:
        chosen: the setting `network.column_chunk`; 0: by bytes.
        columns: of the panel.
        column_bytes: of a column in one block of values of one agent.
        device: the kind of device.
    """
    if chosen:
        return min(chosen, columns)
    megabytes = _COLUMNS_MB_CPU if device == "cpu" else _COLUMNS_MB_GPU
    return _even(columns, megabytes, column_bytes)


def agents_at_once(population: PopulationConfig, block_bytes: int, device: str) -> int:
    """Return how many agents are computed at a time, at most; no bit depends on it.

    Args:
        population: how many agents there are, and `group_size`; 0: by bytes on a CPU, all on a GPU.
        block_bytes: of the largest block of values that learning from a batch makes for one agent.
        device: the kind of device.
    """
    agents = population.size
    if population.group_size or device != "cpu":
        return min(population.group_size or agents, agents)
    return _even(agents, _GROUP_MB_CPU, block_bytes)


def days_at_once(days: int, day_bytes: int, device: str) -> int:
    """Return how many days of an episode are encoded at a time, where each can be by itself; no bit depends on it.

    Args:
        days: of the episode.
        day_bytes: of a day of a group of agents in the largest block of values.
        device: the kind of device.
    """
    return _even(days, _DAYS_MB_CPU, day_bytes) if device == "cpu" else days


def _even(count: int, megabytes: float, each: int) -> int:
    """Return the size of parts that hold at most so much, all of about the same size.

    A last part that is much smaller than the others would cost as many operations as they do.
    """
    most = max(int(megabytes * BYTES_PER_MB) // max(each, 1), 1)
    parts = -(-count // most)
    return -(-count // parts)
