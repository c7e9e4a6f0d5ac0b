"""A training in its own process that writes which phase it is in, and the hashes at its end."""

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from eigen_core.checkpoint import gcs
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.session import open_session
from eigen_core.checkpoint.store_location import open_store
from eigen_core.config.loading import config_from_values
from eigen_core.generation import evaluate, evolve, restore, snapshot, snapshot_form, start_training, train
from eigen_core.market import build_panel
from eigen_core.runs.handle import Run

# Imported before processes are forked: it takes as long as their training.
assert gcs

PHASES = ("start", "load", "evaluate", "train", "evolve", "checkpoint", "finish")


def train_to_the_end(values: Mapping[str, Any], name: str, marks: str, environment: Mapping[str, str]) -> None:
    """Train a run to its last generation, from its newest checkpoint if there is one.

    Args:
        values, name: the configuration and the run.
        marks: file that gets the digits of the current phase and generation, for the process that kills this one.
        environment: variables to set first.
    """
    os.environ.update(environment)
    torch.set_num_threads(1)
    marker = os.open(marks, os.O_WRONLY)

    def mark(phase: str, generation: int) -> None:
        os.pwrite(marker, f"{PHASES.index(phase)}{generation}".encode(), 0)

    config = config_from_values(values)
    panel, _ = build_panel(config)
    Run(config.checkpoint, name).begin(config)
    with open_session(RunLocation.of(config.checkpoint, name), config.checkpoint) as session:
        mark("load", 0)
        state = start_training(config, panel)
        session.load_newest(snapshot_form(state), partial(restore, state))
        for generation in range(state.generation + 1, config.generations + 1):
            mark("evaluate", generation)
            evaluate(state)
            mark("train", generation)
            train(state)
            mark("evolve", generation)
            evolve(state)
            mark("checkpoint", generation)
            session.save(snapshot(state), config.model_dump(mode="json"))
        mark("finish", config.generations)
        session.finish()


def facts_of(values: Mapping[str, Any], name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the newest manifest in the store; raise `RuntimeError` if anything there is damaged."""
    os.environ.update(environment)
    config = config_from_values(values)
    contents = RunContents(open_store(config.checkpoint.store), name)
    damages = contents.verify(deep=True)
    newest = contents.newest_manifest()
    if damages or newest is None or newest.generation != config.generations:
        raise RuntimeError(f"damages {[str(damage) for damage in damages]}, newest {newest and newest.generation}")
    last = contents.document(newest, "history")
    assert isinstance(last, list)
    record = json.loads(json.dumps(last[-1]))
    files = {entry.name: entry.sha256 for entry in newest.files if not entry.name.startswith("telemetry")}
    return {"weights": record["weights_sha256"], "replay": record["replay_sha256"], **files}
