"""Fitness and validation from rewards, and the score by which the champion is chosen."""

import numpy as np
from numpy.typing import NDArray


def mean_of_lowest(rewards: NDArray[np.float64], lowest: int) -> NDArray[np.float64]:
    """Mean of the `lowest` smallest rewards of each agent: float64 `[agents, slices]` -> `[agents]`."""
    means: NDArray[np.float64] = np.sort(rewards, axis=1)[:, :lowest].mean(axis=1)
    return means


def spread_starts(starts: range, slices: int) -> NDArray[np.int64]:
    """First days of `slices` episodes spread evenly over the admissible days `starts`."""
    return np.linspace(starts[0], starts[-1], slices).round().astype(np.int64)


def standard_errors(rewards: NDArray[np.float64], starts: NDArray[np.int64], episode_steps: int) -> NDArray[np.float64]:
    """Standard error of the mean reward of each agent over episodes that may overlap.

    If the rewards of single days are independent and alike, two episodes of T days whose starts differ by d correlate
    by r = max(0, 1 - d / T). With R the mean of r over all pairs of episodes, an episode with itself included, and v
    the variance of an episode, the mean has the variance v R, and the mean squared deviation from the mean the
    expectation v (1 - R): the squared error is the one times R / (1 - R). Without overlap that is the usual error.

    Args:
        rewards: float64 `[agents, slices]`.
        starts: first step of each episode, int64 `[slices]`.
        episode_steps: T.

    Returns:
        float64 `[agents]`; 0 where all episodes are the same one, which says nothing of its error.
    """
    correlations = np.clip(1.0 - np.abs(starts[:, None] - starts) / episode_steps, 0.0, None)
    shared = float(correlations.mean())
    if (starts == starts[0]).all():
        return np.zeros(len(rewards))
    errors: NDArray[np.float64] = np.sqrt(rewards.var(axis=1) * shared / (1.0 - shared))
    return errors
