"""A training state as named tensors and documents, and back."""

from typing import TypeVar

import pandas as pd
import torch
from pydantic import JsonValue, TypeAdapter

from eigen_core.checkpoint import Snapshot
from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.evolution import Champion, MutationState
from eigen_core.generation.state import TrainingState
from eigen_core.market.panel import Panel
from eigen_core.population import Population
from eigen_core.records import GenerationRecord, Record, RecordLog, Telemetry
from eigen_core.replay import Replay
from eigen_core.reporting import history_frame

T = TypeVar("T")

_HISTORY = TypeAdapter(list[GenerationRecord])
_TELEMETRY = TypeAdapter(list[Telemetry])


def _parsed(kind: TypeAdapter[T], document: JsonValue | bytes) -> T:
    return kind.validate_json(document) if isinstance(document, bytes) else kind.validate_python(document)


class _ChampionDocument(Record):
    validation: float
    generation: int
    agent: int


class _StateDocument(Record):
    generation: int
    noise_scale: float
    mutation: MutationState
    champion: _ChampionDocument
    panel: str


def start_training(config: Config, panel: Panel) -> TrainingState:
    """Return the state before the first generation.

    Raises:
        InputError: configuration and panel do not fit together.
    """
    return TrainingState(config, panel)


def snapshot(state: TrainingState) -> Snapshot:
    """Return everything that `restore` needs; tensors are shared with the state, not copied.

    Raises:
        RuntimeError: a generation is under way or none is complete.
    """
    champion = state.champion
    if champion is None or state.evaluated is not None:
        raise RuntimeError("a snapshot can be taken only between two generations.")
    document = _StateDocument(
        generation=state.generation,
        noise_scale=state.noise_scale,
        mutation=state.mutation,
        champion=_ChampionDocument(
            validation=champion.validation, generation=champion.generation, agent=champion.agent
        ),
        panel=state.panel.fingerprint,
    )
    return Snapshot(
        generation=state.generation,
        tensors={
            "population": state.population.tensors(),
            # With its generation, no two generations share this file, so that damage to it costs one of them.
            "champion": {"weights": champion.weights, "generation": torch.tensor(state.generation)},
        },
        documents={
            "state": document.model_dump(mode="json"),
            # As text: thousands of short-lived objects in each generation would leave memory in pieces.
            "history": state.history.json(),
            "telemetry": state.telemetry.json(),
            "champion": _champion_facts(state),
        },
        champion_generation=champion.generation,
        ring=state.replay.ring(),
    )


def _champion_facts(state: TrainingState) -> JsonValue:
    """What somebody needs to know who has nothing but the champion's weights and the configuration."""
    panel, network = state.panel, state.network
    layout = [*network.critic_layout.shapes, *network.actor_layout.shapes]
    return {
        "symbols": list(panel.symbols),
        "assets": panel.assets,
        "features": list(panel.feature_names),
        "panel": panel.fingerprint,
        "generation": state.generation,
        "layout": [{"name": shape.name, "shape": list(shape.shape)} for shape in layout],
    }


def restore(config: Config, panel: Panel, saved: Snapshot, *, take_memory: bool = False) -> TrainingState:
    """Return the state that `saved` was taken of.

    Args:
        config: the configuration to go on with.
        panel: the panel that the run began with.
        saved: what was saved.
        take_memory: let the replay go on in the snapshot's own memory, where a copy would take as much again; the
            snapshot cannot be used afterwards.

    Raises:
        InputError: the snapshot was taken on another panel, or without its replay buffer.
    """
    document = _StateDocument.model_validate(saved.documents["state"])
    if document.panel != panel.fingerprint:
        raise InputError(
            f"generation {saved.generation} was trained on other data: its panel was {document.panel[:12]}, "
            f"this one is {panel.fingerprint[:12]}. Give the data that the run began with, or start a new run."
        )
    if saved.ring is None:
        raise InputError(f"generation {saved.generation} holds no replay buffer, so it cannot be continued exactly.")
    state = TrainingState(config, panel)
    state.population = Population.from_tensors(saved.tensors["population"], state.device)
    state.replay = Replay.from_ring(saved.ring, state.device, take_memory=take_memory)
    weights = saved.tensors["champion"]["weights"].to(state.device, dtype=torch.float32)
    state.champion = Champion(weights, **document.champion.model_dump())
    state.mutation = document.mutation
    state.noise_scale = document.noise_scale
    history = _parsed(_HISTORY, saved.documents["history"])
    telemetry = _parsed(_TELEMETRY, saved.documents["telemetry"])
    state.history = RecordLog.of(GenerationRecord, history)
    state.telemetry = RecordLog.of(Telemetry, telemetry)
    state.generation = saved.generation
    return state


def record_telemetry(state: TrainingState, telemetry: Telemetry) -> None:
    """Remember what a generation took; a second record of the newest generation replaces the first."""
    log = state.telemetry
    if log and log[-1].generation == telemetry.generation:
        log = log.without_last()
    state.telemetry = log.followed_by(telemetry)


def training_frame(state: TrainingState) -> pd.DataFrame:
    """Return the history of a run, one row a generation."""
    return history_frame(state.history, state.telemetry)
