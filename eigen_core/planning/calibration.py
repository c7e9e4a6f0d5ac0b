"""How long a generation will take, from a small piece of one that is timed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from eigen_core.config import Config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.needs import Facts
from eigen_core.planning.scale import Scale


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
            of the run with one group, and up to minutes. Else it takes about a second.
    """
    scale = Scale.of(config, facts)
    sample = scale.task.sample(whole_group=whole_group)
    piece = Scale.of(sample.config, sample.facts)
    began = time.perf_counter()
    state = start_training(sample.config, sample.content)
    # The first time pays for what is made once.
    _, (evaluating, learning, evolving) = (_times(state) for _ in range(2))
    return Calibration(
        evaluate=evaluating * sample.evaluated,
        train=learning * sample.learned * scale.learner.batches / piece.learner.batches if scale.learns else 0.0,
        evolve=evolving * _bred(scale) / _bred(piece),
        piece_seconds=time.perf_counter() - began,
    )


def _times(state: TrainingState) -> tuple[float, float, float]:
    return _seconds(evaluate, state), _seconds(train, state), _seconds(evolve, state)


def _seconds(phase: Callable[[TrainingState], object], state: TrainingState) -> float:
    started, worked = time.perf_counter(), time.process_time()
    phase(state)
    elapsed, worked = time.perf_counter() - started, time.process_time() - worked
    # On a CPU that others use too, the time of the processors is nearer to that of an idle machine.
    return min(elapsed, worked) if state.device.type == "cpu" else elapsed


def _bred(scale: Scale) -> int:
    """Bytes that are bred and hashed in the evolve phase."""
    return scale.population_bytes + scale.rows_stored * scale.row_bytes
