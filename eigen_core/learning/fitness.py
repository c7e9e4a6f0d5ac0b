"""The champion (the agent with the best score so far), and fitness and scores from the rewards of agents' episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config.learning import EvaluationConfig


@dataclass(frozen=True)
class Champion:
    """The agent with the best score so far.

    Attributes:
        weights: float32 `[parameters]`, those that played the validation episodes, before the agent learned further.
        validation: mean reward of its `evaluation.validation_lowest` worst validation episodes.
        score: see `EvaluationConfig.champion_validation_share`.
        generation, agent: the generation that found it, and its index in that generation's population.
        task_state: `Task.state`, the moments that normalised its observations in that generation.
    """

    weights: Tensor
    validation: float
    score: float
    generation: int
    agent: int
    task_state: Mapping[str, Tensor] = field(default_factory=dict)


def fitness_and_scores(
    evaluation: EvaluationConfig,
    with_noise: NDArray[np.float64] | None,
    noise_free: NDArray[np.float64],
    starts: NDArray[np.int64],
    episode_steps: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return fitness, validation fitness and score of each agent: float64 `[agents]` each.

    Args:
        with_noise: rewards of the training episodes, float64 `[agents, episodes]`; None if actions were random.
        noise_free: rewards of the `evaluation.fitness_slices` fitness episodes, then of the validation episodes.
        starts: start of each episode of `noise_free` (first day, or seed), int64 `[episodes]`.
        episode_steps: steps of an episode at its full length.
    """
    slices = evaluation.fitness_slices
    validations = mean_of_lowest(noise_free[:, slices:], evaluation.validation_lowest)
    fitness = validations
    if slices:
        fitness = noise_free[:, :slices].mean(axis=1)
    elif with_noise is not None:
        fitness = mean_of_lowest(with_noise, evaluation.lowest)
    share, scores = evaluation.champion_validation_share, validations
    if share < 1.0:
        scores = share * validations + (1.0 - share) * fitness
    if evaluation.champion_standard_errors:
        squares = (share * standard_errors(noise_free[:, slices:], starts[slices:], episode_steps)) ** 2
        if share < 1.0:
            squares += ((1.0 - share) * standard_errors(noise_free[:, :slices], starts[:slices], episode_steps)) ** 2
        scores = scores - evaluation.champion_standard_errors * np.sqrt(squares)
    return fitness, validations, scores


def mean_of_lowest(rewards: NDArray[np.float64], lowest: int) -> NDArray[np.float64]:
    """Return the mean of the `lowest` smallest rewards of each agent: float64 `[agents, episodes]` -> `[agents]`."""
    means: NDArray[np.float64] = np.sort(rewards, axis=1)[:, :lowest].mean(axis=1)
    return means


def spread_starts(starts: Sequence[int], slices: int) -> NDArray[np.int64]:
    """Return the starts of `slices` episodes (first days, or seeds), spread evenly over `starts`: int64 `[slices]`."""
    if isinstance(starts, range):
        return np.linspace(starts[0], starts[-1], slices).round().astype(np.int64)
    places = np.linspace(0, len(starts) - 1, slices).round().astype(np.int64)
    return np.asarray(starts, dtype=np.int64)[places]


def standard_errors(rewards: NDArray[np.float64], starts: NDArray[np.int64], episode_steps: int) -> NDArray[np.float64]:
    """Return the standard error of the mean reward of each agent over episodes that may overlap.

    If the rewards of single days are independent and alike, two episodes of T days whose starts differ by d correlate
    by r = max(0, 1 - d / T). With R the mean of r over all pairs of episodes, an episode with itself included, and v
    the variance of an episode, the mean has the variance v R, and the mean squared deviation from the mean has the
    expectation v (1 - R). So the squared error is this deviation times R / (1 - R), the usual one without overlap.

    `rewards` are float64 `[agents, episodes]`, `starts` the episodes' first days, int64 `[episodes]`; `episode_steps`
    is T. The errors, `[agents]`, are 0 if all episodes begin on the same day, from which none can be estimated.
    """
    correlations = np.clip(1.0 - np.abs(starts[:, None] - starts) / episode_steps, 0.0, None)
    shared = float(correlations.mean())
    if (starts == starts[0]).all():
        return np.zeros(len(rewards))
    errors: NDArray[np.float64] = np.sqrt(rewards.var(axis=1) * shared / (1.0 - shared))
    return errors
