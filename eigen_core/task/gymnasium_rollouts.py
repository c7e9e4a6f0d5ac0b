"""Episodes of Gymnasium environments for a group of agents: one environment for each agent and episode, side by side.

The environments are stepped one after another; the actions of a step are computed for all of them at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.task.gymnasium_environment import Environment, OpenedEnvironment
from eigen_core.task.replay import Column

Act = Callable[[NDArray[np.float32], int], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Observations `[episodes, values]` and the number of their step to actions, and what is stored of them, `[episodes,
values]`."""


def gymnasium_columns(observation_values: int, action_values: int) -> dict[str, Column]:
    """Return what a stored transition consists of.

    An episode's last step has `ends`, and `terminal` too unless it was the limit of steps that ended it.
    """
    return {
        "observation": Column(torch.float32, (observation_values,)),
        "next_observation": Column(torch.float32, (observation_values,)),
        "action": Column(torch.float32, (action_values,)),
        "reward": Column(torch.float32),
        "terminal": Column(torch.bool),
        "ends": Column(torch.bool),
    }


@dataclass(frozen=True)
class Episodes:
    """Episodes of unequal length, `[episodes, most steps, ...]`; what lies behind an episode's end means nothing.

    Attributes:
        observations: float32 `[episodes, most steps + 1, values]`, the last one included.
        actions: what is stored of them, float32 `[episodes, most steps, values]`.
        rewards: float64 `[episodes, most steps]`; zeros behind the end.
        lengths: int64 `[episodes]`.
        terminated: bool `[episodes]`, the episode came to an end of its own, not to its limit of steps.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]

    def rows(self) -> dict[str, NDArray[np.generic]]:
        """Return the transitions in the order of episodes and steps: the columns of the replay, `[rows, ...]`."""
        steps = np.arange(self.rewards.shape[1])
        played = steps < self.lengths[:, None]
        ends = steps == self.lengths[:, None] - 1
        return {
            "observation": self.observations[:, :-1][played],
            "next_observation": self.observations[:, 1:][played],
            "action": self.actions[played],
            "reward": self.rewards[played].astype(np.float32),
            "terminal": (ends & self.terminated[:, None])[played],
            "ends": ends[played],
        }


class EnvironmentPool:
    """Environments that are made once and reset with a seed for each episode, so that none remembers an earlier one."""

    def __init__(self, opened: OpenedEnvironment) -> None:
        self._opened = opened
        self._environments: list[Environment] = []

    def play(self, seeds: NDArray[np.int64], act: Act) -> Episodes:
        """Play one episode for each seed of a reset, int64 `[episodes]`.

        Raises:
            FloatingPointError: an observation or a reward is not finite.
        """
        opened, count = self._opened, len(seeds)
        while len(self._environments) < count:
            self._environments.append(opened.make())
        most = opened.episode_steps
        observations = np.zeros((count, most + 1, opened.observation_values), dtype=np.float32)
        actions = np.zeros((count, most, len(opened.low)), dtype=np.float32)
        rewards = np.zeros((count, most), dtype=np.float64)
        lengths = np.full(count, most, dtype=np.int64)
        terminated = np.zeros(count, dtype=np.bool_)
        for index, seed in enumerate(seeds.tolist()):
            observations[index, 0] = np.ravel(self._environments[index].reset(seed=seed)[0])
            if not np.isfinite(observations[index, 0]).all():
                raise FloatingPointError(_not_finite(opened, seed, 0, 0.0, observations[index, 0]))
        playing = list(range(count))
        for step in range(most):
            if not playing:
                break
            # Of all episodes, also those that have ended: equal shapes, so equal bits.
            taken, actions[:, step] = act(observations[:, step], step)
            played = opened.played(taken)
            for index in tuple(playing):
                observed, reward, terminal, truncated, _ = self._environments[index].step(played[index])
                observations[index, step + 1] = np.ravel(observed)
                rewards[index, step] = reward
                if not (math.isfinite(reward) and np.isfinite(observations[index, step + 1]).all()):
                    raise FloatingPointError(_not_finite(opened, seeds[index], step + 1, float(reward), observed))
                if terminal or truncated:
                    lengths[index], terminated[index] = step + 1, terminal
                    playing.remove(index)
        return Episodes(observations, actions, rewards, lengths, terminated)


def _not_finite(opened: OpenedEnvironment, seed: int, step: int, reward: float, observed: object) -> str:
    values = np.ravel(observed)  # type: ignore[call-overload] # whatever the environment gave
    wrong = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
    what = f"the observed value {values[wrong[0]]} (number {wrong[0]})" if len(wrong) else f"the reward {reward}"
    where = f"step {step} of the episode with seed {seed}" if step else f"reset(seed={seed})"
    return f"Environment {opened.name} gave {what}, which is not finite, in {where}."
