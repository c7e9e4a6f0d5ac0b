"""Training states in small: run some generations, and everything that a state knows as values to compare."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from science_cases import random_panel, small_config
from torch import Tensor

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.records import GenerationRecord
from eigen_core.config import Config
from eigen_core.generation import (
    TrainingState,
    evaluate,
    evolve,
    restore,
    snapshot,
    snapshot_form,
    start_training,
    train,
)
from eigen_core.market import build_panel
from eigen_core.task import open_data
from eigen_core.task.market import MarketTask

TRADING_TASKS = ("market", "portfolio")


def content_for(config: Config, assets: int = 6) -> Any:
    """Random prices for a task that trades, else the data that the task opens."""
    return random_panel(config, assets=assets) if config.task in TRADING_TASKS else open_data(config).content


def begun(config: Config, assets: int = 6) -> TrainingState:
    return start_training(config, content_for(config, assets))


def small_state(assets: int = 6, **sections: Any) -> TrainingState:
    return begun(small_config(**sections), assets)


def market_of(state: TrainingState) -> MarketTask:
    assert isinstance(state.task, MarketTask)
    return state.task


def advance(state: TrainingState, generations: int) -> TrainingState:
    for _ in range(generations):
        evaluate(state)
        train(state)
        evolve(state)
    return state


def history_of(config: Config) -> tuple[GenerationRecord, ...]:
    """The history of a run on the market of its configuration that is never interrupted and never stored."""
    return tuple(advance(start_training(config, build_panel(config)[0]), config.generations).history)


def resumed_from(directory: RunDirectory, config: Config) -> TrainingState:
    state = begun(config)
    loaded = directory.load_newest(snapshot_form(state))
    assert loaded is not None
    restore(state, loaded.snapshot)
    return state


def saved_of(state: TrainingState) -> Snapshot:
    """A snapshot as it comes back from a store: on the processor, in its own memory."""
    saved = snapshot(state)
    assert saved.ring is not None

    def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.cpu().clone() for name, tensor in tensors.items()}

    tensors = {stem: on_host(held) for stem, held in saved.tensors.items()}
    return replace(saved, tensors=tensors, ring=replace(saved.ring, columns=on_host(saved.ring.columns)))


def content_of(state: TrainingState) -> dict[str, Any]:
    """Everything that a state knows beside its configuration and panel; equal states have equal contents."""
    champion, evaluated = state.champion, state.evaluated
    return {
        "generation": state.generation,
        "population": tensors_sha256(state.population.tensors()),
        "replay": tensors_sha256(state.replay.tensors()),
        "on_host": {
            name: state.replay.on_host(name).tolist() for name, column in state.task.columns.items() if column.on_host
        },
        "champion": champion
        and (
            tensors_sha256({"weights": champion.weights, **champion.task_state}),
            champion.validation,
            champion.score,
            champion.generation,
            champion.agent,
        ),
        "method": (dict(state.method_state.numbers), tensors_sha256(dict(state.method_state.tensors))),
        "noise_scale": state.noise_scale,
        "task_state": tensors_sha256(dict(state.task_state)),
        "evaluated": evaluated
        and (
            evaluated.generation,
            evaluated.fitness.tolist(),
            evaluated.validations.tolist(),
            evaluated.statistics,
        ),
        "learned": state.learned,
        "history": [record.model_dump() for record in state.history],
        "telemetry": [telemetry.model_dump() for telemetry in state.telemetry],
    }
