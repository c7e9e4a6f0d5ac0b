"""Interface of a task: observations and their storage, networks that fit, and playing episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from eigen_core.checkpoint.ring import Ring
from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import ParameterLayout, Parameters
from eigen_core.networks.outcomes import ExpectedOutcomes
from eigen_core.networks.policies import Box, Heads, Policy
from eigen_core.task.replay import Column, Replay


@dataclass(frozen=True)
class TaskData:
    """Opened data of a task.

    Attributes:
        content: what the task is built from, its own; None: it needs no data.
        size: how much it is, in words.
        lines: what was read and what was found in it, sentences for users.
        facts: its size in numbers, a dataclass of the task's own; None: there are none.
        parts: what of it is for training, validation and holdout: rows of a table.
    """

    content: Any = None
    size: str = "none"
    lines: Sequence[str] = ()
    facts: Any = None
    parts: Sequence[Mapping[str, str | int]] = ()


@dataclass(frozen=True)
class Rollout:
    """Results of the episodes of a group of agents; an episode is (agent, start), agents first.

    Attributes:
        rewards: sum of each episode's rewards, float64 `[agents, episodes of an agent]`, on the host.
        counts: what the task counts in each episode, float64 `[agents * episodes of an agent, ...]`, on the host.
        transitions: the rows to store, in the order of episodes and steps: each of the task's columns, on the device;
            None unless they were recorded.
    """

    rewards: NDArray[np.float64]
    counts: Mapping[str, NDArray[np.float64]]
    transitions: Mapping[str, Tensor] | None

    @classmethod
    def joined(cls, parts: "Sequence[Rollout]") -> "Rollout":
        """Join the results of consecutive groups of agents; transitions are copied."""
        recorded = [part.transitions for part in parts if part.transitions is not None]
        transitions = {name: torch.cat([rows[name] for rows in recorded]) for name in recorded[0]} if recorded else None
        return cls(np.concatenate([part.rewards for part in parts]), joined_counts(parts), transitions)

    def with_more(self, others: "Rollout") -> "Rollout":
        """Append other episodes of the same agents, without their transitions."""
        both = [part._of_agents() for part in (self, others)]
        counts = {
            name: np.hstack([of_agents[name] for of_agents in both]).reshape(-1, *values.shape[1:])
            for name, values in self.counts.items()
        }
        return Rollout(np.hstack([self.rewards, others.rewards]), counts, self.transitions)

    def part(self, agents: slice, episodes: slice) -> "Rollout":
        """Return what some agents did in some of the episodes of each, without transitions."""
        counts = {
            name: values[agents, episodes].reshape(-1, *values.shape[2:]) for name, values in self._of_agents().items()
        }
        return Rollout(self.rewards[agents, episodes], counts, None)

    def _of_agents(self) -> dict[str, NDArray[np.float64]]:
        """Return the counts with agents and episodes as two dimensions."""
        return {name: values.reshape(*self.rewards.shape, *values.shape[1:]) for name, values in self.counts.items()}


def joined_counts(rollouts: Sequence[Rollout]) -> dict[str, NDArray[np.float64]]:
    """Return what was counted in the episodes of all rollouts, one after the other."""
    return {name: np.concatenate([rollout.counts[name] for rollout in rollouts]) for name in rollouts[0].counts}


class Encoding(Protocol):
    """Observations, encoded; made and read by one task."""

    def detached(self) -> Self:
        """The same, without a gradient."""


Observed = TypeVar("Observed")
Encoded = TypeVar("Encoded", bound=Encoding)


@dataclass(frozen=True)
class Transitions(Generic[Observed]):
    """Transitions to learn from, `[agents, batch, ...]`: each spans up to `Heads.return_steps` steps of an episode.

    Attributes:
        observations, next_observations: what was observed before the first step and after the last, in the task's own
            form.
        actions: float32 `[agents, batch, ...]`, of the first step, as the policy stored them (`Played.stored`).
        rewards: float32 `[agents, batch, return steps]`; zeros after the last step.
        steps: int64 `[agents, batch]`, how many there are, at least 1.
        terminal: bool `[agents, batch]`, the episode ends with the last step.
    """

    observations: Observed
    next_observations: Observed
    actions: Tensor
    rewards: Tensor
    steps: Tensor
    terminal: Tensor


class BatchSampler(Protocol):
    """Draws batches of stored transitions. Each batch is from one block, which a task may encode as a whole."""

    def draw_blocks(self, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw the block of each batch: int64 of this shape."""

    def draw(self, generator: np.random.Generator, block: int) -> NDArray[np.int64]:
        """Draw the slots of a batch from a block: int64 `[batch]`."""


class Task(Protocol[Observed, Encoded]):
    """A task on a device. Networks are given as parameters: views into rows of a population, `[agents, ...]`.

    Attributes:
        critic_layout, actor_layout: parameters of an agent; in a row of the population the critic's come first.
        box: the actions.
        columns: what one stored transition consists of.
        episode_steps: most steps of an episode.
        min_episode_steps: fewest steps of an episode.
        episode_end: the column, bool, of an episode's last step; whether the step is terminal or not.
        fingerprint: hash of the data that are played.
        block_bytes: of the largest block of values that learning from a batch makes for one agent, by which groups are
            chosen.
        play_bytes: of what one agent holds while it plays the episodes of a generation, by which the groups are chosen
            that play together.
        state: what the task has learned from what was played, which observations are normalised by; tensors that are
            never written to. Phases set it from the training state. A generation learns by the state that it has played
            by; the first one, which plays without, learns by what its own episodes give.
    """

    def __init__(
        self,
        config: Config,
        data: Any,  # noqa: ANN401 - the task's own
        device: torch.device,
        heads: Heads,
    ) -> None: ...

    @staticmethod
    def open_data(config: Config) -> TaskData:
        """Open what is played on, where the configuration says it is; nothing else reads it.

        Raises:
            InputError: it cannot be used, or does not fit the configuration.
        """

    @staticmethod
    def data_of_shape(config: Config, days: int, columns: int, assets: int) -> TaskData:
        """Return random data of the shape of a panel that is not there.

        Raises:
            InputError: no run could be trained on it, or the task is not played on a panel.
        """

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
        """Where training episodes may start."""

    @property
    def validation_starts(self) -> range:
        """Where the episodes may start by which the champion is chosen."""

    @property
    def holdout_starts(self) -> range:
        """Where the episodes may start that are played once, at the end; none if nothing is held out."""

    @property
    def holdout_days(self) -> tuple[str, str, tuple[str, ...]] | None:
        """First and last day (YYYY-MM-DD) held out, and the symbols traded; None where there are no such days."""

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        """Return the shape of the exploration noise of one agent in so many episodes."""

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
            noise: what the policy plays with, float32 `[agents, *noise_shape]` (`Policy.play`); None: none.
            record: return the transitions.
            fixed: so many of each agent's last episodes are played without noise and not recorded.
        """

    def state_after(self, transitions: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what `state` becomes once a generation's transitions are recorded; this object stays as it is."""

    def statistics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return what the episodes of rollouts come to."""

    def excess(self, rollouts: Sequence[Rollout]) -> Excess | None:
        """Return what the trades of rollouts gained beyond the market; None where there are none, or no market."""

    def sampler(self, replay: Replay, batch_size: int) -> BatchSampler | None:
        """Return what draws batches from a replay as it is now; None while there are too few transitions for one."""

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[Observed]:
        """Return the transitions in `slots`, int64 `[agents, batch]`, which were drawn from a block."""

    def encode(self, critic: Parameters, observations: Observed) -> Encoded:
        """Encode observations with the encoder that the critic's loss trains."""

    def policy(self, actor: Parameters, encoding: Encoded) -> Policy:
        """Return the actor's policy for observations; its actions are float32 `[agents, batch, ...]`."""

    def values(self, critic: Parameters, encoding: Encoded, actions: Tensor | None) -> Tensor:
        """Return the value that each critic gives to actions: float32 `[critics, agents, batch]`.

        `actions` are in natural units; None where critics value observations alone.
        """

    def wrong_rows(self, ring: Ring) -> str | None:
        """Return why no episodes can have left the rows of a ring, as the rest of a sentence; None if they can."""

    def facts(self) -> dict[str, JsonValue]:
        """Return what is needed beside weights and configuration to use an agent."""


@runtime_checkable
class DifferentiableGrowth(Protocol):
    """The rewards of a stretch of days are a differentiable function of an agent's weights."""

    @property
    def growth_days(self) -> range:
        """The training days on which agents can decide, and whose rewards are known before the training days end."""

    def growth(self, weights: Tensor, first_day: int, days: int) -> tuple[Tensor, Tensor]:
        """Return what agents without noise reach in a stretch of days that begins as an episode does.

        Args:
            weights: float32 `[agents, parameters]`; the result can be differentiated by them.
            first_day: the first day.
            days: how many.

        Returns:
            Rewards, and what is traded as a share of the equity, without a gradient: float32 `[agents, days]` each.
        """


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of each alternative of a moment, taken or not: `[agents, batch, candidates, settings]`.

    Attributes:
        rewards: float32, in the units of the task's rewards.
        shares: float32, of the longest time, for which the candidate would have been blocked.
        known: bool `[agents, batch, candidates]`, it could have been taken and its end is known.
    """

    rewards: Tensor
    shares: Tensor
    known: Tensor


@runtime_checkable
class KnownOutcomes(Protocol):
    """At each step one of several candidates may be taken, with one of some settings, and is blocked until it ends.

    As nothing else depends on that, what every candidate would have come to with every setting is known without being
    played: `Heads.outcomes` says of how many settings.
    """

    def outcome_sampler(self, batch_size: int) -> BatchSampler | None:
        """Return what draws different moments of the training part; None while there are too few for a batch."""

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[Any, Outcomes]:
        """Return what is observed at moments, int64 `[agents, batch]`, drawn from a block, and what would have come."""

    def expected_outcomes(self, actor: Parameters, encoding: Any) -> ExpectedOutcomes:  # noqa: ANN401 - the task's own
        """Return what the actor expects of the alternatives."""
