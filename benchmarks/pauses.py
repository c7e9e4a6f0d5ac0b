"""How long a checkpoint stops a training of preset ddpg, with a local and a remote store."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from gcs_emulator import GcsEmulator

from benchmarks.measure import in_own_process, seconds_of
from benchmarks.results import Section
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import open_session
from eigen_core.config.loading import load_config
from eigen_core.generation import evaluate, evolve, snapshot, start_training, train
from eigen_core.machine.memory_usage import release_free_memory
from eigen_core.market import build_panel
from eigen_core.runs.handle import Run

_GENERATIONS, _WARM_UP = 9, 1
_TURNS = 2
_LOCAL, _EMULATOR = "a folder", "emulator of Google Cloud Storage"
_PHASES = ("evaluate", "train", "evolve", "checkpoint")


def run() -> Section:
    measured: dict[str, list[dict[str, float]]] = {_LOCAL: [], _EMULATOR: []}

    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as name, ExitStack() as exits:
        server = GcsEmulator(Path(name))
        exits.callback(server.stop)
        stores = {
            _LOCAL: f"{name}/runs",
            _EMULATOR: f"gs://{server.make_bucket()}/runs",
        }
        for turn in range(_TURNS):
            for place, store in stores.items():
                measured[place] += in_own_process(train_with, store, f"{name}/local", f"run-{turn}", server.url)
    rows = []
    for place, generations in measured.items():
        cells = [_median_and_longest([seconds[phase] for seconds in generations]) for phase in _PHASES]
        rows.append([place, *cells, _median_and_longest([sum(seconds.values()) for seconds in generations])])
    return Section(
        title="What a checkpoint takes of the time for training",
        method=f"Preset ddpg on the bundled prices, generations {1 + _WARM_UP} to {_GENERATIONS} of "
        f"{_TURNS} runs in turns for each store, each in its own process: median and longest time of a phase. "
        "Training waits until population with targets and moments, champion, records and new transitions are "
        "compressed, hashed, written and fsynced in the run directory, and old generations are removed there; a "
        "thread uploads them to a remote store during the next phases.",
        columns=("store: ms (median / longest)", *_PHASES, "generation"),
        rows=rows,
        remarks=("The goal is less than 150 ms for a checkpoint.",),
    )


def train_with(store: str, local: str, name: str, emulator_url: str) -> list[dict[str, float]]:
    """Train with a store and return the time of each phase of each counted generation (seconds)."""
    os.environ["STORAGE_EMULATOR_HOST"] = emulator_url
    assignments = [f"checkpoint.store={store}", f"checkpoint.local={local}", f"generations={_GENERATIONS}"]
    config = load_config("ddpg", assignments)
    state = start_training(config, build_panel(config)[0])
    Run(config.checkpoint, name).begin(config)
    document = config.model_dump(mode="json")
    generations = []
    with open_session(RunLocation.of(config.checkpoint, name), config.checkpoint) as session:
        for _ in range(_GENERATIONS):
            seconds = {
                "evaluate": seconds_of(lambda: evaluate(state)),
                "train": seconds_of(lambda: train(state)),
                "evolve": seconds_of(lambda: evolve(state)),
            }
            release_free_memory()
            seconds["checkpoint"] = seconds_of(lambda: session.save(snapshot(state), document))
            generations.append(seconds)
        session.finish()
    return generations[_WARM_UP:]


def _median_and_longest(seconds: Sequence[float]) -> str:
    return f"{1e3 * median(seconds):.0f} / {1e3 * max(seconds):.0f}"
