"""The trajectory buffer beside lists of tensors that are joined at every update."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure import Times, take_turns
from benchmarks.resident import extra_resident_mb, in_own_process
from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import TrajectoryBuffer
from eigen_core.machine.usage import own_resident_bytes
from eigen_core.task.replay import Column
from eigen_core.task.transitions import market_columns

_WORKERS, _STEPS = 3, 1_024
_ROUNDS, _WARM_UPS = 9, 2
_PEAK_ROUNDS = 10
_UPDATES, _SETTLING = 1_000, 20
_ALL_STEPS = np.full(_WORKERS, _STEPS)
_LOG_PROBABILITY = {"log_probability": Column(torch.float32)}
_DENSE = {"observation": Column(torch.float32, (669, 9))}

Columns = Mapping[str, Column]
Played = list[dict[str, Tensor]]
"""What one worker played: the columns of each step."""


class _Lists:
    """The replaced way: each worker appends its steps to a list; an update transposes, stacks and joins them."""

    def __init__(self, columns: Columns) -> None:
        self._play = partial(_steps, columns)
        self.columns: dict[str, Tensor] = {}

    def play(self) -> list[Played]:
        """Return the steps of each worker."""
        steps = [self._play(number) for number in range(_STEPS)]
        return [[{name: rows[worker] for name, rows in step.items()} for step in steps] for worker in range(_WORKERS)]

    def update(self, trajectories: Sequence[Played], lengths: NDArray[np.int64]) -> None:
        """Store the first steps of each trajectory in new memory."""
        cut = [steps[:length] for steps, length in zip(trajectories, lengths, strict=True)]
        transposed = [{name: [step[name] for step in steps] for name in steps[0]} for steps in cut]
        stacked = [{name: torch.stack(column) for name, column in columns.items()} for columns in transposed]
        self.columns = {name: torch.cat([columns[name] for columns in stacked]) for name in stacked[0]}

    def round(self) -> None:
        """Play and store."""
        self.update(self.play(), _ALL_STEPS)


class _Copied:
    """The buffer, and workers that play into memory of their own, which they use again."""

    def __init__(self, columns: Columns) -> None:
        self._play = partial(_steps, columns)
        self._played: list[dict[str, Tensor]] = [
            {name: torch.zeros((_STEPS, *column.shape), dtype=column.dtype) for name, column in columns.items()}
            for _ in range(_WORKERS)
        ]
        self.buffer = TrajectoryBuffer(_STEPS, 1, _WORKERS, columns, torch.device("cpu"))

    def play(self) -> list[dict[str, Tensor]]:
        """Return the columns of each worker's steps."""
        for number in range(_STEPS):
            for name, rows in self._play(number).items():
                for played, row in zip(self._played, rows, strict=True):
                    played[name][number].copy_(row)
        return self._played

    def update(self, trajectories: Sequence[dict[str, Tensor]], lengths: NDArray[np.int64]) -> None:
        """Store the first steps of each trajectory."""
        pairs = zip(trajectories, lengths, strict=True)
        self.buffer.update([{name: column[:length] for name, column in one.items()} for one, length in pairs])

    def round(self) -> None:
        """Play and store."""
        self.update(self.play(), _ALL_STEPS)


class _InPlace:
    """The buffer, which workers write to as they play: there is nothing left to store."""

    def __init__(self, columns: Columns) -> None:
        self._play = partial(_steps, columns)
        self.buffer = TrajectoryBuffer(_STEPS, 1, _WORKERS, columns, torch.device("cpu"))

    def round(self) -> None:
        """Play into the buffer."""
        for number in range(_STEPS):
            self.buffer.write(number, self._play(number))
        self.buffer.finish(_ALL_STEPS)


_Way = _Lists | _Copied | _InPlace
_WAYS: dict[str, Callable[[Columns], _Way]] = {
    "lists": _Lists,
    "buffer, copied": _Copied,
    "buffer, in place": _InPlace,
}


def _cases() -> dict[str, Columns]:
    indexed = {**market_columns(108, 4), **_LOG_PROBABILITY}
    return {
        "quickstart": {**market_columns(20, 4), **_LOG_PROBABILITY},
        "eigen2": indexed,
        "eigen2, dense": {**_DENSE, **{name: column for name, column in indexed.items() if name != "day"}},
    }


def run() -> Section:
    """Measure all cases."""
    return Section(
        title="Trajectories of on-policy learning",
        method=f"{_WORKERS} workers play {_STEPS:,} steps; what they played is brought together. *Lists*, as the "
        "replaced system did: a list of tensors for each worker, transposed, stacked and joined in new memory at every "
        "update. *Copied*: workers that play into memory of their own, from which `update` copies. *In place*: workers "
        "that write into the buffer (`write`). A step has the number of its day, action, portfolio, reward, end and "
        "log-probability, of 20 assets (quickstart) or 108 (eigen2); *dense*: the newest features of 669 columns, "
        "`[669, 9]`, in place of the number of the day. Peak: resident memory of "
        f"{_PEAK_ROUNDS} rounds of playing and updating in a process of its own, above what it was before, the data "
        f"themselves included. Rise: of the least-squares line through the resident memory after each of {_UPDATES:,} "
        f"updates with trajectories of changing lengths, after {_SETTLING} others. Times: medians of {_ROUNDS}.",
        columns=(
            "",
            "data: MB",
            "peak: MB",
            "times less",
            "update: ms",
            "times as fast",
            f"rise over {_UPDATES:,} updates: MB",
        ),
        rows=[row for name, columns in _cases().items() for row in _rows(name, columns)],
        remarks=(
            "The goals are a fifth of the peak, updates 2.5 times as fast, and a rise of less than 1 MB. Dense "
            "observations alone take more than a fifth of the peak of the lists.",
        ),
    )


def _steps(columns: Columns, number: int) -> dict[str, Tensor]:
    """Return new tensors of a step of all workers, `[workers, ...]`, as environments make them."""
    generator = keyed_generator(1, number % 64, "benchmarks", "trajectorybuffer", "steps")
    return {
        name: torch.tensor(generator.random((_WORKERS, *column.shape), dtype=np.float32)).to(column.dtype)
        for name, column in columns.items()
    }


def _rows(case: str, columns: Columns) -> list[list[str]]:
    made = {name: way(columns) for name, way in _WAYS.items()}
    updates = {
        name: partial(way.update, way.play(), _ALL_STEPS)  # type: ignore[arg-type] # it takes what it has played
        for name, way in made.items()
        if not isinstance(way, _InPlace)
    }
    times = take_turns(updates, _ROUNDS, _WARM_UPS)
    _require_equal(made)
    del made, updates
    peaks = {name: in_own_process(_peak_mb, name, columns) for name in _WAYS}
    data = sum(torch.Size(column.shape).numel() * column.dtype.itemsize for column in columns.values())
    return [
        [
            f"{case}: {name}",
            f"{data * _STEPS * _WORKERS / 1e6:,.1f}",
            f"{peaks[name]:,.1f}",
            "" if name == "lists" else f"{peaks['lists'] / peaks[name]:,.1f}",
            *_compared(times, name),
            f"{in_own_process(_rise_mb, name, columns):+,.2f}" if name in times else "",
        ]
        for name in _WAYS
    ]


def _require_equal(made: Mapping[str, _Way]) -> None:
    """Refuse ways that store something else than the lists."""
    for way in made.values():
        way.round()
    lists = made["lists"]
    assert isinstance(lists, _Lists)
    for name, way in made.items():
        for column, expected in lists.columns.items():
            if not isinstance(way, _Lists) and not torch.equal(
                way.buffer.column(column).transpose(0, 1).flatten(0, 1), expected
            ):
                raise RuntimeError(f"{column} of {name} is not that of the lists")


def _compared(times: Mapping[str, Times], name: str) -> tuple[str, str]:
    if name not in times:
        return "", ""
    return f"{1e3 * times[name].median:,.1f}", "" if name == "lists" else f"{times['lists'].over(times[name]):.1f}"


def _peak_mb(name: str, columns: Columns) -> float:
    """Return what some rounds take (MB)."""
    # Another one has the kernels loaded.
    _WAYS[name](columns).round()

    def play() -> None:
        way = _WAYS[name](columns)
        for _ in range(_PEAK_ROUNDS):
            way.round()

    return extra_resident_mb(play)


def _rise_mb(name: str, columns: Columns) -> float:
    """Return by how much the resident memory rises over all updates, on a least-squares line (MB)."""
    way = _WAYS[name](columns)
    assert not isinstance(way, _InPlace)
    played = way.play()
    generator = keyed_generator(1, 0, "benchmarks", "trajectorybuffer", "lengths")
    resident = []
    for _ in range(_SETTLING + _UPDATES):
        way.update(played, generator.integers(_STEPS // 2, _STEPS + 1, _WORKERS))  # type: ignore[arg-type] # as above
        resident.append(own_resident_bytes() / 1e6)
    slope, _ = np.polyfit(np.arange(_UPDATES), resident[_SETTLING:], 1)
    return float(slope) * _UPDATES
