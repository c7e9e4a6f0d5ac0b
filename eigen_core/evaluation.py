"""What rewards say of agents: fitness and validation."""

import numpy as np
from numpy.typing import NDArray


def mean_of_lowest(rewards: NDArray[np.float64], lowest: int) -> NDArray[np.float64]:
    """Mean of the `lowest` smallest rewards of each agent: float64 `[agents, slices]` -> `[agents]`."""
    means: NDArray[np.float64] = np.sort(rewards, axis=1)[:, :lowest].mean(axis=1)
    return means


def spread_starts(starts: range, slices: int) -> NDArray[np.int64]:
    """First days of `slices` episodes spread evenly over the admissible days `starts`."""
    return np.linspace(starts[0], starts[-1], slices).round().astype(np.int64)
