"""State of a run between two phases."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess, GenerationRecord, RecordLog, Telemetry
from eigen_core.config import Config
from eigen_core.generation.agents import AgentComputer, Executor
from eigen_core.learning import Champion, method_class
from eigen_core.machine.arithmetic import warn_of_arithmetic
from eigen_core.networks.population import initial_weights
from eigen_core.task.replay import Replay


@dataclass(frozen=True)
class EvaluationResult:
    """Result of the evaluate phase of a generation.

    Attributes:
        fitness, validations: float64 `[agents]`.
        scores: the champion is chosen by these, float64 `[agents]`.
        statistics: the task's metrics of the training episodes.
        excess: gain beyond the market, in validation, of the agent with the best score.
        task_state: state of the task after the episodes.
    """

    generation: int
    fitness: NDArray[np.float64]
    validations: NDArray[np.float64]
    scores: NDArray[np.float64]
    statistics: dict[str, float]
    excess: Excess | None
    task_state: Mapping[str, Tensor]


def resolve_device(wanted: str) -> torch.device:
    """Return the device that a configuration asks for; `InputError` if it is a GPU and there is none."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda but torch finds no GPU: use device cpu or auto, or check the driver.")
    return torch.device(wanted)


class TrainingState:
    """The state of a run between its phases.

    A phase commits its result in one step at its end, so a phase that fails leaves the state as it was.

    Attributes:
        generation: last completed generation; 0 at the start.
        group_size, playing_size: agents that learn, and that play, at a time in this process, at most.
        executor: computes the agents; by default in this process.
        population, replay, champion, method_state, noise_scale, task_state: input of the next generation.
        evaluated: result of the evaluate phase of the generation under way, else None.
        learned: (generation, statistics) of its train phase, else None.
        initial_weights: returns the initial weights of the run, float32 `[agents, parameters]`.
        history, telemetry: one record per completed generation.
    """

    def __init__(self, config: Config, content: Any) -> None:  # noqa: ANN401 - the task's own
        self.config = config
        self.device = resolve_device(config.device)
        computer = AgentComputer(config, content, self.device)
        self.heads, self.task, self.learner = computer.heads, computer.task, computer.learner
        self.executor: Executor = computer
        self.group_size, self.playing_size = computer.group_size, computer.playing_size
        warn_of_arithmetic(self.device, config.instructions)
        method = method_class(config.evolution)(config, self.task.critic_layout.size, self.learner.new_agents)
        self.method = method
        self.generation = 0
        layouts = (self.task.critic_layout, self.task.actor_layout)
        # Holds no reference to the state, which is freed with its memory on a GPU as soon as nothing else needs it.
        draw = partial(initial_weights, layouts, config.population.size, config.seed, self.device)
        self.initial_weights: Callable[[], Tensor] = draw
        self.population, self.method_state = method.begin(draw())
        self.replay = Replay(config.replay.capacity, self.task.columns, self.device)
        self.champion: Champion | None = None
        self.noise_scale = config.exploration.scale
        self.task_state = self.task.state
        self.evaluated: EvaluationResult | None = None
        self.learned: tuple[int, dict[str, float] | None] | None = None
        self.history = RecordLog(GenerationRecord)
        self.telemetry = RecordLog(Telemetry)

    def commit(self, **changes: object) -> None:
        """Replace attributes at once: no exception, asynchronous ones included, can come between two of them."""
        vars(self).update(changes)

    @property
    def learning_task_state(self) -> Mapping[str, Tensor]:
        """The task's state by which agents learn: the one by which they have played.

        It is empty before the first generation, which therefore learns by the state after its own episodes.
        """
        if self.generation == 0 and self.evaluated is not None:
            return self.evaluated.task_state
        return self.task_state

    @property
    def owners(self) -> dict[str, object]:
        """Parts of the run that may hold much memory, by name."""
        return {
            "replay": self.replay,
            "population": (self.population, self.method_state, self.champion),
            "data and task": self.task,
        }
