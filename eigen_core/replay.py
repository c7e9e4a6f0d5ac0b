"""The replay buffer: a ring of transitions that name their day instead of carrying its window.

The next observation of a transition is the portfolio of the slot after it and the day after its day: episodes are
stored step after step, and the last transition of each is terminal.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.checkpoint import Ring
from eigen_core.checkpoint.snapshot import slot_ranges
from eigen_core.errors import InputError
from eigen_core.memory import unwritten_zeros
from eigen_core.networks import ACTION_VALUES

_ROWS_AT_A_TIME = 1 << 18
"""Rows that are looked at together, so that looking takes a few megabytes."""


@dataclass(frozen=True)
class EpisodeBatch:
    """Whole episodes, step after step; `[episodes, days, ...]`.

    Attributes:
        first_days: int64 `[episodes]`, day of each episode's first step.
        portfolios: float16 `[episodes, days, assets, values]`, before the decision; no values if not observed.
        actions: float32 `[episodes, days, assets, 2]`, coefficient and target.
        rewards: float32 `[episodes, days]`.
    """

    first_days: Tensor
    portfolios: Tensor
    actions: Tensor
    rewards: Tensor


@dataclass(frozen=True)
class TransitionBatch:
    """Transitions picked from the replay; `[agents, batch, ...]`.

    Attributes:
        days: int64, the decision's day; the next observation is on the next day.
        steps: int64, the step in the episode.
        portfolios, next_portfolios: float32 `[agents, batch, assets, values]`.
        actions: float32 `[agents, batch, assets, 2]`.
        rewards: float32.
        terminal: bool, the episode ends with this step.
    """

    days: Tensor
    steps: Tensor
    portfolios: Tensor
    next_portfolios: Tensor
    actions: Tensor
    rewards: Tensor
    terminal: Tensor


class Replay:
    """A ring of transitions on the device. On the CPU, slots that were never written take addresses and no memory.

    Args:
        capacity: transitions kept.
        assets: tradable columns.
        portfolio_values: values of an asset's portfolio state that are observed, 0 or 4.
        device: where the ring lives.

    Attributes:
        written: transitions ever appended; number n (from 0) is in slot n % capacity.
    """

    def __init__(self, capacity: int, assets: int, portfolio_values: int, device: torch.device) -> None:
        self.day = _unwritten(device, torch.int32, capacity)
        self.step = _unwritten(device, torch.int16, capacity)
        self.portfolio = _unwritten(device, torch.float16, capacity, assets, portfolio_values)
        self.action = _unwritten(device, torch.float32, capacity, assets, ACTION_VALUES)
        self.reward = _unwritten(device, torch.float32, capacity)
        self.terminal = _unwritten(device, torch.bool, capacity)
        self.written = 0
        self._host_day = _on_host(self.day, 0)

    @property
    def capacity(self) -> int:
        """Transitions that the ring can hold."""
        return int(self.day.shape[0])

    @property
    def size(self) -> int:
        """Transitions that are stored."""
        return min(self.written, self.capacity)

    @property
    def cursor(self) -> int:
        """Slot of the next transition."""
        return self.written % self.capacity

    def _columns(self) -> dict[str, Tensor]:
        return {
            "day": self.day,
            "step": self.step,
            "portfolio": self.portfolio,
            "action": self.action,
            "reward": self.reward,
            "terminal": self.terminal,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the ring at capacity."""
        return sum(column.nbytes for column in self._columns().values())

    @property
    def bytes_per_transition(self) -> float:
        """Bytes that one transition takes."""
        return self.nbytes / self.capacity

    def append(self, episodes: EpisodeBatch) -> None:
        """Store episodes in their order, overwriting the oldest transitions.

        Raises:
            InputError: the episodes are more than the ring can hold.
        """
        count, days = episodes.rewards.shape
        total = count * days
        if total > self.capacity:
            raise InputError(
                f"replay.capacity {self.capacity:,} is below the {total:,} transitions of one generation: raise it."
            )
        steps = torch.arange(days, device=self.day.device)
        slots = (torch.arange(total, device=self.day.device) + self.cursor) % self.capacity
        day = (episodes.first_days[:, None] + steps).flatten().to(torch.int32)
        self.day[slots] = day
        self.step[slots] = steps.repeat(count).to(torch.int16)
        self.portfolio[slots] = episodes.portfolios.flatten(0, 1)
        self.action[slots] = episodes.actions.flatten(0, 1)
        self.reward[slots] = episodes.rewards.flatten()
        self.terminal[slots] = (steps == days - 1).repeat(count)
        self._host_day[slots.cpu()] = day.cpu()
        self.written += total

    def appended(self, episodes: EpisodeBatch) -> "Replay":
        """Return this buffer with `episodes` stored. Memory is shared; this object still stands where it stood.

        So that storing can be committed together with other things: until the returned object takes this one's place,
        the same episodes can be stored again, with the same result.

        Raises:
            InputError: the episodes are more than the ring can hold.
        """
        further = copy(self)
        further.append(episodes)
        return further

    def stored_days(self) -> NDArray[np.int32]:
        """Day of each stored transition by slot, on the host: int32 `[size]`."""
        days: NDArray[np.int32] = self._host_day[: self.size].numpy()
        return days

    def pick(self, slots: Tensor) -> TransitionBatch:
        """Return the transitions in `slots`, int64 `[agents, batch]`."""
        following = (slots + 1) % self.capacity
        return TransitionBatch(
            days=self.day[slots].long(),
            steps=self.step[slots].long(),
            portfolios=self.portfolio[slots].float(),
            next_portfolios=self.portfolio[following].float(),
            actions=self.action[slots],
            rewards=self.reward[slots],
            terminal=self.terminal[slots],
        )

    def tensors(self) -> dict[str, Tensor]:
        """What is stored, by name, with the ring's position; columns are cut to the stored size."""
        columns = {name: column[: self.size] for name, column in self._columns().items()}
        position = torch.tensor([self.capacity, self.cursor], dtype=torch.int64)
        return {**columns, "position": position}

    def ring(self) -> Ring:
        """The buffer as checkpoints take it; its columns are this buffer's memory."""
        return Ring(self._columns(), self.size, self.written)

    @classmethod
    def from_ring(cls, ring: Ring, device: torch.device, *, take_memory: bool = False) -> "Replay":
        """Inverse of `ring`, on `device`.

        Args:
            ring: the columns of a buffer.
            device: where the buffer lives.
            take_memory: columns that are on `device` already become the buffer's own; else they are copied.

        Raises:
            ValueError: the columns are not those of a replay buffer.
        """
        portfolio = ring.columns["portfolio"] if "portfolio" in ring.columns else torch.empty(0)
        if portfolio.ndim != 3:
            raise ValueError(f"columns {sorted(ring.columns)} with portfolios {list(portfolio.shape)} are no replay")
        capacity = 0 if take_memory else ring.capacity
        replay = cls(capacity, portfolio.shape[1], portfolio.shape[2], device)
        if _kinds(ring.columns) != _kinds(replay._columns()):
            raise ValueError(f"{_kinds(ring.columns)} are not the columns of a replay, {_kinds(replay._columns())}")
        for name, column in ring.columns.items():
            if take_memory:
                setattr(replay, name, column.to(device))
            else:
                getattr(replay, name)[: ring.size] = column[: ring.size]
        replay.written = ring.written
        replay._host_day = _on_host(replay.day, ring.size)
        return replay


def _unwritten(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Zeros; on the CPU what is not written takes no memory."""
    return unwritten_zeros(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)


def _on_host(column: Tensor, size: int) -> Tensor:
    """The column itself if it is on the CPU; else a column there with the first `size` values."""
    if column.device.type == "cpu":
        return column
    host = unwritten_zeros(column.shape, column.dtype)
    host[:size] = column[:size].cpu()
    return host


def _kinds(columns: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Type of each column, and the shape of one transition in it."""
    return {name: (column.dtype, tuple(column.shape[1:])) for name, column in columns.items()}


def wrong_rows(ring: Ring, starts: range, episode_days: int) -> str | None:
    """Return what is wrong with the rows of a replay's ring as a part of a sentence, None if nothing is.

    Rows are whole episodes, step after step from row 0 on: a row's number tells its step.

    Args:
        ring: columns `day`, `step` and `terminal`, on the CPU.
        starts: days on which an episode may begin.
        episode_days: days of an episode.
    """
    began_before: Tensor | None = None
    oldest = ring.written - ring.size
    for first, slots in slot_ranges(ring.capacity, oldest, ring.written, _ROWS_AT_A_TIME):
        steps = torch.arange(first, first + slots.stop - slots.start) % episode_days
        if not torch.equal(ring.columns["step"][slots].long(), steps):
            return "has steps out of their order"
        if not torch.equal(ring.columns["terminal"][slots], steps == episode_days - 1):
            return "does not end its episodes with their last step"
        began = ring.columns["day"][slots].long() - steps
        if began.min() < starts.start or began.max() >= starts.stop:
            return f"has days of episodes that do not begin on days {starts.start} to {starts.stop - 1}"
        joined = began if began_before is None else torch.cat([began_before, began])
        if bool(((joined[1:] != joined[:-1]) & (steps[len(steps) - len(joined) + 1 :] > 0)).any()):
            return "has episodes whose days do not follow one another"
        began_before = began[-1:]
    return None


class DistinctDaySampler:
    """Draws batches whose transitions are all of different days.

    A day that occurs twice in a batch would make the encoder's gradient a sum whose order depends on the device;
    adjacent days carry nearly the same information anyway. Days are drawn uniformly without replacement, then one
    transition of each day uniformly.

    Args:
        stored_days: day of each slot, int32 `[size]`, as `Replay.stored_days` returns it.
    """

    def __init__(self, stored_days: NDArray[np.int32]) -> None:
        self._order = np.argsort(stored_days, kind="stable")
        days = stored_days[self._order]
        is_first = np.ones(len(days), dtype=np.bool_)
        np.not_equal(days[1:], days[:-1], out=is_first[1:])
        self._starts = np.flatnonzero(is_first)
        self._days = days[self._starts]
        self._counts = np.diff(self._starts, append=len(days))

    def block_starts(self, block_days: int, stop: int, batch_size: int) -> NDArray[np.int64]:
        """Days before `stop - block_days + 1` from which a block holds at least `batch_size` different stored days."""
        starts = np.arange(max(stop - block_days, 0) + 1, dtype=np.int64)
        low = np.searchsorted(self._days, starts)
        high = np.searchsorted(self._days, starts + block_days)
        return starts[high - low >= batch_size]

    def draw(self, generator: np.random.Generator, batch_size: int, first_day: int, last_day: int) -> NDArray[np.int64]:
        """Draw slots of `batch_size` transitions on different days between two days, both included: int64 `[batch]`.

        Raises:
            ValueError: fewer different days are stored there.
        """
        low, high = (int(bound) for bound in np.searchsorted(self._days, [first_day, last_day + 1]))
        chosen = low + generator.choice(high - low, size=batch_size, replace=False)
        within = generator.integers(0, self._counts[chosen])
        slots: NDArray[np.int64] = self._order[self._starts[chosen] + within]
        return slots
