"""The state of a run between two phases: a plain object that is passed by reference, never serialized as a whole."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.arithmetic import warn_of_arithmetic
from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.evaluation import Evaluator
from eigen_core.evolution import Champion, MutationState
from eigen_core.market.panel import Panel, Splits
from eigen_core.networks import AgentNetwork
from eigen_core.population import Population
from eigen_core.records import GenerationRecord, LearningStatistics, RecordLog, Telemetry, TradingStatistics
from eigen_core.replay import Replay
from eigen_core.trading import Prices


@dataclass(frozen=True)
class EvaluationResult:
    """What the evaluate phase of a generation found.

    Attributes:
        generation: the generation.
        fitness: float64 `[agents]`.
        validations: float64 `[agents]`.
        trading: means over the training episodes.
    """

    generation: int
    fitness: NDArray[np.float64]
    validations: NDArray[np.float64]
    trading: TradingStatistics


@dataclass(frozen=True)
class SavedPopulation:
    """A population that can be read again.

    Attributes:
        generation: generation at whose end it stood.
        load: returns it, on the state's device.
    """

    generation: int
    load: Callable[[], Population]


def resolve_device(wanted: str) -> torch.device:
    """Return the device that a configuration asks for.

    Raises:
        InputError: a GPU is asked for and there is none.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda but torch finds no GPU: use device cpu or auto, or check the driver.")
    return torch.device(wanted)


class TrainingState:
    """Everything that a run knows.

    What a phase computes it commits in one step at its end, so a phase that fails leaves the state as it was.

    Attributes:
        generation: last completed generation; 0 at the start.
        population, replay, champion, mutation, noise_scale: what the next generation starts from.
        evaluated: result of the evaluate phase of the generation under way, else None.
        learned: (generation, statistics) of its train phase, else None.
        saved: where the population of the last checkpoint can be read again.
        half_learned: a train phase that works in place has begun on the population and not committed.
        history, telemetry: one record per completed generation.
    """

    def __init__(self, config: Config, panel: Panel) -> None:
        require_scale(config, panel.days)
        self.config = config
        self.panel = panel
        self.device = resolve_device(config.device)
        self.network = AgentNetwork(panel, config, self.device)
        warn_of_arithmetic(self.device, config.instructions)
        self.evaluator = Evaluator(self.network, Prices.of_panel(panel, self.device), config, self.device)
        self.generation = 0
        self.population = self._initial_population()
        self.saved = SavedPopulation(0, self._initial_population)
        self.half_learned = False
        self.replay = Replay(config.replay.capacity, panel.assets, self.network.portfolio_values, self.device)
        self.champion: Champion | None = None
        self.mutation = MutationState.initial(config.evolution)
        self.noise_scale = config.exploration.scale
        self.evaluated: EvaluationResult | None = None
        self.learned: tuple[int, LearningStatistics | None] | None = None
        self.history = RecordLog(GenerationRecord)
        self.telemetry = RecordLog(Telemetry)

    def _initial_population(self) -> Population:
        return Population.initial(self.network, self.config.population.size, self.config.seed, self.device)

    def commit(self, **changes: object) -> None:
        """Replace attributes all at once: no exception, asynchronous ones included, can come between two of them."""
        vars(self).update(changes)

    @property
    def transitions(self) -> int:
        """Transitions in the replay."""
        return self.replay.size


def require_scale(config: Config, days: int) -> None:
    """Refuse a configuration that cannot be trained on a panel of `days` days; nothing is computed.

    Raises:
        InputError: days, replay, batches or blocks do not go together with the panel.
    """
    config.require_days(days)
    per_generation = config.population.size * config.evaluation.slices * config.trading.episode_days
    if per_generation > config.replay.capacity:
        raise InputError(
            f"replay.capacity {config.replay.capacity:,} is below the {per_generation:,} transitions of one generation "
            f"({config.population.size} agents x {config.evaluation.slices} slices x {config.trading.episode_days} "
            "days): raise it or lower evaluation.slices."
        )
    train_days = len(Splits.of_days(days, config.market).train)
    if config.learner.batch_size > train_days - config.market.window:
        raise InputError(
            f"learner.batch_size {config.learner.batch_size} needs as many different days, but training has "
            f"{train_days - config.market.window:,} after the first window: lower it."
        )
    block_days = config.learner.block_days
    if config.network.encoder == "tcn" and 0 < block_days <= config.learner.batch_size:
        raise InputError(
            f"learner.block_days {block_days} must be above learner.batch_size {config.learner.batch_size}: "
            "a batch has as many different days, each with a day after it."
        )
