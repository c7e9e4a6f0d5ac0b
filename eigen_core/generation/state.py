"""The state of a training run between two phases; its snapshot (tensors, JSON documents, replay), and back from one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue, TypeAdapter
from torch import Tensor

from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.snapshot import Snapshot, SnapshotForm
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.common.records import (
    Excess,
    GenerationRecord,
    Record,
    RecordLog,
    Telemetry,
    UnfitRecordsError,
    parse,
    parse_history,
    parse_telemetry,
)
from eigen_core.config import Config
from eigen_core.generation.executor import Executor, LocalExecutor
from eigen_core.learning import method_class
from eigen_core.learning.fitness import Champion
from eigen_core.learning.population_method import MethodState
from eigen_core.machine.reproducibility import arithmetic_of, warn_if_hardware_differs, warn_if_not_reproducible
from eigen_core.networks.layout import genes_of
from eigen_core.networks.population import Population, initial_weights
from eigen_core.task.replay import Replay

T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationResult:
    """Result of the evaluate phase of a generation.

    Attributes:
        fitness, validations, scores: fitness, validation fitness, and the score by which the champion is chosen
            (`fitness_and_scores`), float64 `[agents]` each.
        statistics: the task's metrics of the training episodes, by name.
        excess: gain beyond the market of the agent with the best score, in its validation episodes (`Task.excess`).
        task_state: the moments that normalise observations (`Task.state`), updated with the training episodes.
    """

    generation: int
    fitness: NDArray[np.float64]
    validations: NDArray[np.float64]
    scores: NDArray[np.float64]
    statistics: dict[str, float]
    excess: Excess | None
    task_state: Mapping[str, Tensor]


def resolve_device(wanted: str) -> torch.device:
    """Return the device for the setting `device`; `InputError` if it is `cuda` and torch finds no GPU."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda but torch finds no GPU: use device cpu or auto, or check the driver.")
    return torch.device(wanted)


class TrainingState:
    """The state of a run between its phases.

    A phase commits its result in one step at its end, so a phase that fails leaves the state as it was.

    Attributes:
        generation: number of the last completed generation; 0 before the first.
        group_size, playing_size: most agents that learn, and that play, at a time in this process.
        executor: lets agents play and learn; by default in this process.
        population, replay, champion, method_state, noise_scale, task_state: input of the next generation.
        evaluated: result of the evaluate phase of the generation under way; None before that phase.
        learned: (generation, statistics of learning, None if no agent learned) of its train phase; None before it.
        history, telemetry: one record of results, and one of time and memory, per completed generation.
    """

    def __init__(self, config: Config, content: Any) -> None:  # noqa: ANN401 - the task's own
        self.config = config
        self.device = resolve_device(config.device)
        computer = LocalExecutor(config, content, self.device)
        self.heads, self.task, self.learner = computer.heads, computer.task, computer.learner
        self.executor: Executor = computer
        self.group_size, self.playing_size = computer.group_size, computer.playing_size
        warn_if_not_reproducible(self.device, config.instructions)
        layouts = (self.task.critic_layout, self.task.actor_layout)
        method = method_class(config.evolution)(config, layouts[0].size, self.learner.new_agents, genes_of(layouts))
        self.method = method
        self.generation = 0
        self.population, self.method_state = method.begin(self.initial_weights())
        self.replay = Replay(config.replay.capacity, self.task.columns, self.device)
        self.champion: Champion | None = None
        self.noise_scale = config.exploration.scale
        self.task_state = self.task.state
        self.evaluated: EvaluationResult | None = None
        self.learned: tuple[int, dict[str, float] | None] | None = None
        self.history = RecordLog(GenerationRecord)
        self.telemetry = RecordLog(Telemetry)

    def initial_weights(self) -> Tensor:
        """Return the weights with which the run began, float32 `[agents, parameters]`."""
        layouts = (self.task.critic_layout, self.task.actor_layout)
        return initial_weights(layouts, self.config.population.size, self.config.seed, self.device)

    def commit(self, **changes: object) -> None:
        """Set attributes, all at once: no exception, such as `KeyboardInterrupt`, can leave only some of them set."""
        vars(self).update(changes)

    @property
    def learning_task_state(self) -> Mapping[str, Tensor]:
        """`Task.state` (moments that normalise observations) with which agents learn: the one with which they played.

        In the first generation, agents that learn from a replay buffer play without moments, and learn with those of
        the episodes; others play these episodes once more, with the moments of the first time.
        """
        if self.generation == 0 and self.evaluated is not None and not self.heads.whole_episodes:
            return self.evaluated.task_state
        return self.task_state

    @property
    def owners(self) -> dict[str, object]:
        """Objects of the run that may hold much memory, by their name in memory reports."""
        return {
            "replay": self.replay,
            "population": (self.population, self.method_state, self.champion),
            "data and task": self.task,
        }


def require(condition: bool, file: str, what: str) -> None:
    if not condition:
        raise UnfitSnapshotError(file, what)


def require_finite(
    file: str, tensors: Mapping[str, Tensor], bounds: Mapping[str, tuple[float, float]] | None = None
) -> None:
    """Raise `UnfitSnapshotError` unless all values are finite, and within `bounds` (lowest, highest) by tensor name."""
    for name, tensor in tensors.items():
        if tensor.numel():
            low, high = (bounds or {}).get(name, (-math.inf, math.inf))
            lowest, highest = (float(bound) for bound in tensor.aminmax())
            inside = low <= lowest and highest <= high and math.isfinite(lowest) and math.isfinite(highest)
            require(inside, file, f"holds {name} from {lowest:g} to {highest:g}; valid: {low:g} to {high:g}")


def require_replay(state: TrainingState, ring: Ring, newest: GenerationRecord) -> Replay:
    """Return the replay with a checkpoint's rows if they are whole episodes, finite, and match the hash in `newest`."""
    wrong = state.task.check_rows(ring)
    require(wrong is None, "replay", str(wrong))
    floating = {name: column for name, column in ring.columns.items() if column.is_floating_point()}
    require_finite("replay", {name: column[: ring.size] for name, column in floating.items()})
    columns = state.task.columns
    saved = Replay.from_ring(ring, columns, torch.device("cpu"))
    same = tensors_sha256(saved.tensors()) == newest.replay_sha256
    require(same, "replay", "does not match its hash in history.json")
    return Replay.from_ring(ring, columns, state.device)


class _StateDocument(Record):
    generation: int
    noise_scale: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    mutation: dict[str, float | int | None]
    """`MethodState.numbers`; `restore` computes them from the history instead (`PopulationMethod.numbers`)."""
    champion: dict[str, JsonValue]
    """Validation, score, generation and agent of the champion, as in the newest record of the history."""
    panel: str
    """`Task.fingerprint`, the hash of the data."""
    origin: Mapping[str, str] = {}
    """`Panel.origin`; empty if the data are no price files, or an earlier version of Eigen wrote it."""


_STATE = TypeAdapter(_StateDocument)
_DOCUMENTS = ("state", "history", "telemetry", "champion")
_CHAMPION_TASK = "task_"
"""Prefix of the champion's tensors that hold the task's state as it was when the champion was found."""


def _read(saved: Snapshot, stem: str, read: Callable[[JsonValue | bytes], T]) -> T:
    try:
        return read(saved.documents[stem])
    except UnfitRecordsError as error:
        raise UnfitSnapshotError(f"{stem}.json", str(error)) from error


def start_training(config: Config, content: Any) -> TrainingState:  # noqa: ANN401 - the task's own
    """Return the state before the first generation, on `TaskData.content`; `InputError` if the two do not fit."""
    return TrainingState(config, content)


def snapshot(state: TrainingState) -> Snapshot:
    """Return what `restore` needs, sharing the state's tensors; `RuntimeError` unless between two generations."""
    champion = state.champion
    if champion is None or state.evaluated is not None:
        raise RuntimeError("a snapshot can be taken only between two generations.")
    document = _StateDocument(
        generation=state.generation,
        noise_scale=state.noise_scale,
        mutation=dict(state.method_state.numbers),
        champion={name: getattr(champion, name) for name in ("validation", "score", "generation", "agent")},
        panel=state.task.fingerprint,
        origin=_origin(state),
    )
    return Snapshot(
        generation=state.generation,
        tensors=_tensors(state, champion.weights, champion.task_state),
        documents={
            "state": document.model_dump(mode="json"),
            # As text: thousands of short-lived objects in each generation would fragment memory.
            "history": state.history.json(),
            "telemetry": state.telemetry.json(),
            "champion": _champion_metadata(state, champion),
        },
        champion_generation=champion.generation,
        ring=state.replay.ring(),
        computed_by=arithmetic_of(state.device),
    )


def _tensors(
    state: TrainingState, champion: Tensor, champion_task_state: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    tensors = {
        "population": state.population.tensors(),
        "champion": {
            "weights": champion,
            # Because of the generation no two checkpoints share this file: damage to it affects one of them.
            "generation": torch.tensor(state.generation),
            **{_CHAMPION_TASK + name: tensor for name, tensor in champion_task_state.items()},
        },
    }
    kept = {"task": dict(state.task_state), "evolution": dict(state.method_state.tensors)}
    return {**tensors, **{stem: held for stem, held in kept.items() if held}}


def _champion_metadata(state: TrainingState, champion: Champion) -> JsonValue:
    """Return what a program that uses the champion needs in addition to its weights and the run's configuration."""
    layout = [*state.task.critic_layout.shapes, *state.task.actor_layout.shapes]
    with state.task.at(champion.task_state):
        metadata = state.task.metadata()
    return {
        **metadata,
        "generation": state.generation,
        "layout": [{"name": shape.name, "shape": list(shape.shape)} for shape in layout],
    }


def snapshot_form(state: TrainingState) -> SnapshotForm:
    """Return the names, dtypes and shapes that every snapshot of a run with this configuration and data has."""
    episodes = state.config.population.size * state.config.evaluation.slices
    rows = range(episodes * state.task.min_episode_steps, episodes * state.task.episode_steps + 1)
    return SnapshotForm.of(
        _tensors(state, state.population.weights[0], state.task_state), _DOCUMENTS, state.replay.ring(), rows
    )


def restore(state: TrainingState, saved: Snapshot) -> None:
    """Replace the content of `state` by that of the snapshot `saved`; after an error `state` is unchanged.

    `state` is the one before the first generation, with the configuration to continue with. `saved` has the form
    `snapshot_form(state)`; do not use it afterwards: on the CPU the replay keeps its memory, without a copy.

    Raises:
        UnfitSnapshotError: the snapshot is undamaged, but no run with this configuration can have written it.
        InputError: the snapshot was taken on other data.
    """
    config, generation, ring = state.config, saved.generation, saved.ring
    document = _read(saved, "state", partial(parse, _STATE))
    _require_same_data(state, document, generation)
    history = _read(saved, "history", lambda held: parse_history(held, generation))
    telemetry = _read(saved, "telemetry", lambda held: parse_telemetry(held, generation))
    of_generation = document.generation == int(saved.tensors["champion"]["generation"]) == generation
    require(of_generation and generation > 0, "state.json", f"is not of generation {generation}")
    newest = history[-1]
    require_finite("champion.safetensors", saved.tensors["champion"])
    champion = Champion(
        saved.tensors["champion"]["weights"].to(state.device),
        newest.champion_validation,
        newest.champion_score,
        newest.champion_generation,
        newest.champion_agent,
        task_state={
            name.removeprefix(_CHAMPION_TASK): tensor.to(state.device)
            for name, tensor in saved.tensors["champion"].items()
            if name.startswith(_CHAMPION_TASK)
        },
    )
    size, agents = config.population.size, len(newest.fitness)
    require(agents == size, "history.json", f"describes {agents} agents, and population.size is {size}")
    bounds = {**state.learner.bounds(generation), **state.method.bounds}
    require_finite("population.safetensors", saved.tensors["population"], bounds)
    same = tensors_sha256({"weights": saved.tensors["population"]["weights"]}) == newest.weights_sha256
    require(same, "population.safetensors", "holds weights that do not match their hash in history.json")
    if ring is None:
        raise UnfitSnapshotError("replay", "is missing")
    replay = require_replay(state, ring, newest)
    task_state = saved.tensors.get("task", {})
    require_finite("task.safetensors", task_state)
    method_state = saved.tensors.get("evolution", {})
    require_finite("evolution.safetensors", method_state, bounds)
    state.commit(
        task_state=_on(state.device, task_state),
        population=Population.from_tensors(saved.tensors["population"], state.device),
        replay=replay,
        champion=champion,
        method_state=MethodState(state.method.numbers(history), _on(state.device, method_state)),
        noise_scale=document.noise_scale,
        history=RecordLog.of(GenerationRecord, history),
        telemetry=RecordLog.of(Telemetry, telemetry),
        generation=generation,
    )
    warn_if_hardware_differs(saved.computed_by, generation, state.device)


def require_same_data(state: TrainingState, document: JsonValue, generation: int) -> None:
    """Raise `InputError` if a snapshot was taken on other data, by its `document` "state", if that has its form."""
    try:
        found = parse(_STATE, document)
    except UnfitRecordsError:
        return
    _require_same_data(state, found, generation)


def _require_same_data(state: TrainingState, document: _StateDocument, generation: int) -> None:
    here, there = _origin(state), document.origin
    if document.panel != state.task.fingerprint and not same_prices(here, there):
        days = f" of {there['first']} to {there['last']}" if "first" in there and "last" in there else ""
        raise InputError(
            f"generation {generation} was trained on other data: their hash was {document.panel[:12]}, and these data "
            f"have {state.task.fingerprint[:12]}. Use the data{days} and feature functions that the run was started "
            "with, or start a new run."
        )


def same_prices(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two panels were built from the same prices of the same days, given `Panel.origin` of both."""
    return "content" in one and all(one.get(key) == other.get(key) for key in ("content", "first", "last"))


def _origin(state: TrainingState) -> dict[str, str]:
    found = state.task.metadata().get("origin")
    return TypeAdapter(dict[str, str]).validate_python(found or {})


def _on(device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def record_telemetry(state: TrainingState, telemetry: Telemetry) -> None:
    """Append a generation's record of time and memory; a second one of the same generation replaces the first."""
    log = state.telemetry
    if log and log[-1].generation == telemetry.generation:
        log = log.without_last()
    state.telemetry = log.followed_by(telemetry)
