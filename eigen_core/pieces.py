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
    most = max(int(megabytes * BYTES_PER_MB) // column_bytes, 1)
    # All chunks of about the same size: a last one of a few columns costs as many operations as the others.
    chunks = -(-columns // most)
    return -(-columns // chunks)


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
    most = max(int(_GROUP_MB_CPU * BYTES_PER_MB) // max(block_bytes, 1), 1)
    groups = -(-agents // most)
    return -(-agents // groups)
