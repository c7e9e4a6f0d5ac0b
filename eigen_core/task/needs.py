"""What a task needs of memory, as the memory plan asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from eigen_core.config import Config
from eigen_core.needs import Change, Facts, Kept, Operation
from eigen_core.replay import Column


@dataclass(frozen=True)
class BatchNeeds:
    """What learning from one batch needs, for all agents of a group.

    Attributes:
        transitions: what is picked from the replay (bytes).
        encode, act, values: the operations of these names.
    """

    transitions: int
    encode: Operation
    act: Operation
    values: Operation


@dataclass(frozen=True)
class Sample:
    """A piece of a run, small enough to be timed.

    Attributes:
        config: its configuration.
        content: what it plays on; not the run's own data.
        facts: the facts of that content.
        evaluated: how many times the work of its evaluate phase the run's is.
        learned: how many times the work of one of its batches the work of one of the run's is.
    """

    config: Config
    content: Any
    facts: Facts
    evaluated: float
    learned: float


class TaskNeeds(Protocol):
    """What a task needs in a run, without its data.

    Attributes:
        kept: what it keeps.
        columns: what one stored transition consists of.
        critic, actor: values of one agent that the critic's loss and the actor's train.
        episode_steps: steps of an episode.
        holds_out: episodes are held out for the end.
        noise_values: values of the exploration noise of one agent in one episode.
        recorded_row_bytes: one recorded step of an episode, before it is in the replay.
        names_listed: names of the task that each checkpoint lists.
        learning: what else is to be said of learning's memory, as the rest of a sentence.
        block_bytes: of the largest block of values that learning from a batch makes for one agent.
        play_bytes: of what one agent holds while it plays the episodes of a generation.
    """

    @property
    def kept(self) -> Sequence[Kept]: ...

    @property
    def columns(self) -> Mapping[str, Column]: ...

    @property
    def critic(self) -> int: ...

    @property
    def actor(self) -> int: ...

    @property
    def episode_steps(self) -> int: ...

    @property
    def holds_out(self) -> bool: ...

    @property
    def noise_values(self) -> int: ...

    @property
    def recorded_row_bytes(self) -> int: ...

    @property
    def names_listed(self) -> int: ...

    @property
    def learning(self) -> str: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def play_bytes(self) -> int: ...

    def evaluate(self, agents: int) -> int:
        """The most at once while so many agents play the episodes of a generation together (bytes)."""

    def hold_out(self, agents: int) -> int:
        """The most at once while so many agents play the holdout episodes together (bytes)."""

    def sampler(self, rows: int) -> Operation:
        """What drawing batches from so many stored transitions holds: the sampler, and the most while it is made."""

    def batch(self, agents: int, batch_size: int) -> BatchNeeds:
        """What learning from a batch needs."""

    def changes(self) -> Iterator[Change]:
        """Yield settings of the task and its networks that lower its needs, those that change the run least first."""

    def sample(self, *, whole_group: bool) -> Sample:
        """Return a piece of the run.

        Args:
            whole_group: a group of agents with everything that it computes, for up to minutes; else some seconds.
        """


def row_bytes(columns: Mapping[str, Column]) -> int:
    """Bytes of one stored transition."""
    return sum(column.dtype.itemsize * prod(column.shape) for column in columns.values())
