"""One TD3 agent in a single file, as it is usually written: `torch.nn`, `torch.optim.Adam`, one environment.

Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1. It stands for single-file implementations such as CleanRL's, whose
scripts need other releases of gymnasium and torch.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from eigen_core.config import Config, Td3Config
from eigen_core.learners.settings import learner_settings
from eigen_core.randomness import keyed_generator
from eigen_core.task.gymnasium_environment import OpenedEnvironment


def _mlp(inputs: int, width: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    layers = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
    return nn.Sequential(*layers, *last)


class PlainTd3:
    """One agent with its environment, replay buffer and networks.

    Args:
        config: networks, replay, learner, exploration.
        opened: the environment.
        agent: names its random numbers.
    """

    def __init__(self, config: Config, opened: OpenedEnvironment, agent: int) -> None:
        observed, acted, width = opened.observation_values, len(opened.low), config.network.head_width
        self._learner, self._scale = learner_settings(config, Td3Config), 2.0 * config.exploration.scale
        self._environment, self._episode_steps = opened.make(), opened.episode_steps
        self._middle, self._half = (opened.high + opened.low) / 2.0, (opened.high - opened.low) / 2.0
        self._generator = keyed_generator(config.seed, 0, "benchmarks", "plain td3", agent)
        self._actor = _mlp(observed, width, acted, nn.Tanh())
        self._critics = [_mlp(observed + acted, width, 1) for _ in range(2)]
        self._target_actor, self._target_critics = deepcopy(self._actor), deepcopy(self._critics)
        self._actor_optimizer = torch.optim.Adam(self._actor.parameters(), lr=self._learner.actor_learning_rate)
        critic_weights = [weight for critic in self._critics for weight in critic.parameters()]
        self._critic_optimizer = torch.optim.Adam(critic_weights, lr=self._learner.critic_learning_rate)
        rows = config.replay.capacity
        self._observations = np.zeros((rows, observed), dtype=np.float32)
        self._next_observations = np.zeros((rows, observed), dtype=np.float32)
        self._actions = np.zeros((rows, acted), dtype=np.float32)
        self._rewards, self._terminals = np.zeros((rows, 1), dtype=np.float32), np.zeros((rows, 1), dtype=np.float32)
        self._rows = self._updates = 0

    def run(self, steps: int, playing: Callable[[], AbstractContextManager[None]]) -> None:
        """Play an episode, with an update after each step; playing is done inside of `playing()`."""
        with playing():
            observation = self._environment.reset()[0]
        for _ in range(steps):
            with playing():
                observation, ended = self._step(observation)
                if ended:
                    observation = self._environment.reset()[0]
            self._update()

    def _step(self, observation: np.ndarray) -> tuple[np.ndarray, bool]:
        with torch.no_grad():
            action = self._actor(torch.as_tensor(observation, dtype=torch.float32)[None])[0].numpy()
        noisy = action + self._generator.normal(0.0, self._scale, len(action))
        action = np.clip(noisy, -1.0, 1.0).astype(np.float32)
        following, reward, terminal, truncated, _ = self._environment.step(self._middle + self._half * action)
        row = self._rows % len(self._rewards)
        self._observations[row], self._next_observations[row] = observation, following
        self._actions[row], self._rewards[row], self._terminals[row] = action, reward, terminal
        self._rows += 1
        return following, bool(terminal or truncated)

    def _update(self) -> None:
        learner = self._learner
        rows = self._generator.integers(0, min(self._rows, len(self._rewards)), learner.batch_size)
        columns = (self._observations, self._next_observations, self._actions, self._rewards, self._terminals)
        observations, following, actions, rewards, terminals = (torch.as_tensor(column[rows]) for column in columns)
        with torch.no_grad():
            clip = 2.0 * learner.target_noise_clip
            noise = torch.as_tensor(self._generator.standard_normal(actions.shape, dtype=np.float32))
            noise = (noise * 2.0 * learner.target_noise).clamp(-clip, clip)
            inputs = torch.cat([following, (self._target_actor(following) + noise).clamp(-1.0, 1.0)], dim=1)
            values = torch.minimum(*(critic(inputs) for critic in self._target_critics))
            goals = rewards + (1.0 - terminals) * learner.gamma * values
        inputs = torch.cat([observations, actions], dim=1)
        critic_loss = mse_loss(self._critics[0](inputs), goals) + mse_loss(self._critics[1](inputs), goals)
        _descend(self._critic_optimizer, critic_loss)
        self._updates += 1
        if self._updates % learner.policy_delay == 0:
            value = self._critics[0](torch.cat([observations, self._actor(observations)], dim=1))
            _descend(self._actor_optimizer, -value.mean())
            pairs = [(self._actor, self._target_actor), *zip(self._critics, self._target_critics, strict=True)]
            for module, target in pairs:
                _follow(module.parameters(), target.parameters(), learner.tau)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


@torch.no_grad()
def _follow(weights: Iterable[Tensor], targets: Iterable[Tensor], tau: float) -> None:
    for weight, target in zip(weights, targets, strict=True):
        target.lerp_(weight, tau)
