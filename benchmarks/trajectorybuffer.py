"""The trajectory buffer beside lists of tensors that are joined at every update."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.list_buffer import ListBuffer, Step
from benchmarks.measure import Times, take_turns
from benchmarks.resident import extra_resident_mb, in_own_process
from benchmarks.results import Section
from eigen_core.memory.process import own_resident_bytes
from eigen_core.randomness import keyed_generator
from eigen_core.replay import Column
from eigen_core.task.market_transitions import market_columns
from eigen_core.trajectories import TrajectoryBuffer

_WORKERS, _STEPS = 3, 1_024
_DIFFERENT_STEPS = 64
_ROUNDS, _WARM_UPS = 9, 2
_PEAK_ROUNDS = 10
_UPDATES, _SETTLING = 1_000, 20
_CPU = torch.device("cpu")
_LOG_PROBABILITY = {"log_probability": Column(torch.float32)}
_DENSE = {"observation": Column(torch.float32, (669, 9))}

Columns = Mapping[str, Column]


class _Workers:
    """Workers that play in step with one another: each step makes new tensors, as an environment does."""

    def __init__(self, columns: Columns) -> None:
        generator = keyed_generator(1, 0, "benchmarks", "trajectorybuffer", "steps")
        shape = (_DIFFERENT_STEPS, _WORKERS)
        self._steps = {
            name: torch.tensor(generator.random((*shape, *column.shape), dtype=np.float32)).to(column.dtype)
            for name, column in columns.items()
        }

    def step(self, number: int) -> dict[str, Tensor]:
        """Return new tensors, `[workers, ...]`."""
        return {name: column[number % _DIFFERENT_STEPS].clone() for name, column in self._steps.items()}


class _Lists:
    """The replaced way: each worker appends what it gets to a list."""

    def __init__(self, columns: Columns) -> None:
        self._workers = _Workers(columns)
        self.buffer = ListBuffer()

    def play(self) -> list[list[Step]]:
        """Return the workers' trajectories, a mapping of tensors each step."""
        trajectories: list[list[Step]] = [[] for _ in range(_WORKERS)]
        for number in range(_STEPS):
            step = self._workers.step(number)
            for worker, trajectory in enumerate(trajectories):
                trajectory.append({name: column[worker] for name, column in step.items()})
        return trajectories

    def update(self, trajectories: Sequence[Sequence[Step]], lengths: NDArray[np.int64]) -> None:
        """Store the first steps of each trajectory."""
        self.buffer.update([steps[:length] for steps, length in zip(trajectories, lengths, strict=True)])

    def round(self) -> None:
        """Play and store."""
        self.update(self.play(), _ALL_STEPS)


class _Brought:
    """The buffer, and workers that play into memory of their own, which they use again."""

    def __init__(self, columns: Columns) -> None:
        self._workers = _Workers(columns)
        self._played = [
            {name: torch.zeros((_STEPS, *column.shape), dtype=column.dtype) for name, column in columns.items()}
            for _ in range(_WORKERS)
        ]
        self.buffer = TrajectoryBuffer(_STEPS, 1, _WORKERS, columns, _CPU)

    def play(self) -> list[dict[str, Tensor]]:
        """Return the workers' trajectories."""
        for number in range(_STEPS):
            step = self._workers.step(number)
            for worker, trajectory in enumerate(self._played):
                for name, column in step.items():
                    trajectory[name][number].copy_(column[worker])
        return self._played

    def update(self, trajectories: Sequence[Step], lengths: NDArray[np.int64]) -> None:
        """Store the first steps of each trajectory."""
        self.buffer.update(
            [
                {name: column[:length] for name, column in trajectory.items()}
                for trajectory, length in zip(trajectories, lengths, strict=True)
            ]
        )

    def round(self) -> None:
        """Play and store."""
        self.update(self.play(), _ALL_STEPS)


class _InPlace:
    """The buffer, which workers write to as they play: there is nothing left to store."""

    def __init__(self, columns: Columns) -> None:
        self._workers = _Workers(columns)
        self.buffer = TrajectoryBuffer(_STEPS, 1, _WORKERS, columns, _CPU)

    def round(self) -> None:
        """Play into the buffer."""
        for number in range(_STEPS):
            self.buffer.write(number, self._workers.step(number))
        self.buffer.finish(_ALL_STEPS)


_Way = _Lists | _Brought | _InPlace
_ALL_STEPS = np.full(_WORKERS, _STEPS)
_LISTS, _BROUGHT, _IN_PLACE = "lists", "buffer, brought", "buffer, in place"
_WAYS: dict[str, Callable[[Columns], _Way]] = {_LISTS: _Lists, _BROUGHT: _Brought, _IN_PLACE: _InPlace}
_INDEXED = " (day index)"


def _cases() -> dict[str, dict[str, Columns]]:
    """Return the columns of each preset's steps, by the ways in which they are brought together."""
    quickstart = {**market_columns(20, 4), **_LOG_PROBABILITY}
    indexed = {**market_columns(108, 4), **_LOG_PROBABILITY}
    dense = {**_DENSE, **{name: column for name, column in indexed.items() if name != "day"}}
    return {
        "quickstart": dict.fromkeys(_WAYS, quickstart),
        "eigen2": {
            **dict.fromkeys(_WAYS, dense),
            _BROUGHT + _INDEXED: indexed,
            _IN_PLACE + _INDEXED: indexed,
        },
    }


def run() -> Section:
    """Measure all cases."""
    return Section(
        title="Trajectories of on-policy learning",
        method=f"{_WORKERS} workers play {_STEPS:,} steps; what they played is brought together. *Lists*, as the "
        "replaced system did: a list of tensors for each worker, transposed, stacked and joined in new memory at "
        "every update. *Buffer, brought*: workers that play into memory of their own, from which `update` copies. "
        "*Buffer, in place*: workers that write into the buffer (`write`). A step has action, portfolio, reward, end "
        "and log-probability; of quickstart (20 assets) also the number of its day, of eigen2 (108 assets) the newest "
        "features of 669 columns as a vector `[669, 9]`, or, where that is said, the number of its day in their place. "
        f"Peak: resident memory of {_PEAK_ROUNDS} rounds of playing and updating in a process of its own, above what "
        "it was before, the data themselves included; one more: of another round, above what is held before it. Rise: "
        f"of the least-squares line through the resident memory after each of {_UPDATES:,} updates with trajectories "
        f"of changing lengths, after {_SETTLING} others. Times: medians of {_ROUNDS} by turns.",
        columns=(
            "",
            "data: MB",
            "peak: MB",
            "times less",
            "one more: MB",
            "update: ms",
            "times as fast",
            "play and update: ms",
            "times as fast (both)",
            f"rise over {_UPDATES:,} updates: MB",
        ),
        rows=[row for name, columns in _cases().items() for row in _rows(name, columns)],
        remarks=(
            "The goals are a fifth of the peak, updates 2.5 times as fast, and a rise of less than 1 MB.",
            "Dense observations alone take more than a fifth of the peak of the lists: with them that goal cannot be "
            "met.",
            "All is on the CPU; the replaced system then copied its tensors to the GPU, which is not measured.",
        ),
    )


def _made(way: str, columns: Columns) -> _Way:
    return _WAYS[way.removesuffix(_INDEXED)](columns)


def _rows(case: str, columns: Mapping[str, Columns]) -> list[list[str]]:
    made = {way: _made(way, kinds) for way, kinds in columns.items()}
    rounds = take_turns({way: each.round for way, each in made.items()}, _ROUNDS, _WARM_UPS)
    updates = take_turns(
        {
            way: partial(each.update, each.play(), _ALL_STEPS)  # type: ignore[arg-type] # it takes what it has played
            for way, each in made.items()
            if not isinstance(each, _InPlace)
        },
        _ROUNDS,
        _WARM_UPS,
    )
    _require_equal(made)
    del made
    peaks = {way: in_own_process(_peak_mb, way, kinds) for way, kinds in columns.items()}
    return [
        [
            f"{case}: {way}",
            f"{_data_mb(kinds):,.1f}",
            f"{peaks[way][0]:,.1f}",
            "" if way == _LISTS else f"{peaks[_LISTS][0] / peaks[way][0]:,.1f}",
            f"{peaks[way][1]:,.1f}",
            *_compared(updates, way),
            *_compared(rounds, way),
            f"{in_own_process(_rise_mb, way, kinds):+,.2f}" if way in updates else "",
        ]
        for way, kinds in columns.items()
    ]


def _require_equal(made: Mapping[str, _Way]) -> None:
    """Refuse ways that store something else than the lists, of the same columns."""
    for way in made.values():
        way.round()
    lists = made[_LISTS]
    assert isinstance(lists, _Lists)
    for name, way in made.items():
        if isinstance(way, _Lists) or name.endswith(_INDEXED):
            continue
        for column, expected in lists.buffer.columns.items():
            if not torch.equal(way.buffer.column(column).transpose(0, 1).flatten(0, 1), expected):
                raise RuntimeError(f"{column} of {name} is not that of the lists")


def _compared(times: Mapping[str, Times], way: str) -> tuple[str, str]:
    if way not in times:
        return "", ""
    return f"{1e3 * times[way].median:,.1f}", "" if way == _LISTS else f"{times[_LISTS].over(times[way]):.1f}"


def _data_mb(columns: Columns) -> float:
    each = sum(torch.Size(column.shape).numel() * column.dtype.itemsize for column in columns.values())
    return each * _STEPS * _WORKERS / 1e6


def _peak_mb(way: str, columns: Columns) -> tuple[float, float]:
    """Return what some rounds take, and what one more takes beside what is held then (MB)."""
    # Another one has the kernels loaded.
    _made(way, columns).round()
    made: list[_Way] = []

    def play() -> None:
        made.append(_made(way, columns))
        for _ in range(_PEAK_ROUNDS):
            made[0].round()

    return extra_resident_mb(play), extra_resident_mb(lambda: made[0].round())


def _rise_mb(way: str, columns: Columns) -> float:
    """Return by how much the resident memory rises over all updates, on a least-squares line (MB)."""
    made = _made(way, columns)
    assert not isinstance(made, _InPlace)
    played = made.play()
    generator = keyed_generator(1, 0, "benchmarks", "trajectorybuffer", "lengths")
    resident = []
    for _ in range(_SETTLING + _UPDATES):
        lengths = generator.integers(_STEPS // 2, _STEPS + 1, _WORKERS)
        made.update(played, lengths)  # type: ignore[arg-type] # it takes what it has played
        resident.append(own_resident_bytes() / 1e6)
    slope, _ = np.polyfit(np.arange(_UPDATES), resident[_SETTLING:], 1)
    return float(slope) * _UPDATES


def main() -> None:
    """Show the benchmark without keeping it."""
    from rich.console import Console

    torch.set_num_threads(1)
    run().show(Console(width=240))


if __name__ == "__main__":
    main()
