"""Time of generations with server and worker, and of the same ones without Prefect."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from operated import Operated

from benchmarks.measure import in_own_process
from benchmarks.results import Section
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store import LocalStore
from eigen_core.common.process import default_cache_root
from eigen_core.config.loading import load_config
from eigen_core.machine.memory_usage import tune_allocator
from eigen_core.run import train_run
from eigen_core.runs.handle import Run, status_of
from flows.server.prefect_settings import flow_environment

_GENERATIONS = 11
_TURNS = 3
_PRESET = "ddpg"
_SHORT = ("learner.gradient_steps=1", "evaluation.slices=2", "evaluation.validation_slices=2")
_CASES: dict[str, tuple[str, ...]] = {"short generations": _SHORT, _PRESET: ()}
_MOST_SECONDS, _MOST_SHARE = 0.1, 0.02
_TRAINING_SECONDS = 1_200.0


@dataclass(frozen=True)
class Course:
    """Times from each generation's manifest to the next (seconds), and the hash of the last population."""

    generations: tuple[float, ...]
    weights: str

    @classmethod
    def of(cls, store: Path, name: str) -> "Course":
        manifests = RunContents(LocalStore(store), name).manifests()[::-1]
        if [manifest.generation for manifest in manifests] != list(range(1, _GENERATIONS + 1)):
            raise RuntimeError(f"run {name} has not all of its generations")
        moments = [datetime.fromisoformat(manifest.created) for manifest in manifests]
        seconds = tuple((end - begin).total_seconds() for begin, end in pairwise(moments))
        return cls(seconds, status_of(str(store), name).history[-1].weights_sha256)


def run() -> Section:
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as folder:
        compared = _take_turns(Path(folder))
    rows = []
    for name, (alone, flow) in compared.items():
        without, within = (float(np.mean([course.generations for course in side])) for side in (alone, flow))
        kept = within - without <= max(_MOST_SECONDS, _MOST_SHARE * without)
        equal = len({course.weights for course in (*alone, *flow)}) == 1
        difference = [f"{within - without:+.3f}", f"{100 * (within / without - 1):+.1f} %"]
        rows.append(
            [name, f"{without:.3f}", f"{within:.3f}", *difference, *("yes" if each else "no" for each in (kept, equal))]
        )
    return Section(
        title="Cost of server and worker",
        method=f"Generations 2 to {_GENERATIONS} of preset {_PRESET}, or of one with 1 gradient step and 2 episodes of "
        "a kind, on the bundled prices with checkpoints and without plots, launched with `eigen launch` on "
        "the server and the worker of `eigen up`, and without Prefect in a process of its own while neither runs; "
        f"{_TURNS} times by turns, one torch thread; means over all generations. A generation's time runs from the "
        "manifest before it to its own, with all work of the flow: states, logs, pages, memory guard, lease.",
        columns=(
            "seconds a generation",
            "without Prefect",
            "server and worker",
            "difference",
            "share",
            "within the goal",
            "same weights",
        ),
        rows=rows,
        remarks=(f"The goal is a difference of at most {_MOST_SECONDS} s or {_MOST_SHARE:.0%}.",),
    )


@contextmanager
def server_and_worker(folder: Path) -> Iterator[Operated]:
    """Run server and worker of `eigen up` inside the block, with all files in `folder`."""
    os.environ.setdefault("EIGEN_CACHE", str(default_cache_root()))
    with Operated(folder, environment={"PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "INFO"}) as operated:
        operated.up()
        yield operated


def launch(operated: Operated, preset: str, run: str, assignments: Sequence[str]) -> str:
    """Launch a training and return the id of its flow run."""
    settings = [part for assignment in assignments for part in ("--set", assignment)]
    return operated.launch(run, ["--preset", preset, *settings])


def train_plainly(store: str, name: str, assignments: Sequence[str]) -> None:
    """Train a run to its end without Prefect."""
    tune_allocator()
    config = load_config(_PRESET, [*assignments, f"checkpoint.store={store}"])
    torch.set_num_threads(config.threads)
    train_run(config, Run.of(config, name))


def _take_turns(folder: Path) -> dict[str, tuple[list[Course], list[Course]]]:
    common = (
        "reporting.plot_every=0",
        f"generations={_GENERATIONS}",
        f"checkpoint.keep_last={_GENERATIONS}",
        "threads=1",
    )
    found: dict[str, tuple[list[Course], list[Course]]] = {name: ([], []) for name in _CASES}
    for turn in range(_TURNS):
        runs = {name: f"{name.replace(' ', '-')}-{turn}" for name in _CASES}
        for name, training in runs.items():
            # The same settings of the C library and OpenMP as in a flow.
            with patch.dict(os.environ, flow_environment(os.environ)):
                in_own_process(train_plainly, str(folder / "plain"), training, (*_CASES[name], *common))
            found[name][0].append(Course.of(folder / "plain", training))
        with server_and_worker(folder) as operated:
            for name, training in runs.items():
                flow_run = launch(operated, _PRESET, training, (*_CASES[name], *common))
                if (state := operated.wait_for_end(flow_run, _TRAINING_SECONDS)) != "Completed":
                    raise RuntimeError(f"training {training} ended as {state}\n{operated.tails()}")
                found[name][1].append(Course.of(operated.store, training))
    return found
