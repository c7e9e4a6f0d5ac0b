"""Interface of a task, the problem that agents learn: its data, episodes, stored transitions and networks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """The data of a task, read and checked.

    Attributes:
        content: argument `data` of the task's constructor, such as a panel of prices; None: the task needs no data.
        size, dimensions: size of the data in words, and as a dataclass of numbers (None without data).
        lines: sentences about the data to print or log, such as warnings.
        parts: rows of a table with the days of training, validation and holdout; empty if the data have no days.
    """

    content: Any = None
    size: str = "none"
    lines: Sequence[str] = ()
    dimensions: Any = None
    parts: Sequence[Mapping[str, str | int]] = ()


def require_capacity(config: Config, steps: int) -> None:
    """Raise `InputError` if a generation can have more transitions than the replay holds; `steps`: of an episode."""
    most = config.population.size * config.evaluation.slices * steps
    if most > config.replay.capacity:
        raise InputError(
            f"replay.capacity {config.replay.capacity:,} is below the {most:,} transitions of one generation "
            f"({config.population.size} agents x {config.evaluation.slices} episodes x {steps:,} steps): raise "
            "replay.capacity or lower evaluation.slices."
        )


@dataclass(frozen=True)
class Rollout:
    """Results of the episodes of a group of agents, sorted by agent and then by episode.

    Attributes:
        rewards: sum of each episode's rewards, float64 `[agents, episodes of an agent]`, on the host.
        counts: further results of each episode, which each task names, float64 `[agents * episodes of an agent, ...]`,
            on the host; `Task.statistics` and `Task.excess` read them.
        transitions: transitions to store in the replay, sorted by episode and step: `[rows, ...]` for each of
            `Task.columns`, on the device; None if they were not recorded.
    """

    rewards: NDArray[np.float64]
    counts: Mapping[str, NDArray[np.float64]]
    transitions: Mapping[str, Tensor] | None

    @classmethod
    def joined(cls, parts: "Sequence[Rollout]") -> "Rollout":
        """Return the results of all groups of agents, in the order of `parts`; transitions are copied."""
        recorded = [part.transitions for part in parts if part.transitions is not None]
        transitions = {name: torch.cat([rows[name] for rows in recorded]) for name in recorded[0]} if recorded else None
        counts = {name: np.concatenate([part.counts[name] for part in parts]) for name in parts[0].counts}
        return cls(np.concatenate([part.rewards for part in parts]), counts, transitions)

    def with_more(self, others: "Rollout") -> "Rollout":
        """Return these results and, for each agent, the episodes of `others`, whose transitions are left out."""
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
        """Return the counts as `[agents, episodes of an agent, ...]`."""
        return {name: values.reshape(*self.rewards.shape, *values.shape[1:]) for name, values in self.counts.items()}


class Encoding(Protocol):
    def detach(self) -> Self: ...


Observed = TypeVar("Observed")
Encoded = TypeVar("Encoded", bound=Encoding)


@dataclass(frozen=True)
class Transitions(Generic[Observed]):
    """Transitions to learn from, `[agents, batch, ...]`: each spans up to `Heads.return_steps` steps of an episode.

    Attributes:
        observations, next_observations: before the first step and after the last one, of the task's type `Observed`.
        actions: float32 `[agents, batch, ...]`, of the first step, as the policy stored them (`SampledActions.stored`).
        rewards: float32 `[agents, batch, return steps]`, of each step; zeros after the last one.
        steps: int64 `[agents, batch]`, number of steps, at least 1.
        terminal: bool `[agents, batch]`, the last step terminates the episode: no value follows it.
    """

    observations: Observed
    next_observations: Observed
    actions: Tensor
    rewards: Tensor
    steps: Tensor
    terminal: Tensor


class BatchSampler(Protocol):
    """Draws batches of stored transitions, each from one block of days in a row, which a task may encode as a whole."""

    def draw_blocks(self, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw a block for each batch; return the blocks' first days, int64 of this shape."""

    def draw(self, generator: np.random.Generator, block: int) -> NDArray[np.int64]:
        """Draw a batch from the block with first day `block`; return slots of the replay, int64 `[batch]`."""


class Task(Protocol[Observed, Encoded]):
    """A task on a device: its episodes, and the networks of its agents.

    An agent's weights are a row of the population, `[agents, parameters]`; `critic` and `actor` are views into it. The
    methods with a body are the defaults, for tasks without data, without prices or without normalisation.

    Attributes:
        critic_layout, actor_layout: parameters of an agent's networks; in a row the critic's come first.
        box: bounds of the actions.
        columns: dtype and shape of each value of a stored transition, by name.
        episode_steps, min_episode_steps: most and fewest steps of an episode.
        episode_end: name of the bool column that marks the last step of an episode, terminated or truncated.
        fingerprint: hash of the data, or of the Gymnasium environment's name and sizes.
        block_bytes: bytes of an agent's largest array as it learns from a batch; decides how many agents learn at once.
            The task says both sizes, and nobody measures them; they decide about speed alone, so estimates suffice.
        play_bytes: bytes of an agent as it plays the episodes of a generation; decides how many agents play at once.
        state: sums of observations and returns for their normalisation, never changed in place; outside of blocks of
            `at` the one with which a run begins.
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
        """Read and check the data that the configuration names; by default there are none.

        Raises:
            InputError: the data cannot be used, or do not suit the configuration.
        """
        return TaskData()

    @staticmethod
    def data_of_shape(config: Config, days: int, columns: int, assets: int) -> TaskData:  # noqa: ARG004
        """Return a random panel of prices of this shape, by which `eigen plan` measures memory and time without data.

        Raises:
            InputError: no training run could use a panel of this shape, or the task is not played on a panel.
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
    def training_starts(self) -> Sequence[int]:
        """Possible starts of training episodes: days of the whole panel, or seeds of a Gymnasium environment."""

    @property
    def validation_starts(self) -> range:
        """Possible starts (as of training episodes) of the episodes that choose the champion, the best agent so far."""

    @property
    def holdout_starts(self) -> range:
        """Possible starts of the episodes that are played once, after training; empty if nothing is held out."""

    @property
    def holdout_days(self) -> tuple[str, str, tuple[str, ...]] | None:
        """First and last holdout day (YYYY-MM-DD), and the tradable symbols; None without holdout days."""
        return None

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        """Return the shape of the exploration noise that one agent needs for this number of episodes."""

    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        """Play episodes of agents to their end.

        Args:
            weights: float32 `[agents, parameters]`.
            starts: int64 `[agents, episodes]`, start of each episode, as in `training_starts`.
            noise: float32 `[agents, *noise_shape]` (`Policy.play`), for all episodes but the `fixed` ones; None: none.
            fixed: number of each agent's last episodes that are played without noise and not recorded.
        """

    @contextmanager
    def at(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Normalise by `state` during the block."""
        before, self.state = self.state, state
        try:
            yield
        finally:
            self.state = before

    def state_after(self, state: Mapping[str, Tensor], transitions: Mapping[str, Tensor]) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return `state` with a generation's recorded transitions added."""
        return state

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        """Return statistics of the episodes for logs and reports, by name."""

    def excess(self, rollout: Rollout) -> Excess | None:  # noqa: ARG002
        """Return the excess return over the market; None with fewer than two trades, or without a market."""
        return None

    def sampler(self, replay: Replay, batch_size: int) -> BatchSampler | None:
        """Return a sampler of the transitions now in the replay; None while these are too few for a batch."""

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[Observed]:
        """Return the transitions from `slots` on, int64 `[agents, batch]`, all of the block with first day `block`."""

    def encode(self, critic: Parameters, observations: Observed) -> Encoded:
        """Encode observations with the encoder, which is part of `critic`: the critic's loss trains it."""

    def policy(self, actor: Parameters, encoding: Encoded) -> Policy:
        """Return the actor's policy for observations; its actions are float32 `[agents, batch, ...]`."""

    def values(self, critic: Parameters, encoding: Encoded, actions: Tensor | None) -> Tensor:
        """Return the values by each of an agent's critics, float32 `[critics, agents, batch]`.

        They are Q(s, a) of the observations and `actions`, in natural units; if `actions` is None, V(s).
        """

    def check_rows(self, ring: Ring) -> str | None:  # noqa: ARG002
        """Return why the rows of a stored replay cannot be whole episodes, as a phrase (`has ...`); None: they can."""
        return None

    def metadata(self) -> dict[str, JsonValue]:
        """Return what a program needs, besides its weights and the configuration, to let an agent act."""
        return {}


@runtime_checkable
class DifferentiableGrowth(Protocol):
    """A task whose rewards over consecutive days are a differentiable function of an agent's weights."""

    @property
    def growth_days(self) -> Sequence[range]:
        """Training days whose rewards do not depend on prices after the last training day."""

    def growth(self, weights: Tensor, first_day: int, days: int) -> tuple[Tensor, Tensor]:
        """Return the rewards of agents, acting without noise, on `days` days of an episode that begins on `first_day`.

        The rewards are differentiable with respect to `weights`, float32 `[agents, parameters]`. The second result is
        the turnover as a share of the equity, without a gradient. Both are float32 `[agents, days]`.
        """


@runtime_checkable
class KnownReturns(Protocol):
    """A task that knows the returns of all assets, if `learner.known_return_weight` is above 0."""

    def known_return_loss(self, critic: Parameters, encoding: Any) -> Tensor:  # noqa: ANN401 - the task's own
        """Return the mean squared error of the returns that embeddings predict, in standard deviations: `[agents]`."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of all alternatives at some moments (`KnownOutcomes`): `[agents, batch, candidates, settings]`.

    Attributes:
        rewards: float32, reward of taking the candidate with the setting.
        shares: float32, time for which the candidate is then blocked, as a share of the longest holding time.
        known: bool `[agents, batch, candidates]`, the candidate can be taken; where false, its outcomes mean nothing.
    """

    rewards: Tensor
    shares: Tensor
    known: Tensor


@runtime_checkable
class KnownOutcomes(Protocol):
    """A task that knows the outcomes of all alternatives, also of those that no agent has chosen.

    At each moment (the number of a day, counted by the task) an agent may take one of several candidates (assets) with
    one of `Heads.outcomes` settings (sale targets), which blocks the candidate until its sale, whatever else it does.
    """

    def held_out(self, batch_size: int) -> Sequence[tuple[Tensor, FirstDay]]:
        """Return batches of the moments that `outcome_sampler` does not draw if the actor has a linear part.

        They are int64 `[batch]` each, all moments once, with the first day of the block of each batch.
        """

    def longest_blocked(self) -> int:
        """Return for how many moments a candidate is blocked at most."""

    def outcome_sampler(self, batch_size: int) -> BatchSampler | None:
        """Return a sampler that draws moments of the training days, not slots; None if too few for a batch."""

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[Any, Outcomes]:
        """Return the observations and outcomes at `moments`, int64 `[agents, batch]`; `block`: see `transitions`."""

    def expected_outcomes(self, actor: Parameters, encoding: Any) -> ExpectedOutcomes:  # noqa: ANN401 - the task's own
        """Return the outcomes that the actor predicts for all alternatives."""
