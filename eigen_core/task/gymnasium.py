"""The task `gym:Name`: episodes of a Gymnasium environment, whose actions are vectors (`Box`) or choices (`Discrete`).

The start of an episode is the seed of its reset; training, validation and holdout have different seeds.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring, slot_ranges
from eigen_core.common.errors import InputError
from eigen_core.common.text import FLOAT32_BYTES
from eigen_core.config import ActorCriticConfig, Config
from eigen_core.config.learning import batch_setting
from eigen_core.machine.reproducibility import compute_reproducibly
from eigen_core.networks.agent import MlpNetwork
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import Parameters
from eigen_core.networks.policies import Box, Choices, Heads, Policy
from eigen_core.task.gymnasium_environment import EnvironmentPool, OpenedEnvironment, open_environment
from eigen_core.task.interface import Rollout, Task, TaskData, Transitions, require_capacity
from eigen_core.task.replay import Column, Replay

_TRAINING_SEEDS = range(1 << 30)
_VALIDATION_SEEDS = range(1 << 30, (1 << 30) + (1 << 20))
_HOLDOUT_SEEDS = range((1 << 30) + (1 << 20), (1 << 30) + (1 << 21))
_ROWS_AT_A_TIME = 1 << 16
_LIMIT = 10.0
_SMALLEST_VARIANCE = 1e-8


@dataclass(frozen=True)
class UniformSampler:
    """Implements `BatchSampler`: all `size` stored transitions are one block; it draws from them with replacement."""

    size: int
    batch_size: int

    def draw_blocks(self, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:  # noqa: ARG002
        return np.zeros(shape, dtype=np.int64)

    def draw(self, generator: np.random.Generator, block: int) -> NDArray[np.int64]:  # noqa: ARG002
        return generator.integers(0, self.size, self.batch_size)


class GymnasiumTask(Task[Tensor, Tensor]):
    """Implements `Task`: observations and their encodings are float32 `[agents, batch, values]`.

    Raises:
        InputError: the replay cannot hold a generation, or the learner cannot learn the environment's discrete actions.
    """

    training_starts, validation_starts, holdout_starts = _TRAINING_SEEDS, _VALIDATION_SEEDS, _HOLDOUT_SEEDS

    def __init__(self, config: Config, opened: OpenedEnvironment, device: torch.device, heads: Heads) -> None:
        compute_reproducibly(config.instructions, device)
        require_capacity(config, opened.spec.episode_steps)
        settings, values = config.environment, opened.spec.observation_values
        if opened.spec.discrete and heads.action_values:
            raise InputError(
                f"task {config.task}: its actions are Discrete, but learner.algorithm {config.learner.algorithm} "
                "learns continuous actions only: use learner.algorithm ppo."
            )
        box: Box = Choices(opened.spec.action_values, device)
        if not opened.spec.discrete:
            box = Box(opened.low.tolist(), opened.high.tolist(), device, steepness=1.0)
        self._network = MlpNetwork(values, box, config.network, heads)
        self.critic_layout, self.actor_layout = self._network.critic_layout, self._network.actor_layout
        self.box = self._network.box
        # `ends` is true for the last step of an episode, and `terminal` too unless the episode was truncated.
        self.columns: Mapping[str, Column] = {
            "observation": Column(torch.float32, (values,)),
            "next_observation": Column(torch.float32, (values,)),
            "action": Column(torch.float32, (len(opened.low),)),
            "reward": Column(torch.float32),
            "terminal": Column(torch.bool),
            "ends": Column(torch.bool),
        }
        self.episode_steps, self.min_episode_steps = opened.spec.episode_steps, 1
        self.episode_end = "ends"
        size = (opened.name, values, opened.low.tolist(), opened.high.tolist(), self.episode_steps)
        self.fingerprint = hashlib.sha256(repr(size).encode()).hexdigest()
        # Bytes of a batch's hidden layer or observations, and of all steps of a generation's episodes.
        self.block_bytes = (
            FLOAT32_BYTES * batch_setting(config.learner, "batch_size") * max(config.network.head_width, values)
        )
        episodes = config.evaluation.slices + config.evaluation.fixed_episodes
        self.play_bytes = FLOAT32_BYTES * episodes * opened.spec.episode_steps * 2 * (values + len(opened.low))
        self._opened = opened
        self._pool = EnvironmentPool(opened)
        self._device = device
        # Learners without gamma refuse this task.
        self._gamma = config.learner.gamma if isinstance(config.learner, ActorCriticConfig) else 0.0
        self._return_steps = heads.return_steps
        self._observed = RunningMoments("observation", values, device) if settings.normalise_observations else None
        self._returned = RunningMoments("return", 1, device) if settings.normalise_rewards else None
        self.state = {
            name: tensor
            for moments in (self._observed, self._returned)
            if moments is not None
            for name, tensor in moments.initial().items()
        }

    @staticmethod
    def open_data(config: Config) -> TaskData:
        opened = open_environment(config)
        require_capacity(config, opened.spec.episode_steps)
        return TaskData(opened, str(opened.spec), dimensions=opened.spec)

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        return (episodes, self.episode_steps, len(self._opened.low))

    @torch.no_grad()
    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        if fixed:
            # Played after the other episodes: all together would need more environments.
            first = self.roll_out(weights, starts[:, :-fixed], noise, record)
            return first.with_more(self.roll_out(weights, starts[:, -fixed:]))
        critic = self.critic_layout.views(weights[:, : self.critic_layout.size])
        actor = self.actor_layout.views(weights[:, self.critic_layout.size :])

        def act(observations: NDArray[np.float32], step: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            observed = torch.tensor(observations, device=self._device).reshape(*starts.shape, -1)
            policy = self.policy(actor, self.encode(critic, observed))
            played = policy.play(None if noise is None else noise[:, :, step])
            actions, stored = (part.flatten(0, 1).cpu().numpy() for part in played)
            return actions, stored

        episodes = self._pool.play(starts.ravel(), act)
        rows = None
        if record:
            rows = {name: torch.from_numpy(held).to(self._device) for name, held in episodes.rows().items()}
        counts = {"steps": episodes.lengths.astype(np.float64), "terminated": episodes.terminated.astype(np.float64)}
        rewards = episodes.rewards.sum(axis=1)
        return Rollout(rewards.reshape(starts.shape), {"reward": rewards, **counts}, rows)

    def state_after(self, state: Mapping[str, Tensor], transitions: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        state = dict(state)
        if self._observed is not None:
            state |= self._observed.after(state, transitions["observation"].cpu().double().numpy())
        if self._returned is not None:
            rewards, ends = transitions["reward"].cpu().double().numpy(), transitions["ends"].cpu().numpy()
            state |= self._returned.after(state, discounted_returns(rewards, ends, self._gamma)[:, None])
        return state

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        return {name: float(counts.mean()) for name, counts in rollout.counts.items()}

    def sampler(self, replay: Replay, batch_size: int) -> UniformSampler:
        return UniformSampler(replay.size, batch_size)

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[Tensor]:  # noqa: ARG002
        stretches = replay.stretches(slots, self._return_steps, self.episode_end)
        first = replay.pick(slots, "observation", "action")
        last = replay.pick(stretches.last, "next_observation", "terminal")
        rewards = replay.pick(stretches.slots, "reward")["reward"] * stretches.mask
        if self._returned is not None:
            rewards = rewards * self._returned.mean_and_scale(self.state)[1]
        return Transitions(
            first["observation"], last["next_observation"], first["action"], rewards, stretches.steps, last["terminal"]
        )

    def encode(self, critic: Parameters, observations: Tensor) -> Tensor:  # noqa: ARG002
        """Return the observations; with `environment.normalise_observations` normalised and clipped to [-10, 10]."""
        if self._observed is None:
            return observations
        mean, scale = self._observed.mean_and_scale(self.state)
        return ((observations - mean) * scale).clamp_(-_LIMIT, _LIMIT)

    def policy(self, actor: Parameters, encoding: Tensor) -> Policy:
        return self._network.policy(actor, encoding)

    def values(self, critic: Parameters, encoding: Tensor, actions: Tensor | None) -> Tensor:
        return self._network.values(critic, encoding, actions)

    def check_rows(self, ring: Ring) -> str | None:
        # The oldest episode may have lost its first steps.
        columns = ring.columns
        steps = 0
        following: Tensor | None = None
        for _, slots in slot_ranges(ring.capacity, ring.written - ring.size, ring.written, _ROWS_AT_A_TIME):
            ends = columns["ends"][slots]
            if bool((columns["terminal"][slots] & ~ends).any()):
                return "has episodes that go on after their end"
            observed, after = columns["observation"][slots], columns["next_observation"][slots]
            if not torch.equal(observed[1:][~ends[:-1]], after[:-1][~ends[:-1]]) or (
                following is not None and not torch.equal(observed[0], following)
            ):
                return "has steps that do not follow one another"
            following = None if bool(ends[-1]) else after[-1]
            last = torch.nonzero(ends)[:, 0].tolist()
            lengths = np.diff([-1 - steps, *last, len(ends) - 1])
            if lengths.max() > self.episode_steps:
                return f"has an episode of more than {self.episode_steps:,} steps"
            steps = int(lengths[-1])
        return None if following is None else "does not end with the end of an episode"

    def metadata(self) -> dict[str, JsonValue]:
        metadata: dict[str, JsonValue] = {
            "environment": self._opened.name,
            "low": self._opened.low.tolist(),
            "high": self._opened.high.tolist(),
        }
        if self._observed is not None:
            mean, scale = self._observed.mean_and_scale(self.state)
            metadata |= {"observation_mean": mean.tolist(), "observation_scale": scale.tolist()}
        return metadata


class RunningMoments:
    """Mean and variance of all vectors added so far, of length `values`, kept as sums in `Task.state`.

    The names of these tensors begin with `name`. NumPy sums on the host, so that bits do not depend on threads.
    """

    def __init__(self, name: str, values: int, device: torch.device) -> None:
        self._sizes = {f"{name}_count": 1, f"{name}_sum": values, f"{name}_squares": values}
        self._device = device

    def initial(self) -> dict[str, Tensor]:
        """Return the tensors of the state before any vector is added: count, sum and sum of squares, float64 zeros."""
        sizes = self._sizes.items()
        return {name: torch.zeros(size, dtype=torch.float64, device=self._device) for name, size in sizes}

    def after(self, state: Mapping[str, Tensor], vectors: NDArray[np.float64]) -> dict[str, Tensor]:
        """Return these tensors of `state` after adding `vectors`, `[rows, values]`."""
        added = (np.array([float(len(vectors))]), vectors.sum(axis=0), (vectors * vectors).sum(axis=0))
        more = (torch.tensor(values, device=self._device) for values in added)
        return {name: state[name] + values for name, values in zip(self._sizes, more, strict=True)}

    def mean_and_scale(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean and 1 / standard deviation, float32 `[values]`; 0 and 1 before any vector is added."""
        count, sums, squares = (state[name] for name in self._sizes)
        # Reading the count would wait for a GPU, and a CUDA graph could not capture it.
        rows = count.clamp_min(1.0)
        mean = sums / rows
        variance = (squares / rows - mean * mean).clamp_min(_SMALLEST_VARIANCE).masked_fill(count == 0.0, 1.0)
        return mean.float(), variance.rsqrt().float()


def discounted_returns(rewards: NDArray[np.float64], ends: NDArray[np.bool_], gamma: float) -> NDArray[np.float64]:
    """Return for each step the sum of its reward and the earlier rewards of its episode, discounted by age: `[rows]`.

    The standard deviation of these sums scales rewards (Engstrom et al. 2020, arXiv:2005.12729, section 3). The rows
    are the steps of whole episodes, one episode after another; `ends` is true for the last step of each.
    """
    returns = np.empty_like(rewards)
    total = 0.0
    for row, (reward, end) in enumerate(zip(rewards.tolist(), ends.tolist(), strict=True)):
        total = gamma * total + reward
        returns[row] = total
        if end:
            total = 0.0
    return returns
