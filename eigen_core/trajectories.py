"""The trajectory buffer: what agents did since they last learned, step by step, in memory that is used again.

Its tensors are `[steps, agents * trajectories, ...]`, agents first: consecutive agents are a slice of the second
dimension. They are allocated once. A slot is a step of a trajectory: number step * (agents * trajectories) +
trajectory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.advantages import Scan, estimate_advantages, normalise_by_agent
from eigen_core.memory import unwritten_zeros
from eigen_core.minibatches import Minibatches, draw_minibatches
from eigen_core.replay import Column

ALL_AGENTS = slice(None)

_REWARD, _TERMINAL = "reward", "terminal"
_VALUE, _ADVANTAGE, _RETURN = "value", "advantage", "return"
_ESTIMATES = {name: Column(torch.float32) for name in (_VALUE, _ADVANTAGE, _RETURN)}
_PIECE_BYTES = 8 << 20

Trajectory = Mapping[str, Tensor]
"""The columns of one trajectory, each `[steps of it, ...]`; those with a final value have one row more."""


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

    On the CPU, steps that were never written take addresses and no memory.

    Args:
        steps: most steps of a trajectory.
        agents: number of agents.
        trajectories: trajectories of an agent.
        columns: what a step consists of: `reward`, float32; `terminal`, bool, nothing follows the step; and any others.
        device: where the tensors live.
        final: columns that also have a value after the last step: the observations, if a trajectory can be truncated.
        computed: columns that trajectories do not bring and a learner writes, beside `value`, `advantage`, `return`.

    Attributes:
        lengths: steps of each trajectory that are stored, int64 `[agents * trajectories]`, on the host.

    Raises:
        ValueError: the columns cannot be those of trajectories.
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
    ) -> None:
        _require_columns(columns, final, computed or {})
        self._brought = dict(columns)
        self._kinds = {**columns, **(computed or {}), **_ESTIMATES}
        self._final = {*final, _VALUE}
        self._device = device
        self._allocate(steps, agents, trajectories)

    def _allocate(self, steps: int, agents: int, trajectories: int) -> None:
        self.steps, self.agents, self.trajectories = steps, agents, trajectories
        total = agents * trajectories
        self._columns = {
            name: _zeros((steps + (name in self._final), total, *kind.shape), kind.dtype, self._device)
            for name, kind in self._kinds.items()
        }
        self._scan = Scan.allocate(total, self._device)
        self.lengths: NDArray[np.int64] = np.zeros(total, dtype=np.int64)
        self._device_lengths = torch.zeros(total, dtype=torch.int64, device=self._device)

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
        for name, row in rows.items():
            if name not in self._columns:
                raise ValueError(f"There is no column {name} among {sorted(self._columns)}.")
            target = self.column(name, agents)[step]
            if not torch.can_cast(row.dtype, target.dtype) or row.shape != target.shape:
                raise ValueError(f"{name} of a step is {_kind(row)}, not {_kind(target)}.")
            target.copy_(row)

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

    @torch.no_grad()
    def update(self, trajectories: Sequence[Trajectory], agents: slice = ALL_AGENTS) -> Filled:
        """Replace the trajectories of some agents by these, of any lengths; where fewer come, the others are empty.

        Values are converted to the columns' types: from other floats to floats, from other integers to integers.

        Raises:
            ValueError: there are none or too many, or one does not fit; nothing has changed.
        """
        part = self._trajectories_of(agents)
        most = part.stop - part.start
        if not 0 < len(trajectories) <= most:
            raise ValueError(f"{len(trajectories)} trajectories were given, not 1 to {most}.")
        lengths = np.zeros(most, dtype=np.int64)
        for index, trajectory in enumerate(trajectories):
            lengths[index] = self._length_of(trajectory, index, trajectories[0])
        for index, trajectory in enumerate(trajectories):
            for name, source in trajectory.items():
                _copy_in_pieces(source, self._columns[name][: len(source), part.start + index])
        self.finish(lengths, agents)
        total = sum(float(_on_host(trajectory[_REWARD]).sum(dtype=np.float64)) for trajectory in trajectories)
        return Filled(int(lengths.sum()), total / int(lengths.sum()))

    def store(self, rows: Trajectory, agents: slice = ALL_AGENTS, lengths: NDArray[np.int64] | None = None) -> Filled:
        """Replace the trajectories of some agents by rows in the order of agents, trajectories and steps.

        Args:
            rows: each column, `[sum of lengths, ...]`; with one row more for each trajectory if it has a final value.
            agents: whose trajectories.
            lengths: steps of each trajectory, int64 `[agents * trajectories]`; None: all are of equal length.

        Raises:
            ValueError: the rows are not as many as the lengths say, or do not fit; nothing has changed.
        """
        self._require_names(rows, "What is stored")
        part = self._trajectories_of(agents)
        count = part.stop - part.start
        if lengths is None:
            lengths = np.full(count, len(rows[_REWARD]) // count, dtype=np.int64)
        split: dict[str, tuple[Tensor, ...]] = {}
        for name, column in rows.items():
            parts = (lengths + (name in self._final)).tolist()
            if len(parts) != count or sum(parts) != len(column):
                raise ValueError(
                    f"{name} has {len(column):,} rows, and {count} trajectories of these lengths {sum(parts):,}."
                )
            split[name] = torch.split(column, parts)
        return self.update([{name: parts[index] for name, parts in split.items()} for index in range(count)], agents)

    def estimate_advantages(self, discount: float, trace_decay: float, agents: slice = ALL_AGENTS) -> None:
        """Write the columns `advantage` and `return` of some agents from `reward`, `terminal` and `value`.

        See `eigen_core.advantages.estimate_advantages`.
        """
        part = self._trajectories_of(agents)
        longest = int(self.lengths[part].max())
        reward, terminal, value, advantage, returns = (
            self.column(name, agents) for name in (_REWARD, _TERMINAL, _VALUE, _ADVANTAGE, _RETURN)
        )
        lengths, scan = self._device_lengths[part], self._scan.part(part)
        estimate_advantages(
            reward[:longest],
            terminal[:longest],
            value,
            lengths,
            discount,
            trace_decay,
            advantage[:longest],
            returns[:longest],
            scan,
        )

    def normalise_advantages(self, agents: slice = ALL_AGENTS) -> None:
        """Shift and scale the advantages of each agent's steps to mean 0 and standard deviation 1, in place."""
        part = self._trajectories_of(agents)
        longest = int(self.lengths[part].max())
        advantages = self.column(_ADVANTAGE, agents)[:longest]
        count = len(range(self.agents)[agents])
        normalise_by_agent(advantages, self._device_lengths[part], count, self._scan.part(part))

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
        return {name: self._columns[name].flatten(0, 1)[slots] for name in names or self._brought}

    def _slots_of(self, agent: int) -> NDArray[np.int64]:
        """The slots of an agent's stored steps, in the order of trajectories and steps."""
        total = self.agents * self.trajectories
        numbers = range(agent * self.trajectories, (agent + 1) * self.trajectories)
        return np.concatenate([np.arange(self.lengths[number]) * total + number for number in numbers])

    def _trajectories_of(self, agents: slice) -> slice:
        """The second dimension's part of consecutive agents."""
        numbers = range(self.agents)[agents]
        return slice(numbers.start * self.trajectories, numbers.stop * self.trajectories)

    def _require_names(self, columns: Trajectory, called: str) -> None:
        if columns.keys() != self._brought.keys():
            raise ValueError(f"{called} has the columns {sorted(columns)}, not {sorted(self._brought)}.")

    def _length_of(self, trajectory: Trajectory, index: int, first: Trajectory) -> int:
        """Return the steps of a trajectory; refuse one that does not fit, or has other types than the first one."""
        called = f"Trajectory {index}"
        self._require_names(trajectory, called)
        length = len(trajectory[_REWARD])
        if not 0 < length <= self.steps:
            raise ValueError(f"{called} has {length:,} steps, not 1 to {self.steps:,}: the buffer's `grow` takes more.")
        for name, kind in self._brought.items():
            column = trajectory[name]
            shape = (length + (name in self._final), *kind.shape)
            if not torch.can_cast(column.dtype, kind.dtype) or column.shape != shape:
                raise ValueError(f"{called} has {name} as {_kind(column)}, not {kind.dtype} {list(shape)}.")
            if column.dtype != first[name].dtype:
                raise ValueError(f"{called} has {name} as {column.dtype}, trajectory 0 as {first[name].dtype}.")
            if column.device.type != "cpu" and column.device != self._device:
                raise ValueError(f"{called} has {name} on {column.device}, neither on {self._device} nor on the CPU.")
        return length


def _require_columns(columns: Mapping[str, Column], final: Sequence[str], computed: Mapping[str, Column]) -> None:
    wanted = {_REWARD: Column(torch.float32), _TERMINAL: Column(torch.bool)}
    for name, kind in wanted.items():
        if name not in columns or (columns[name].dtype, columns[name].shape) != (kind.dtype, kind.shape):
            raise ValueError(f"Trajectories need a column {name} of one {kind.dtype} a step.")
    names = [*columns, *computed, *_ESTIMATES]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"The columns {twice} are declared twice; {list(_ESTIMATES)} are the buffer's own.")
    unknown = sorted(set(final) - set(columns))
    if unknown:
        raise ValueError(f"The columns {unknown} with a final value are not among {sorted(columns)}.")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return unwritten_zeros(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)


def _on_host(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().cpu().numpy()
    return array


def _copy_in_pieces(source: Tensor, target: Tensor) -> None:
    row = max(prod(source.shape[1:]) * source.element_size(), 1)
    rows = max(_PIECE_BYTES // row, 1)
    for start in range(0, len(source), rows):
        target[start : start + rows].copy_(source[start : start + rows])


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
