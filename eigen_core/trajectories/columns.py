"""What a step of a trajectory consists of, and whether a trajectory consists of that."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eigen_core.replay import Column

REWARD, TERMINAL = "reward", "terminal"
VALUE, ADVANTAGE, RETURN = "value", "advantage", "return"

_ESTIMATES = {name: Column(torch.float32) for name in (VALUE, ADVANTAGE, RETURN)}
_NEEDED = {REWARD: Column(torch.float32), TERMINAL: Column(torch.bool)}

Trajectory = Mapping[str, Tensor]
"""The columns of one trajectory, each `[steps of it, ...]`; those with a final value have one row more."""


class TrajectoryColumns:
    """The columns of a trajectory buffer.

    Args:
        brought: those that trajectories bring.
        final: which of them also have a value after the last step.
        computed: those that a learner writes, beside `value`, `advantage` and `return`.

    Attributes:
        brought: as given.
        kinds: all columns.

    Raises:
        ValueError: they cannot be the columns of trajectories.
    """

    def __init__(self, brought: Mapping[str, Column], final: Sequence[str], computed: Mapping[str, Column]) -> None:
        for name, kind in _NEEDED.items():
            if name not in brought or (brought[name].dtype, brought[name].shape) != (kind.dtype, kind.shape):
                raise ValueError(f"Trajectories need a column {name} of one {kind.dtype} a step.")
        names = [*brought, *computed, *_ESTIMATES]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"The columns {repeated} are declared twice; {list(_ESTIMATES)} are the buffer's own.")
        unknown = sorted(set(final) - set(brought))
        if unknown:
            raise ValueError(f"The columns {unknown} with a final value are not among {sorted(brought)}.")
        self.brought = dict(brought)
        self.kinds = {**brought, **computed, **_ESTIMATES}
        self._final = {*final, VALUE}

    def rows(self, name: str, steps: int) -> int:
        """Return the rows that a column has for so many steps of a trajectory."""
        return steps + (name in self._final)

    @property
    def largest_row(self) -> int:
        """Bytes of a step's largest column."""
        return max(torch.Size(kind.shape).numel() * kind.dtype.itemsize for kind in self.kinds.values())

    def require_fit(self, trajectory: Trajectory, called: str, device: torch.device) -> None:
        """Refuse a trajectory, or consecutive steps of one, whose types, shapes or devices are wrong.

        Any float fits a float, any integer an integer.
        """
        if trajectory.keys() != self.brought.keys():
            raise ValueError(f"{called} has the columns {sorted(trajectory)}, not {sorted(self.brought)}.")
        for name, kind in self.brought.items():
            column = trajectory[name]
            if not torch.can_cast(column.dtype, kind.dtype) or tuple(column.shape[1:]) != kind.shape:
                wanted = ", ".join(map(str, ("steps", *kind.shape)))
                raise ValueError(f"{called} has {name} as {kind_of(column)}, not {kind.dtype} [{wanted}].")
            if column.device.type != "cpu" and column.device != device:
                raise ValueError(f"{called} has {name} on {column.device}, neither on {device} nor on the CPU.")

    def require_lengths(self, lengths: Mapping[str, int], called: str, steps: int) -> int:
        """Return the steps of a trajectory whose columns have so many rows; refuse more than `steps`, or unequal."""
        length = lengths[REWARD]
        if not 0 < length <= steps:
            raise ValueError(f"{called} has {length:,} steps, not 1 to {steps:,}: the buffer's `grow` allows for more.")
        for name, found in lengths.items():
            wanted = self.rows(name, length)
            if found != wanted:
                raise ValueError(f"{called} has {found:,} rows of {name}, not {wanted:,} for its {length:,} steps.")
        return length


def require_same_types(trajectories: Sequence[Trajectory]) -> None:
    """Refuse trajectories that have a column in different types."""
    for index, trajectory in enumerate(trajectories):
        for name, column in trajectory.items():
            first = trajectories[0][name].dtype
            if column.dtype != first:
                raise ValueError(f"Trajectory {index} has {name} as {column.dtype}, trajectory 0 as {first}.")


def kind_of(tensor: Tensor) -> str:
    """Return type and shape in words."""
    return f"{tensor.dtype} {list(tensor.shape)}"
