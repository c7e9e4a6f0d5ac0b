"""The trajectory buffer: what agents did since they last learned, step by step, in memory that is used again.

Its tensors are `[steps, agents * trajectories, ...]`, agents first: consecutive agents are a slice of the second
dimension. A slot is a step of a trajectory: number step * (agents * trajectories) + trajectory.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.replay import Column
from eigen_core.trajectories.advantages import Scratch, estimate_advantages, normalise_by_agent
from eigen_core.trajectories.columns import (
    ADVANTAGE,
    RETURN,
    REWARD,
    TERMINAL,
    VALUE,
    Trajectory,
    TrajectoryColumns,
    kind_of,
    require_same_types,
)
from eigen_core.trajectories.minibatches import Minibatches, draw_minibatches
from eigen_core.trajectories.staging import PIECE_BYTES, HostToDevice, copy_pieces
from eigen_core.trajectories.storage import ColumnMemory

ALL_AGENTS = slice(None)


@dataclass(frozen=True)
class Filled:
    """What an update has stored.

    Attributes:
        steps: steps of all trajectories.
        mean_reward: their mean reward.
    """

    steps: int
    mean_reward: float


class TrajectoryBuffer:
    """Trajectories of all agents, each an episode, or the part of one up to a time limit.

    Its memory is allocated once; `grow` alone allocates again. On the CPU, steps that were never written take addresses
    and no memory. Trajectories larger than the memory there is can be kept in files (`folder`) and stored piece by
    piece (`stream`): what is written or read of them does not stay in memory.

    Args:
        steps: most steps of a trajectory.
        agents: number of agents.
        trajectories: trajectories of an agent.
        columns: what a step consists of: `reward`, float32; `terminal`, bool, nothing follows the step; and any others.
        device: where the tensors live.
        final: columns that also have a value after the last step: the observations, if a trajectory can be truncated.
        computed: columns that trajectories do not bring and a learner writes, beside `value`, `advantage`, `return`.
        folder: where the columns that trajectories bring are kept in files, which are gone with the process; None: in
            memory.

    Attributes:
        lengths: steps of each trajectory that are stored, int64 `[agents * trajectories]`, on the host.

    Raises:
        ValueError: the columns cannot be those of trajectories; there is a folder and the device is not the CPU.
        InputError: the folder cannot hold the files.
    """

    def __init__(
        self,
        steps: int,
        agents: int,
        trajectories: int,
        columns: Mapping[str, Column],
        device: torch.device,
        final: Sequence[str] = (),
        computed: Mapping[str, Column] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._kinds = TrajectoryColumns(columns, final, computed or {})
        self._device = device
        self._memory = ColumnMemory(device, folder, set(columns))
        self._allocate(steps, agents, trajectories)

    def _allocate(self, steps: int, agents: int, trajectories: int) -> None:
        total = agents * trajectories
        self._columns = {
            name: self._memory.zeros(name, (self._kinds.rows(name, steps), total, *kind.shape), kind.dtype)
            for name, kind in self._kinds.kinds.items()
        }
        self._scratch = Scratch.allocate(total, self._device)
        self._device_lengths = torch.zeros(total, dtype=torch.int64, device=self._device)
        self.lengths: NDArray[np.int64] = np.zeros(total, dtype=np.int64)
        self.steps, self.agents, self.trajectories = steps, agents, trajectories

    def grow(self, steps: int, trajectories: int) -> bool:
        """Make the buffer large enough for trajectories of `steps` steps, and for so many of each agent.

        Both become the larger of what they were and what is asked for, and nothing more. Return whether anything was
        allocated: then what was stored is gone, as its memory is released first (unless a result of `column` is still
        held). If the new memory cannot be had, the buffer is left without any.

        Raises:
            MemoryError, torch.OutOfMemoryError, InputError: there is not so much memory, or disk.
        """
        steps, trajectories = max(steps, self.steps), max(trajectories, self.trajectories)
        if (steps, trajectories) == (self.steps, self.trajectories):
            return False
        with ExitStack() as where_it_fails:
            where_it_fails.callback(self._allocate, 0, self.agents, 0)
            self._allocate(0, self.agents, 0)
            self._memory.release_freed()
            self._allocate(steps, self.agents, trajectories)
            where_it_fails.pop_all()
        return True

    @property
    def device(self) -> torch.device:
        """Where the tensors live, with its index."""
        return self._device_lengths.device

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.steps * self.agents * self.trajectories

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in self._columns.values())

    def column(self, name: str, agents: slice = ALL_AGENTS) -> Tensor:
        """Return the memory of a column, `[steps, agents * trajectories, ...]`; one step more if it has a final value.

        What is written to it is stored.
        """
        return self._columns[name][:, self._trajectories_of(agents)]

    def by_agent(self, name: str, agents: slice = ALL_AGENTS) -> Tensor:
        """Return the memory of a column, `[agents, trajectories, steps, ...]`; it is not contiguous."""
        column = self.column(name, agents)
        return column.view(len(column), -1, self.trajectories, *column.shape[2:]).movedim(0, 2)

    def counted(self, agents: slice = ALL_AGENTS) -> Tensor:
        """Return which steps are stored: bool `[steps, agents * trajectories]`."""
        steps = torch.arange(self.steps, device=self._device)[:, None]
        return steps < self._device_lengths[self._trajectories_of(agents)]

    @torch.no_grad()
    def write(self, step: int, rows: Mapping[str, Tensor], agents: slice = ALL_AGENTS) -> None:
        """Store columns of one step, each `[agents * trajectories, ...]`, as it happens; `finish` says which count.

        Raises:
            ValueError: there is no such column, or one is of another kind.
        """
        part = self._trajectories_of(agents)
        for name, row in rows.items():
            if name not in self._columns:
                raise ValueError(f"There is no column {name} among {sorted(self._columns)}.")
            target = self._columns[name][step][part]
            if not torch.can_cast(row.dtype, target.dtype) or row.shape != target.shape:
                raise ValueError(f"{name} of a step is {kind_of(row)}, not {kind_of(target)}.")
            target.copy_(row)
        self._memory.release_mapped()

    def finish(self, lengths: NDArray[np.int64], agents: slice = ALL_AGENTS) -> None:
        """Set how many steps of each trajectory are stored: int64 `[agents * trajectories]`.

        Raises:
            ValueError: they are not as many as the trajectories, or beyond what a trajectory can hold.
        """
        part = self._trajectories_of(agents)
        if lengths.shape != self.lengths[part].shape:
            raise ValueError(f"{len(lengths)} lengths were given for {len(self.lengths[part])} trajectories.")
        if lengths.min() < 0 or lengths.max() > self.steps:
            raise ValueError(f"Lengths are {lengths.min()} to {lengths.max()}, not 0 to {self.steps}.")
        self.lengths[part] = lengths
        self._device_lengths[part].copy_(torch.from_numpy(self.lengths[part]))

    def update(self, trajectories: Sequence[Trajectory], agents: slice = ALL_AGENTS) -> Filled:
        """Replace the trajectories of some agents by these, of any lengths; where fewer come, the others are empty.

        Values are converted to the columns' types: from other floats to floats, from other integers to integers.

        Raises:
            ValueError: there are none or too many, or one does not fit; nothing has changed.
        """
        self._require_count(len(trajectories), agents)
        for index, trajectory in enumerate(trajectories):
            called = f"Trajectory {index}"
            self._kinds.require_fit(trajectory, called, self.device)
            self._kinds.require_lengths({name: len(rows) for name, rows in trajectory.items()}, called, self.steps)
        require_same_types(trajectories)
        return self.stream(([trajectory] for trajectory in trajectories), agents)

    @torch.no_grad()
    def stream(self, trajectories: Iterable[Iterable[Trajectory]], agents: slice = ALL_AGENTS) -> Filled:
        """Replace the trajectories of some agents as `update` does, each coming as pieces of consecutive steps.

        Beside the buffer there is one piece in memory. The last piece of a trajectory brings the final values.

        Raises:
            ValueError: there are none or too many, or a piece does not fit; these agents are left without trajectories.
        """
        part = self._trajectories_of(agents)
        lengths = np.zeros(part.stop - part.start, dtype=np.int64)
        self.finish(lengths, agents)
        total, count = 0.0, 0
        for count, pieces in enumerate(trajectories, start=1):
            self._require_count(count, agents)
            rows = dict.fromkeys(self._kinds.brought, 0)
            called = f"Trajectory {count - 1}"
            for piece in pieces:
                self._kinds.require_fit(piece, called, self.device)
                for name, source in piece.items():
                    self._put(name, part.start + count - 1, rows[name], source, called)
                    rows[name] += len(source)
                total += _sum(piece[REWARD])
            lengths[count - 1] = self._kinds.require_lengths(rows, called, self.steps)
        self._require_count(count, agents)
        self.finish(lengths, agents)
        return Filled(int(lengths.sum()), total / int(lengths.sum()))

    def estimate_advantages(self, discount: float | Tensor, trace_decay: float, agents: slice = ALL_AGENTS) -> None:
        """Write the columns `advantage` and `return` of some agents from `reward`, `terminal` and `value`.

        See `eigen_core.trajectories.advantages.estimate_advantages`.
        """
        part = self._trajectories_of(agents)
        names = (REWARD, TERMINAL, VALUE, ADVANTAGE, RETURN)
        columns = {name: self.column(name, agents) for name in names}
        lengths, longest = self._device_lengths[part], int(self.lengths[part].max(initial=0))
        estimate_advantages(columns, lengths, longest, discount, trace_decay, self._scratch.part(part))

    def normalise_advantages(self, agents: slice = ALL_AGENTS) -> None:
        """Shift and scale the advantages of each agent's steps to mean 0 and standard deviation 1, in place."""
        part = self._trajectories_of(agents)
        advantages = self.column(ADVANTAGE, agents)[: int(self.lengths[part].max(initial=0))]
        normalise_by_agent(advantages, self._device_lengths[part], self.trajectories, self._scratch.part(part))

    def minibatches(
        self, count: int, generators: Sequence[np.random.Generator], agents: slice = ALL_AGENTS
    ) -> Minibatches:
        """Draw an epoch: each stored step is in exactly one of its agent's `count` minibatches.

        Their shape is the same whatever the lengths are: a batch can hold an equal share of an agent's slots. See
        `draw_minibatches`.
        """
        batch = -(-self.steps * self.trajectories // count)
        slots = [self._slots_of(agent) for agent in range(self.agents)[agents]]
        return draw_minibatches(slots, count, batch, generators, self._device)

    def pick(self, slots: Tensor, *names: str) -> dict[str, Tensor]:
        """Return the named columns, or those of trajectories, in `slots`, int64 of any shape: `[*slots, ...]` each."""
        picked = {name: self._columns[name].flatten(0, 1)[slots] for name in names or self._kinds.brought}
        self._memory.release_mapped()
        return picked

    @cached_property
    def _staging(self) -> HostToDevice:
        return HostToDevice(self.device, max(PIECE_BYTES, self._kinds.largest_row))

    def _put(self, name: str, number: int, first: int, source: Tensor, called: str) -> None:
        """Store consecutive steps of a column of one trajectory, from step `first` on."""
        target = self._columns[name][first : first + len(source), number]
        if len(target) != len(source):
            raise ValueError(f"{called} has more than {self.steps:,} steps: the buffer's `grow` allows for more.")
        if source.device.type == "cpu" != self.device.type:
            self._staging.copy(source, target)
            return
        for part, there in copy_pieces(source, target):
            there.copy_(part)
            self._memory.release_mapped()

    def _require_count(self, count: int, agents: slice) -> None:
        part = self._trajectories_of(agents)
        if not 0 < count <= part.stop - part.start:
            raise ValueError(f"{count} trajectories were given, not 1 to {part.stop - part.start}.")

    def _slots_of(self, agent: int) -> NDArray[np.int64]:
        """The slots of an agent's stored steps, in the order of trajectories and steps."""
        total = self.agents * self.trajectories
        numbers = range(agent * self.trajectories, (agent + 1) * self.trajectories)
        return np.concatenate([np.arange(self.lengths[number]) * total + number for number in numbers])

    def _trajectories_of(self, agents: slice) -> slice:
        """The second dimension's part of consecutive agents."""
        numbers = range(self.agents)[agents]
        return slice(numbers.start * self.trajectories, numbers.stop * self.trajectories)


def _sum(rewards: Tensor) -> float:
    return float(rewards.detach().cpu().numpy().sum(dtype=np.float64))
