"""Stop `eigen train` with SIGTERM at random instants: it must end in time, say so, and leave a complete run.

`python -m benchmarks.stop [--stops 50] [--seed 1]`. The exit code is 1 if any process did not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from benchmarks.kill import CONFIG, settings_of
from benchmarks.results import Section, publish, require_idle
from eigen_core.common.randomness import keyed_generator
from eigen_core.housekeeping import verify_run
from eigen_core.runs.handle import Run, status_of

GRACE_SECONDS = 30.0
"""Prefect kills a process this long after SIGTERM."""

_GENERATIONS = 20
_HOLDOUT_DAYS = 50
_PATIENCE_SECONDS = 600.0


@dataclass
class Outcome:
    """Results of some stops.

    Attributes:
        seconds: from SIGTERM to the end of the process, each.
        generations: number of stops after each generation; None: before there was a run.
    """

    seconds: list[float] = field(default_factory=list)
    generations: Counter[int | None] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Stopper:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        places = {"EIGEN_HOME": "home", "PREFECT_HOME": "prefect", "EIGEN_CACHE": "cache"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "EIGEN_"))}
        self._environment = {**kept, **{name: str(folder / place) for name, place in places.items()}}
        self._environment["OMP_NUM_THREADS"] = "1"
        self._store = str(folder / "runs")
        self._length = 0.0

    def stop(self, outcome: Outcome, index: int) -> None:
        """Stop a training at an instant drawn over the time of an undisturbed one; repeat if it ended before."""
        if not self._length:
            began = time.monotonic()
            self._start("undisturbed").wait(_PATIENCE_SECONDS)
            self._length = time.monotonic() - began
        share = keyed_generator(self._seed, index, "stop").uniform()
        for attempt in range(10):
            run = f"stopped-{index}-{attempt}"
            process = self._start(run)
            try:
                process.wait(share * self._length)
            except subprocess.TimeoutExpired:
                self._tell(outcome, process, run)
                return
            share *= 0.9
        raise RuntimeError("trainings end faster and faster")

    def _start(self, run: str) -> "subprocess.Popen[str]":
        config = {**CONFIG, "market": {**CONFIG["market"], "holdout": _HOLDOUT_DAYS}}
        settings = [*settings_of(config), "--generations", str(_GENERATIONS)]
        with (self._folder / f"{run}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "flows.cli", "train", "--run", run, "--store", self._store, *settings],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _tell(self, outcome: Outcome, process: "subprocess.Popen[str]", run: str) -> None:
        process.terminate()
        told = time.monotonic()
        try:
            code = process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            outcome.wrong.append(f"{run} did not end within {GRACE_SECONDS:.0f} s")
            return
        outcome.seconds.append(time.monotonic() - told)
        if code == 0:
            outcome.wrong.append(f"{run} has the exit code 0")
        settings = status_of(self._store, "undisturbed").config.checkpoint
        generation = None
        if Run(settings, run).exists:
            generation = status_of(self._store, run).generation
            damages = verify_run(self._store, run, deep=True).damages
            outcome.wrong += [f"{run}: {damage}" for damage in damages]
        outcome.generations[generation] += 1


def stop_at_random_instants(folder: Path, stops: int, seed: int, progress: Progress) -> Outcome:
    stopper, outcome, bar = Stopper(folder, seed), Outcome(), progress.add_task("eigen train", total=stops)
    for index in range(stops):
        stopper.stop(outcome, index)
        progress.update(bar, completed=index + 1)
    return outcome


def _section(outcome: Outcome) -> Section:
    generations = outcome.generations
    rows = [
        ["stopped processes", str(generations.total())],
        ["before there was a run", str(generations[None])],
        ["before its first generation", str(generations[0])],
        ["after its last generation, before its end", str(generations[_GENERATIONS])],
        ["longest time to the end (s)", f"{max(outcome.seconds, default=0.0):.1f}"],
        ["failures", str(len(outcome.wrong))],
    ]
    return Section(
        title="Stopped at random instants",
        method=f"`eigen train` of {_GENERATIONS} generations of 4 agents and a holdout gets SIGTERM at an instant "
        f"drawn over its whole time, start-up included. It must end within {GRACE_SECONDS:.0f} s with an exit code "
        "other than 0, and every file of its run must be complete.",
        columns=("", "eigen train"),
        rows=rows,
        remarks=outcome.wrong,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stop", description=__doc__)
    parser.add_argument("--stops", type=int, default=50, help="processes that are told to stop (50)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the instants (1)")
    options = parser.parse_args()
    require_idle(["stop"])
    with tempfile.TemporaryDirectory(prefix="eigen-stop-") as folder, Progress() as progress:
        outcome = stop_at_random_instants(Path(folder), options.stops, options.seed, progress)
    publish("stop", _section(outcome))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
