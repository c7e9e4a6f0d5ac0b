"""Interface of a task, which agents play: observations and their storage, networks, and episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.networks.actions import ExpectedOutcomes
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import ParameterLayout, Parameters
from eigen_core.networks.policies import Box, Heads, Policy
from eigen_core.task.replay import Column, Replay


@dataclass(frozen=True)
class TaskData:
    """Opened data of a task.

    Attributes:
        content: argument `data` of the task; None: the task needs no data.
        size, dimensions: size of the data in words, and as a dataclass of numbers (None without data).
        lines: findings in the data, as sentences to print or log.
        parts: days of training, validation and holdout, as rows of a table.
    """

    content: Any = None
    size: str = "none"
    lines: Sequence[str] = ()
    dimensions: Any = None
    parts: Sequence[Mapping[str, str | int]] = ()


@dataclass(frozen=True)
class Rollout:
    """Results of the episodes of a group of agents, ordered by agent and then by start.

    Attributes:
        rewards: sum of each episode's rewards, float64 `[agents, episodes of an agent]`, on the host.
        counts: the task's own numbers for each episode, float64 `[agents * episodes of an agent, ...]`, on the host.
        transitions: the rows to store, ordered by episode and step: all of the task's columns, on the device; None if
            they were not recorded.
    """

    rewards: NDArray[np.float64]
    counts: Mapping[str, NDArray[np.float64]]
    transitions: Mapping[str, Tensor] | None

    @classmethod
    def joined(cls, parts: "Sequence[Rollout]") -> "Rollout":
        """Join the results of consecutive groups of agents; transitions are copied."""
        recorded = [part.transitions for part in parts if part.transitions is not None]
        transitions = {name: torch.cat([rows[name] for rows in recorded]) for name in recorded[0]} if recorded else None
        counts = {name: np.concatenate([part.counts[name] for part in parts]) for name in parts[0].counts}
        return cls(np.concatenate([part.rewards for part in parts]), counts, transitions)

    def with_more(self, others: "Rollout") -> "Rollout":
        """Append other episodes of the same agents, without their transitions."""
        both = [part._of_agents() for part in (self, others)]
        counts = {
            name: np.hstack([of_agents[name] for of_agents in both]).reshape(-1, *values.shape[1:])
            for name, values in self.counts.items()
        }
        return Rollout(np.hstack([self.rewards, others.rewards]), counts, self.transitions)

    def part(self, agents: slice, episodes: slice) -> "Rollout":
        """Return the results of some agents and some of their episodes, without transitions."""
        counts = {
            name: values[agents, episodes].reshape(-1, *values.shape[2:]) for name, values in self._of_agents().items()
        }
        return Rollout(self.rewards[agents, episodes], counts, None)

    def _of_agents(self) -> dict[str, NDArray[np.float64]]:
        """Return the counts with agents and episodes as two dimensions."""
        return {name: values.reshape(*self.rewards.shape, *values.shape[1:]) for name, values in self.counts.items()}


class Encoding(Protocol):
    def detach(self) -> Self: ...


Observed = TypeVar("Observed")
Encoded = TypeVar("Encoded", bound=Encoding)


@dataclass(frozen=True)
class Transitions(Generic[Observed]):
    """Transitions to learn from, `[agents, batch, ...]`: each spans up to `Heads.return_steps` steps of an episode.

    Attributes:
        observations, next_observations: before the first step and after the last, in the task's own form.
        actions: float32 `[agents, batch, ...]`, of the first step, as the policy stored them (`SampledActions.stored`).
        rewards: float32 `[agents, batch, return steps]`; zeros after the last step.
        steps: int64 `[agents, batch]`, number of steps, at least 1.
        terminal: bool `[agents, batch]`, the episode ends with the last step.
    """

    observations: Observed
    next_observations: Observed
    actions: Tensor
    rewards: Tensor
    steps: Tensor
    terminal: Tensor


class BatchSampler(Protocol):
    """Draws batches of stored transitions. A batch is from one block (of days), which a task may encode as a whole."""

    def draw_blocks(self, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw the block of each batch, by its first day: int64 of this shape."""

    def draw(self, generator: np.random.Generator, block: int) -> NDArray[np.int64]:
        """Draw the slots of a batch from the block with first day `block`: int64 `[batch]`."""


class Task(Protocol[Observed, Encoded]):
    """A task on a device. Parameters of networks are views into rows of a population, `[agents, ...]`.

    By default a task has no data, no prices and no normalisation.

    Attributes:
        critic_layout, actor_layout: parameters of an agent; in a row of the population the critic's come first.
        box: bounds of the actions.
        columns: the values of a stored transition.
        episode_steps, min_episode_steps: most and fewest steps of an episode.
        episode_end: name of the bool column that marks the last step of an episode, terminated or truncated.
        fingerprint: hash of the data, or of the Gymnasium environment's name and sizes.
        block_bytes: size of the largest array that learning from a batch makes for one agent; it decides how many
            agents learn together.
        play_bytes: memory of one agent while it plays the episodes of a generation; it decides how many play together.
        state: running moments that normalise observations and rewards, never changed in place. The phases of
            a generation set it from the training state. A generation learns with the moments with which it played; the
            first generation, which plays without moments, learns with those of its own episodes.
    """

    def __init__(
        self,
        config: Config,
        data: Any,  # noqa: ANN401 - the task's own
        device: torch.device,
        heads: Heads,
    ) -> None: ...

    @staticmethod
    def open_data(config: Config) -> TaskData:  # noqa: ARG004
        """Open the data that the configuration names; by default a task needs none.

        Raises:
            InputError: the data cannot be used, or do not fit the configuration.
        """
        return TaskData()

    @staticmethod
    def data_of_shape(config: Config, days: int, columns: int, assets: int) -> TaskData:  # noqa: ARG004
        """Return random data of the shape of a panel.

        Raises:
            InputError: no training run could use such a panel, or the task (as by default) is not played on a panel.
        """
        raise InputError(
            f"task {config.task} is not played on a panel of prices: leave out --days, --columns and --assets."
        )

    critic_layout: ParameterLayout
    actor_layout: ParameterLayout
    box: Box
    columns: Mapping[str, Column]
    episode_steps: int
    min_episode_steps: int
    episode_end: str
    fingerprint: str
    block_bytes: int
    play_bytes: int
    state: Mapping[str, Tensor]

    @property
    def training_starts(self) -> range:
        """Possible starts of training episodes: days of a panel, or seeds of a Gymnasium environment."""

    @property
    def validation_starts(self) -> range:
        """Starts of the episodes that choose the champion."""

    @property
    def holdout_starts(self) -> range:
        """Starts of the episodes that are played once, at the end; empty if nothing is held out."""

    @property
    def holdout_days(self) -> tuple[str, str, tuple[str, ...]] | None:
        """First and last day (YYYY-MM-DD) held out, and the traded symbols; None without such days."""
        return None

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        """Return the shape of the exploration noise of one agent in this number of episodes."""

    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        """Play one episode for each agent and start.

        Args:
            weights: float32 `[agents, parameters]`.
            starts: int64 `[agents, episodes]`.
            noise: float32 `[agents, *noise_shape]` (`Policy.play`); None: no noise.
            record: return the transitions.
            fixed: number of each agent's last episodes that are played without noise and not recorded.
        """

    def state_after(self, transitions: Mapping[str, Tensor]) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the next `state` after a generation's recorded transitions; this object stays as it is."""
        return self.state

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        """Return statistics of the episodes for logs and reports, by name."""

    def excess(self, rollout: Rollout) -> Excess | None:  # noqa: ARG002
        """Return the excess of the trades over the market; None if trades are too few or there is no market."""
        return None

    def sampler(self, replay: Replay, batch_size: int) -> BatchSampler | None:
        """Return a sampler of the replay as it is now; None while there are too few transitions for a batch."""

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[Observed]:
        """Return the transitions in `slots`, int64 `[agents, batch]`; all are from the block with first day `block`."""

    def encode(self, critic: Parameters, observations: Observed) -> Encoded:
        """Encode observations with the encoder that the critic's loss trains."""

    def policy(self, actor: Parameters, encoding: Encoded) -> Policy:
        """Return the actor's policy for observations; its actions are float32 `[agents, batch, ...]`."""

    def values(self, critic: Parameters, encoding: Encoded, actions: Tensor | None) -> Tensor:
        """Return the values of each critic, float32 `[critics, agents, batch]`.

        They are of `actions` in natural units; if `actions` is None, of observations alone.
        """

    def check_rows(self, ring: Ring) -> str | None:  # noqa: ARG002
        """Return why a replay's rows cannot be whole episodes, as a phrase (`has ...`); None if they can."""
        return None

    def metadata(self) -> dict[str, JsonValue]:
        """Return what a program that lets an agent act needs besides its weights and the configuration."""
        return {}


@runtime_checkable
class DifferentiableGrowth(Protocol):
    """A task whose rewards over consecutive days are a differentiable function of an agent's weights."""

    @property
    def growth_days(self) -> range:
        """The training days whose rewards do not depend on days after the training days."""

    def growth(self, weights: Tensor, first_day: int, days: int) -> tuple[Tensor, Tensor]:
        """Return the rewards of agents without noise on consecutive days, as if an episode began there.

        Args:
            weights: float32 `[agents, parameters]`; the rewards are differentiable by them.
            first_day, days: the first day, and the number of days.

        Returns:
            Rewards, and turnover as a share of the equity (without a gradient): float32 `[agents, days]` each.
        """


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of all alternatives at some moments, played or not: `[agents, batch, candidates, settings]`.

    Attributes:
        rewards: float32, in the units of the task's rewards.
        shares: float32, time for which the candidate would have been blocked, as a share of the longest holding time.
        known: bool `[agents, batch, candidates]`, the candidate could have been taken and its end is known.
    """

    rewards: Tensor
    shares: Tensor
    known: Tensor


@runtime_checkable
class KnownOutcomes(Protocol):
    """A task whose alternatives all have known outcomes.

    At each step an agent may take one of several candidates (assets) with one of `Heads.outcomes` settings (sale
    targets), and the candidate is blocked until its end. Outcomes do not depend on actions, so all are known unplayed.
    """

    def outcome_sampler(self, batch_size: int) -> BatchSampler | None:
        """Return a sampler of different moments of the training days; None if there are too few for a batch."""

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[Any, Outcomes]:
        """Return observations at moments of a block, int64 `[agents, batch]`, and all outcomes from there."""

    def expected_outcomes(self, actor: Parameters, encoding: Any) -> ExpectedOutcomes:  # noqa: ANN401 - the task's own
        """Return the outcomes that the actor predicts for the alternatives."""
