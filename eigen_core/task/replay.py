"""The replay buffer: a ring (circular buffer) of transitions; the steps of an episode are in consecutive slots."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.common.errors import InputError
from eigen_core.machine.allocation import SharedTensor, lazy_zeros, shared_zeros


@dataclass(frozen=True)
class Column:
    """Dtype and shape of one field of a transition; `on_host`: whether to keep a copy on the CPU, for samplers."""

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    on_host: bool = False


@dataclass(frozen=True)
class Stretches:
    """Up to `steps` consecutive transitions of an episode from each of some slots on: `[*slots, steps]`.

    Attributes:
        slots: int64, slot of each transition; no meaning where `mask` is false.
        mask: bool, the transition is of the same episode as the first one, and was stored after it.
    """

    slots: Tensor
    mask: Tensor

    @property
    def steps(self) -> Tensor:
        """Number of transitions in each stretch, int64 `[*slots]`, at least 1."""
        return self.mask.sum(-1)

    @property
    def last(self) -> Tensor:
        """Slot of the last transition of each stretch, int64 `[*slots]`."""
        return self.slots.gather(-1, self.steps[..., None] - 1)[..., 0]


class Replay:
    """A ring of transitions on a device. On the CPU, slots that were never written take no memory.

    Attributes:
        written: number of transitions ever appended; transition number n (from 0) is in slot n % capacity.
    """

    def __init__(self, capacity: int, columns: Mapping[str, Column], device: torch.device) -> None:
        self._kinds = dict(columns)
        self._columns = {
            name: unwritten((capacity, *column.shape), column.dtype, device) for name, column in columns.items()
        }
        self.written = 0
        self._shared: dict[str, SharedTensor] = {}
        self._keep_on_host(0)

    @property
    def capacity(self) -> int:
        return int(next(iter(self._columns.values())).shape[0])

    @property
    def size(self) -> int:
        return min(self.written, self.capacity)

    @property
    def cursor(self) -> int:
        """Slot of the next transition that is appended."""
        return self.written % self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the ring when it is full."""
        return sum(column.nbytes for column in self._columns.values())

    @property
    def bytes_per_transition(self) -> float:
        return self.nbytes / self.capacity

    def append(self, rows: Mapping[str, Tensor]) -> None:
        """Store transitions, `[rows, ...]` by column, in place of the oldest; InputError if more than the capacity."""
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
        """Return a buffer with `rows` appended, which shares this buffer's memory; this buffer's `written` stays.

        A caller can so commit the rows together with other changes: until it replaces this buffer by the returned one,
        it can append the same rows again, with the same result.
        """
        further = copy(self)
        further.append(rows)
        return further

    def follow(self, other: "Replay") -> None:
        """Append the transitions that another buffer has and this one has not, or all if the other overwrote some.

        The other buffer may be on another device; its capacity, its columns and its first rows must be the same.
        """
        if not other.written - other.size <= self.written <= other.written:
            self.written = other.written - other.size
        self.append(other.newest(other.written - self.written))

    def on_host(self, name: str) -> Tensor:
        """Return the copy on the CPU of a column that has `Column.on_host`: `[size, ...]`."""
        return self._host[name][: self.size]

    def pick(self, slots: Tensor, *names: str) -> dict[str, Tensor]:
        """Return the transitions in `slots`, int64 of any shape: `[*slots, ...]` of each of `names` (none: of all)."""
        return {name: self._columns[name][slots] for name in names or self._columns}

    def newest(self, count: int) -> dict[str, Tensor]:
        """Return the `count` newest transitions, oldest first: `[count, ...]` of each column."""
        first = next(iter(self._columns.values()))
        return self.pick((torch.arange(self.written - count, self.written, device=first.device)) % self.capacity)

    def stretches(self, slots: Tensor, steps: int, end: str) -> Stretches:
        """Return up to `steps` consecutive transitions from each of `slots` on, int64 of any shape.

        A stretch ends early at the last step of its episode, where column `end` is true, or at the newest transition.
        """
        ahead = torch.arange(steps, device=slots.device)
        following = (slots[..., None] + ahead) % self.capacity
        newer = (self.cursor - 1 - slots) % self.capacity
        goes_on = ~self._columns[end][following.roll(1, -1)]
        goes_on[..., 0] = True
        return Stretches(following, (goes_on & (ahead <= newer[..., None])).cummin(-1).values)

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored transitions, `[size, ...]` by column, and as `position` the ring's capacity and cursor."""
        columns = {name: column[: self.size] for name, column in self._columns.items()}
        position = torch.tensor([self.capacity, self.cursor], dtype=torch.int64)
        return {**columns, "position": position}

    def ring(self) -> Ring:
        """Return the buffer as a checkpoint stores it; the ring shares this buffer's memory."""
        return Ring(self._columns, self.size, self.written)

    @classmethod
    def from_ring(cls, ring: Ring, columns: Mapping[str, Column], device: torch.device) -> "Replay":
        """Return the buffer of a checkpoint's ring; it shares the ring's memory if that is on `device`.

        Raises:
            ValueError: names, dtypes or shapes of the ring's columns differ from `columns`.
        """
        wanted = {name: (column.dtype, column.shape) for name, column in columns.items()}
        found = {name: (column.dtype, tuple(column.shape[1:])) for name, column in ring.columns.items()}
        if found != wanted:
            raise ValueError(f"The stored columns {found} are not the columns of this replay: {wanted}.")
        replay = cls(0, columns, device)
        replay._columns = {name: column.to(device) for name, column in ring.columns.items()}
        replay.written = ring.written
        replay._keep_on_host(ring.size)
        return replay

    def share(self) -> Mapping[str, SharedTensor]:
        """Return references to the columns in shared memory, for other processes; the first call moves them there.

        These processes see later transitions at once. Call it only if `machine.shares_memory` is true for the device.

        Raises:
            OSError: the operating system refuses shared memory.
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


def unwritten(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on the CPU they take memory only once they are written."""
    return lazy_zeros(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)


def _on_host(column: Tensor, size: int) -> Tensor:
    """Return the column itself if it is on the CPU, else a copy on the CPU, of which the first `size` rows are set."""
    if column.device.type == "cpu":
        return column
    host = lazy_zeros(column.shape, column.dtype)
    host[:size] = column[:size].cpu()
    return host
