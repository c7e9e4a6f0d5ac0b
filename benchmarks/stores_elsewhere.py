"""Generations of a run that is kept elsewhere, and the emulator of a store elsewhere."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import seconds_of
from eigen_core.checkpoint import RunSession
from eigen_core.generation import TrainingState, evaluate, evolve, snapshot, train
from eigen_core.memory import release_free_memory

# Emulator and proxy are the tests' own.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

if TYPE_CHECKING:
    from gcs_emulator import GcsEmulator

PHASES = ("evaluate", "train", "evolve", "checkpoint")


def run_generation(state: TrainingState, session: RunSession) -> dict[str, float]:
    """Run the next generation and commit it. Returns the time of each of `PHASES` (seconds)."""
    config = state.config
    seconds = {
        "evaluate": seconds_of(lambda: evaluate(state)),
        "train": seconds_of(lambda: train(state)),
        "evolve": seconds_of(lambda: evolve(state)),
    }
    release_free_memory()
    document = config.model_dump(mode="json")
    seconds["checkpoint"] = seconds_of(lambda: session.save(snapshot(state), document))
    return seconds


def middle_and_longest(seconds: Sequence[float]) -> str:
    """Return both in milliseconds, as a cell."""
    return f"{1e3 * median(seconds):.0f} / {1e3 * max(seconds):.0f}" if seconds else ""


@contextmanager
def emulator(folder: Path) -> Iterator["GcsEmulator"]:
    """An emulator of Google Cloud Storage that ends with the block; its log goes into the folder."""
    from gcs_emulator import GcsEmulator

    server = GcsEmulator(folder)
    try:
        yield server
    finally:
        server.stop()


def reach_store_at(url: str) -> None:
    """Let this process take the emulator, or what stands before it, for Google Cloud Storage."""
    os.environ["STORAGE_EMULATOR_HOST"] = url
