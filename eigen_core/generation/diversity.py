"""How different the policies of a population are."""

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.common.randomness import keyed_generator
from eigen_core.generation.state import TrainingState
from eigen_core.networks.population import agent_groups

COMPARED = 16
"""Stored observations on which the actions of all agents are compared."""


@torch.no_grad()
def policy_distance(state: TrainingState) -> float | None:
    """Return the mean distance of the actions that two agents play without noise on the same stored observations.

    The distance of two actions is the mean of the absolute differences of their values, as fractions of a value's range
    (of 1 where it has none). None while too little is stored.
    """
    task, replay, config = state.task, state.replay, state.config
    task.state = state.learning_task_state
    sampler = task.sampler(replay, COMPARED)
    if sampler is None or replay.size < COMPARED:
        return None
    generator = keyed_generator(config.seed, state.generation + 1, "evolve", "population", "observations")
    block = int(sampler.draw_blocks(generator, (1,))[0])
    slots = torch.tensor(sampler.draw(generator, block), device=state.device)
    played = []
    for agents in agent_groups(state.population.size, state.group_size):
        weights, critic = state.population.weights[agents], task.critic_layout.size
        observations = task.transitions(replay, slots.expand(len(weights), -1), block).observations
        encoding = task.encode(task.critic_layout.views(weights[:, :critic]), observations)
        actions = task.policy(task.actor_layout.views(weights[:, critic:]), encoding).mode
        played.append(task.box.fractions(actions).flatten(1).cpu().numpy())
    return mean_distance(np.concatenate(played))


def mean_distance(points: NDArray[np.float32]) -> float:
    """Return the mean absolute difference of the values of two different rows, over all pairs of `[rows, values]`.

    In a sorted column of n values the k-th, from 0, is the larger one of k pairs and the smaller one of n - 1 - k.
    """
    count = len(points)
    times = 2.0 * np.arange(count) - (count - 1)
    differences = (times[:, None] * np.sort(points.astype(np.float64), axis=0)).sum(axis=0)
    return float(differences.mean() / (count * (count - 1) / 2))
