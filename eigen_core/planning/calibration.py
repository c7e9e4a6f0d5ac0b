"""How long a generation will take, from a short piece of one."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from eigen_core.config import Config, merge
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.market.panel import Panel
from eigen_core.planning.facts import PanelFacts
from eigen_core.planning.scale import Scale

_STEPS = 2
_PIECES = 2


@dataclass(frozen=True)
class Calibration:
    """How long the phases of a generation take (seconds).

    Attributes:
        evaluate, evolve: each phase, from a piece of it.
        train: likewise; 0 for a run that never learns by gradients; None if the piece held too few different days.
    """

    evaluate: float
    train: float | None
    evolve: float

    @property
    def seconds(self) -> float:
        """A generation, as far as it is known; checkpoint and plots are left out."""
        return self.evaluate + (self.train or 0.0) + self.evolve


def calibrate(config: Config, panel: Panel) -> Calibration:
    """Time one group of agents and a few of its optimizer steps, and infer a whole generation.

    It takes the memory of the run that it is about, with a single group of agents.

    Args:
        config: the run.
        panel: its market.

    Raises:
        InputError: configuration and panel do not fit together.
    """
    scale = Scale.of(config, PanelFacts.of(panel))
    size, learner = config.population.size, config.learner
    group = min(max(scale.group, 2), size)
    steps = min(learner.gradient_steps, _STEPS)
    values = merge(
        config.model_dump(mode="json"),
        {
            "population": {"size": group, "group_size": min(scale.group, group)},
            "learner": {"gradient_steps": steps},
            "replay": {"minimum": 1},
        },
    )
    state = start_training(Config(**values), panel)
    pieces = [(_seconds(evaluate, state), _seconds(train, state), _seconds(evolve, state)) for _ in range(_PIECES)]
    # The first piece pays for what is made once.
    evaluating, learning, evolving = (seconds * size / group for seconds in pieces[-1])
    training = None
    if not scale.learns:
        training = 0.0
    elif state.history[-1].learning is not None:
        training = learning * learner.gradient_steps / steps
    return Calibration(evaluate=evaluating, train=training, evolve=evolving)


def _seconds(phase: Callable[[TrainingState], object], state: TrainingState) -> float:
    started = time.perf_counter()
    phase(state)
    return time.perf_counter() - started
