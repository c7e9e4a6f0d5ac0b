"""How long a generation will take, from a small piece of one on a market of random numbers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from eigen_core.config import Config, merge
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.market import Panel, panel_of_prices
from eigen_core.planning.facts import PanelFacts
from eigen_core.planning.scale import Scale
from eigen_core.randomness import keyed_generator

# Days of a column that agents see, together: a fraction of a second on one core.
_MOST_EVALUATED = 300_000
_MOST_LEARNED = 50_000
_FEWEST_AGENTS = 2
_FEWEST_COLUMNS = 8


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


def calibrate(config: Config, facts: PanelFacts, *, whole_group: bool = False) -> Calibration:
    """Time a piece of a generation and infer a whole one: time is proportional to the days of columns that are seen.

    Nothing of the run's data is read.

    Args:
        config: the run.
        facts: the size of its panel, on which it can be trained (`eigen_core.task.market.require_scale`).
        whole_group: the piece is a group of agents with all columns and episodes. More certain; it takes the memory of
            the run with one group, and up to minutes. Else it takes about a second.
    """
    scale = Scale.of(config, facts)
    piece = Scale.of(*_piece(scale, whole_group=whole_group))
    began = time.perf_counter()
    state = start_training(piece.config, _random_panel(piece))
    # The first time pays for what is made once.
    _, (evaluating, learning, evolving) = (_times(state) for _ in range(2))
    return Calibration(
        evaluate=evaluating * _evaluated(scale) / _evaluated(piece),
        train=learning * _learned(scale) / _learned(piece) if scale.learns else 0.0,
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


def _history(scale: Scale) -> int:
    """Days before those that are encoded that the encoder reads too."""
    return scale.config.market.window - 1 if scale.config.network.encoder == "tcn" else 0


def _evaluated(scale: Scale) -> int:
    """Days of columns that all agents see in the evaluate phase."""
    episodes = scale.config.evaluation.slices + scale.config.evaluation.validation_slices
    days = scale.episode_days + _history(scale)
    return scale.config.population.size * episodes * days * scale.panel.columns


def _learned(scale: Scale) -> int:
    """Days of columns that all agents see in the train phase."""
    learner = scale.config.learner
    days = scale.block_days if scale.config.network.encoder == "tcn" else learner.batch_size
    steps = learner.gradient_steps * learner.accumulation_steps
    return scale.config.population.size * steps * (days + _history(scale)) * scale.panel.columns


def _bred(scale: Scale) -> int:
    """Bytes that are bred and hashed in the evolve phase."""
    return scale.population_bytes + scale.rows_stored * scale.row_bytes


def _piece(scale: Scale, *, whole_group: bool) -> tuple[Config, PanelFacts]:
    """Return the largest piece of a run that is small enough."""
    learner, evaluation = scale.config.learner, scale.config.evaluation
    agents, columns = max(scale.group, _FEWEST_AGENTS), scale.panel.columns
    # An actor that moves only every second time does so in the piece too.
    steps = min(learner.gradient_steps, 2 if whole_group else min(learner.policy_delay, 2))
    batch, block, slices = min(learner.batch_size, scale.episode_days), scale.block_days, evaluation.slices

    def changed() -> Scale:
        days = max(scale.config.market.window + 2 * scale.episode_days, block)
        sections = {
            "generations": 1,
            "market": {"validation_days": scale.episode_days, "holdout_days": 0},
            "population": {"size": agents, "group_size": min(scale.group, agents)},
            "replay": {"capacity": agents * slices * scale.episode_days, "minimum": 1},
            "learner": {
                "gradient_steps": steps,
                "accumulation_steps": learner.accumulation_steps if whole_group else 1,
                "batch_size": batch,
                "block_days": block,
            },
            "evaluation": {
                "slices": slices,
                "lowest": min(evaluation.lowest, slices),
                **({} if whole_group else {"validation_slices": 1, "validation_lowest": 1}),
            },
        }
        assets = max(scale.panel.assets * columns // scale.panel.columns, 1)
        facts = replace(scale.panel, days=days + scale.episode_days, columns=columns, assets=assets)
        config = Config(**merge(scale.config.model_dump(mode="json"), sections))
        return replace(scale, config=config, panel=facts)

    piece = changed()
    while not whole_group and _learned(piece) > _MOST_LEARNED:
        if agents > _FEWEST_AGENTS:
            agents = max(agents // 2, _FEWEST_AGENTS)
        elif columns > _FEWEST_COLUMNS:
            columns = max(columns // 2, _FEWEST_COLUMNS)
        elif max(batch, block) > scale.episode_days:
            block //= 2
        else:
            break
        piece = changed()
    while not whole_group and _evaluated(piece) > _MOST_EVALUATED and slices > 1:
        slices //= 2
        piece = changed()
    return piece.config, piece.panel


def _random_panel(scale: Scale) -> Panel:
    facts = scale.panel
    generator = keyed_generator(0, 0, "plan", "calibration")
    features = generator.standard_normal((facts.days, facts.columns, facts.features), dtype=np.float32)
    close = 100.0 * np.exp(np.cumsum(0.01 * generator.standard_normal((facts.days, facts.assets)), axis=0))
    dates = np.datetime64("2000-01-01") + np.arange(facts.days)
    symbols = [f"S{column}" for column in range(facts.columns)]
    names = [f"feature{index}" for index in range(facts.features)]
    prices = (close, close * 1.01, close * 0.99, close)
    return panel_of_prices(features, *prices, dates, symbols, names, scale.config.market)
