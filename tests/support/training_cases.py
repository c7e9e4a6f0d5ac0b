"""Training states in small: run some generations, and everything that a state knows as values to compare."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from science_cases import random_panel, small_config
from torch import Tensor

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.randomness import keyed_generator
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
from eigen_core.task import open_data
from eigen_core.task.market import MarketTask
from eigen_core.task.transitions import EpisodeBatch

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


def random_episodes(
    config: Config, first_days: NDArray[np.int64], assets: int, portfolio_values: int, seed: int = 1
) -> EpisodeBatch:
    trading = config.trading
    generator = keyed_generator(seed, 0, "test", "episodes")
    shape = (len(first_days), trading.episode_days, assets)
    coefficients = generator.uniform(0.0, trading.max_coefficient or 3.0, shape)
    targets = generator.uniform(trading.min_target, trading.max_target, shape)
    return EpisodeBatch(
        first_days=torch.tensor(first_days),
        portfolios=torch.tensor(generator.uniform(-1.0, 1.0, (*shape, portfolio_values)), dtype=torch.float16),
        actions=torch.tensor(np.stack([coefficients, targets], axis=-1), dtype=torch.float32),
        rewards=torch.tensor(generator.normal(0.0, 50.0, shape[:2]), dtype=torch.float32),
    )
