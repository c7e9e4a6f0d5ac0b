"""The replay buffer: a ring of transitions, whose columns the task declares.

Episodes are stored step after step: the next observation of a transition is in the slot after it.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.checkpoint.ring import Ring
from eigen_core.common.errors import InputError
from eigen_core.machine import SharedTensor, shared_zeros, unwritten_zeros


@dataclass(frozen=True)
class Column:
    """One value, or array of values, of each stored transition.

    Attributes:
        dtype: type of its values.
        shape: its shape for one transition.
        on_host: it is kept on the host too, where batches are drawn by it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    on_host: bool = False


@dataclass(frozen=True)
class Stretches:
    """Transitions of one episode from each of some slots on; `[*slots, steps]`.

    Attributes:
        slots: int64; where `taken` is false, they have no meaning.
        taken: bool, the transition is of the episode of the first, and was stored after it.
    """

    slots: Tensor
    taken: Tensor

    @property
    def steps(self) -> Tensor:
        """How many transitions each has, int64 `[*slots]`: at least one."""
        return self.taken.sum(-1)

    @property
    def last(self) -> Tensor:
        """Slot of the last transition of each, int64 `[*slots]`."""
        return self.slots.gather(-1, self.steps[..., None] - 1)[..., 0]


class Replay:
    """A ring of transitions on the device. On the CPU, slots that were never written take addresses and no memory.

    Args:
        capacity: transitions kept.
        columns: what a transition consists of.
        device: where the ring lives.

    Attributes:
        written: transitions ever appended; number n (from 0) is in slot n % capacity.
    """

    def __init__(self, capacity: int, columns: Mapping[str, Column], device: torch.device) -> None:
        self._kinds = dict(columns)
        self._columns = {
            name: _unwritten(device, column.dtype, capacity, *column.shape) for name, column in columns.items()
        }
        self.written = 0
        self._shared: dict[str, SharedTensor] = {}
        self._keep_on_host(0)

    @property
    def capacity(self) -> int:
        """Transitions that the ring can hold."""
        return int(next(iter(self._columns.values())).shape[0])

    @property
    def size(self) -> int:
        """Transitions that are stored."""
        return min(self.written, self.capacity)

    @property
    def cursor(self) -> int:
        """Slot of the next transition."""
        return self.written % self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the ring at capacity."""
        return sum(column.nbytes for column in self._columns.values())

    @property
    def bytes_per_transition(self) -> float:
        """Bytes that one transition takes."""
        return self.nbytes / self.capacity

    def append(self, rows: Mapping[str, Tensor]) -> None:
        """Store transitions `[rows, ...]` in their order, overwriting the oldest.

        Raises:
            InputError: they are more than the ring can hold.
        """
        total = len(next(iter(rows.values())))
        if total > self.capacity:
            raise InputError(
                f"replay.capacity {self.capacity:,} is below the {total:,} transitions of one generation: raise it."
            )
        first = next(iter(self._columns.values()))
        slots = (torch.arange(total, device=first.device) + self.cursor) % self.capacity
        for name, column in self._columns.items():
            column[slots] = rows[name].to(column.device, column.dtype)
        for name, column in self._host.items():
            if column is not self._columns[name]:
                column[slots.cpu()] = rows[name].to(column.dtype).cpu()
        self.written += total

    def appended(self, rows: Mapping[str, Tensor]) -> "Replay":
        """Return this buffer with `rows` stored. Memory is shared; this object still stands where it stood.

        So that storing can be committed together with other things: until the returned object takes this one's place,
        the same rows can be stored again, with the same result.

        Raises:
            InputError: the rows are more than the ring can hold.
        """
        further = copy(self)
        further.append(rows)
        return further

    def follow(self, other: "Replay") -> None:
        """Hold what another buffer holds: what is new there is copied, or all of it if this one is too far behind.

        Args:
            other: of the same capacity and columns, on any device. This buffer was given the first of its transitions.
        """
        if not other.written - other.size <= self.written <= other.written:
            self.written = other.written - other.size
        self.append(other.newest(other.written - self.written))

    def on_host(self, name: str) -> Tensor:
        """Return what is stored of a column that is kept on the host: `[size, ...]`."""
        return self._host[name][: self.size]

    def pick(self, slots: Tensor, *names: str) -> dict[str, Tensor]:
        """Return the named columns, or all, of the transitions in `slots`, int64 of any shape: `[*slots, ...]` each."""
        return {name: self._columns[name][slots] for name in names or self._columns}

    def newest(self, count: int) -> dict[str, Tensor]:
        """Return the transitions that were appended last, the newest last: `[count, ...]` of each column."""
        first = next(iter(self._columns.values()))
        return self.pick((torch.arange(self.written - count, self.written, device=first.device)) % self.capacity)

    def stretches(self, slots: Tensor, steps: int, end: str) -> Stretches:
        """Return up to `steps` transitions from each of `slots` on, int64 of any shape.

        They go up to the end of an episode, which the bool column `end` marks, and to the newest stored transition.
        """
        ahead = torch.arange(steps, device=slots.device)
        following = (slots[..., None] + ahead) % self.capacity
        newer = (self.cursor - 1 - slots) % self.capacity
        goes_on = ~self._columns[end][following.roll(1, -1)]
        goes_on[..., 0] = True
        return Stretches(following, (goes_on & (ahead <= newer[..., None])).cummin(-1).values)

    def tensors(self) -> dict[str, Tensor]:
        """Stored columns by name, with the ring's position; columns are cut to the stored size."""
        columns = {name: column[: self.size] for name, column in self._columns.items()}
        position = torch.tensor([self.capacity, self.cursor], dtype=torch.int64)
        return {**columns, "position": position}

    def ring(self) -> Ring:
        """The buffer as checkpoints take it; its columns are this buffer's memory."""
        return Ring(self._columns, self.size, self.written)

    @classmethod
    def from_ring(
        cls, ring: Ring, columns: Mapping[str, Column], device: torch.device, *, take_memory: bool = False
    ) -> "Replay":
        """Inverse of `ring`, on `device`.

        Args:
            ring: the columns of a buffer.
            columns: what a transition consists of.
            device: where the buffer lives.
            take_memory: columns that are on `device` already become the buffer's own; else they are copied.

        Raises:
            ValueError: the ring's columns are others.
        """
        wanted = {name: (column.dtype, column.shape) for name, column in columns.items()}
        found = {name: (column.dtype, tuple(column.shape[1:])) for name, column in ring.columns.items()}
        if found != wanted:
            raise ValueError(f"{found} are not the columns of this replay, {wanted}")
        replay = cls(0 if take_memory else ring.capacity, columns, device)
        for name, column in ring.columns.items():
            if take_memory:
                replay._columns[name] = column.to(device)
            else:
                replay._columns[name][: ring.size] = column[: ring.size]
        replay.written = ring.written
        replay._keep_on_host(ring.size)
        return replay

    def share(self) -> Mapping[str, SharedTensor]:
        """Return where other processes of this machine find the columns; the first call moves them there.

        What is appended later is there at once. On the CPU (`shares_memory`).

        Raises:
            OSError: the system refuses such memory.
        """
        for name, column in self._columns.items():
            if name not in self._shared:
                shared, where = shared_zeros(column.shape, column.dtype)
                shared[: self.size] = column[: self.size]
                self._columns[name], self._shared[name] = shared, where
                if name in self._host:
                    self._host[name] = shared
        return self._shared

    def _keep_on_host(self, size: int) -> None:
        named = [name for name, column in self._kinds.items() if column.on_host]
        self._host = {name: _on_host(self._columns[name], size) for name in named}


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
