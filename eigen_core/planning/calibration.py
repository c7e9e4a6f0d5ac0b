"""How long a generation will take, from a small piece of one that is timed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from eigen_core.config import Config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.needs import Facts
from eigen_core.planning.scale import Scale
from eigen_core.progress import progress_to
from eigen_core.threads import computing_threads


@dataclass(frozen=True)
class Calibration:
    """How long the phases of a generation take where nothing else runs (seconds).

    Attributes:
        evaluate, train, evolve: each phase, inferred from a piece of it; `train` is 0 for a run that never learns.
        piece_seconds: what the piece took.
    """

    evaluate: float
    train: float
    evolve: float
    piece_seconds: float

    @property
    def seconds(self) -> float:
        """A generation; checkpoint and plots are left out."""
        return self.evaluate + self.train + self.evolve


def calibrate(config: Config, facts: Facts, *, whole_group: bool = False) -> Calibration:
    """Time a piece of a generation and infer a whole one. Nothing of the run's data is read.

    Args:
        config: the run.
        facts: of the data that it is trained on.
        whole_group: the piece is a group of agents with everything that it computes. More certain; it needs the memory
            of the run with one group, and up to minutes. Else it takes one to three seconds.
    """
    scale = Scale.of(config, facts)
    sample = scale.task.sample(whole_group=whole_group)
    piece = Scale.of(sample.config, sample.facts)
    began = time.perf_counter()
    threads = sample.config.threads or torch.get_num_threads()
    # With a number of them none are tried meanwhile.
    state = start_training(sample.config.model_copy(update={"threads": threads}), sample.content)
    # The first time pays for what is made once.
    _timed_generation(state)
    evaluating, learning, evolving = _timed_generation(state)
    if state.device.type == "cpu" and sample.config.threads == 0 and threads > 1:
        # The run will take one if that is faster.
        with computing_threads(1):
            with_one = _timed_generation(state)
        if with_one.learning.steps < learning.steps:
            evaluating, learning, evolving = with_one
    other = learning.other * scale.rows_per_generation / piece.rows_per_generation
    steps = learning.steps * sample.learned * scale.learner.batches / max(piece.learner.batches, 1)
    share = scale.learning_share / piece.learning_share if scale.learns else 0.0
    return Calibration(
        evaluate=evaluating * sample.evaluated,
        train=share * (other + steps),
        evolve=evolving * _bred(scale) / _bred(piece),
        piece_seconds=time.perf_counter() - began,
    )


class _Learning(NamedTuple):
    """Seconds of the train phase: of all optimizer steps, and of what comes before and after them."""

    other: float
    steps: float


class _Timed(NamedTuple):
    """Seconds of the phases of a generation."""

    evaluating: float
    learning: _Learning
    evolving: float


def _timed_generation(state: TrainingState) -> _Timed:
    return _Timed(sum(_seconds(evaluate, state)), _learning_seconds(state), sum(_seconds(evolve, state)))


def _learning_seconds(state: TrainingState) -> _Learning:
    parts = _seconds(train, state)
    # The first step is preceded by what is drawn or computed once.
    later = parts[1:-1]
    if not later:
        return _Learning(0.0, sum(parts))
    steps = median(later) * (len(parts) - 1)
    return _Learning(max(sum(parts) - steps, 0.0), steps)


class _Moments:
    """When a phase begins, when each of its steps ends, and when it ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moments = [self._now()]

    def _now(self) -> tuple[float, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), time.process_time()

    def update(self, name: str, done: int, total: int) -> None:  # noqa: ARG002
        """Note that a step has ended."""
        self._moments.append(self._now())

    def intervals(self) -> list[float]:
        """Return the seconds of each step, and of what follows the last one."""
        moments = pairwise([*self._moments, self._now()])
        passed = [(end - start, worked - before) for (start, before), (end, worked) in moments]
        # On a CPU that others use too, the time of the processors is nearer to that of an idle machine.
        return [min(pair) if self._device.type == "cpu" else pair[0] for pair in passed]


def _seconds(phase: Callable[[TrainingState], object], state: TrainingState) -> list[float]:
    """Return the seconds of each step of a phase, and of what follows the last one."""
    moments = _Moments(state.device)
    with progress_to(moments):
        phase(state)
    return moments.intervals()


def _bred(scale: Scale) -> int:
    """Bytes that are bred and hashed in the evolve phase."""
    return scale.population_bytes + scale.rows_stored * scale.row_bytes
