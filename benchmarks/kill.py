"""Kill a small training with SIGKILL at random instants, resume it, and compare it with one that was not killed.

`python -m benchmarks.kill [--kills 100] [--seed 1]` kills on the local store, and as often on an emulator of Google
Cloud Storage, where the network also fails at random in every third run. The exit code is 1 if any run ends with other
bits than the undisturbed one.
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.kill_training import PHASES, facts_of, train_to_the_end
from benchmarks.results import Section, publish
from eigen_core.common.randomness import keyed_generator

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from fault_proxy import FaultProxy
    from gcs_emulator import GcsEmulator

_FAULTY_EVERY = 3
_SECOND_KILL = 0.3
_MOST_RESUMES = 40
_PATIENCE_SECONDS = 240.0
_PAUSE_SECONDS = 3.0

CONFIG: dict[str, Any] = {
    "preset": "ddpg",
    "device": "cpu",
    "generations": 4,
    "market": {"window": 20, "validation": 60, "holdout": 0},
    "trading": {"trading_bars": 30, "settlement_bars": 10, "holding_bars": 10},
    "network": {"scales": [1, 5], "channels": 8, "embedding": 4, "queries": 2, "head_width": 8},
    "population": {"size": 4, "group_size": 2},
    "replay": {"capacity": 800, "minimum": 200},
    "learner": {"gradient_steps": 8, "batch_size": 16},
    "evaluation": {"slices": 2, "lowest": 1, "validation_slices": 1, "validation_lowest": 1},
}
"""A training of a second; its replay buffer overwrites rows in generation 3."""


def settings_of(values: Mapping[str, Any]) -> list[str]:
    """Return a configuration as options of the command, except `generations`."""
    options = []
    for section, given in values.items():
        if section == "generations":
            continue
        for key, value in given.items() if isinstance(given, dict) else [("", given)]:
            options += ["--set", f"{section}.{key}={value}".replace(".=", "=")]
    return options


UPLOAD = "upload"
_LONGEST_DELAY = {
    "start": 1.0,
    "evaluate": 0.1,
    "train": 0.1,
    "evolve": 0.002,
    "checkpoint": 0.08,
    "finish": 0.1,
    UPLOAD: 0.1,
}


class Instant(NamedTuple):
    """When a process is killed: `delay` seconds after it began a phase (`moment`) of a generation, or an upload."""

    moment: str
    generation: int
    delay: float


@dataclass
class Outcome:
    """Counts of kills, and of the runs that were killed and resumed to their end.

    Attributes:
        equal: runs that ended with the bits of the undisturbed one; `different` names the others.
        faulty, uploading: kills while the network failed, and during an upload.
    """

    kills: int = 0
    runs: int = 0
    equal: int = 0
    faulty: int = 0
    uploading: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    different: list[str] = field(default_factory=list)


class Killer:
    """Starts trainings, kills them at instants drawn from `seed`, and resumes them; all files are in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        # Processes are forked after torch is imported, which takes longer than the training.
        self._context.set_forkserver_preload(["benchmarks.kill_training"])
        os.environ["EIGEN_CACHE"] = str(folder / "cache")
        os.environ["OMP_NUM_THREADS"] = "1"

    def config(self, store: str) -> dict[str, Any]:
        settings = {"store": store, "local": str(self._folder / "local"), "keep_last": 2, "lease_seconds": 10.0}
        return {**CONFIG, "checkpoint": settings}

    def undisturbed(self, store: str, environment: Mapping[str, str]) -> dict[str, str]:
        process = self._start(store, "undisturbed", environment)
        process.join(_PATIENCE_SECONDS)
        if process.exitcode != 0:
            raise RuntimeError(f"the undisturbed run in {store} ended with exit code {process.exitcode}")
        return facts_of(self.config(store), "undisturbed", environment)

    def kill(
        self,
        outcome: Outcome,
        store: str,
        name: str,
        environment: Mapping[str, str],
        direct: Mapping[str, str],
        expected: Mapping[str, str],
    ) -> None:
        """Kill a run once or twice, resume it to its end, and compare; `direct` is the environment without faults."""
        generator = keyed_generator(self._seed, 0, "kill", name, "instants")
        wanted = 2 if generator.random() < _SECOND_KILL else 1
        kills = 0
        for _ in range(_MOST_RESUMES):
            process = self._start(store, name, environment)
            if kills < wanted and self._kill_at(process, self._instant(generator, remote=bool(direct)), outcome, name):
                kills += 1
                outcome.faulty += environment != direct
                continue
            process.join(_PATIENCE_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()
                raise RuntimeError(f"run {name} in {store} does not end")
            outcome.resumes += 1
            if process.exitcode == 0 and kills == wanted:
                break
            # The process ended before it was killed, or the network failed. A lease whose record was damaged in
            # transit expires after 90 seconds.
            if process.exitcode != 0:
                time.sleep(_PAUSE_SECONDS)
        outcome.runs += 1
        try:
            equal = facts_of(self.config(store), name, direct) == dict(expected)
        except (RuntimeError, ValueError) as error:
            outcome.different.append(f"{name}: {error}")
            return
        outcome.equal += equal
        if not equal:
            outcome.different.append(name)

    def _instant(self, generator: np.random.Generator, *, remote: bool) -> Instant:
        moments = [*PHASES, UPLOAD] if remote else PHASES
        moment = moments[int(generator.integers(len(moments)))]
        generation = int(generator.integers(1, CONFIG["generations"] + 1))
        return Instant(moment, generation, float(generator.uniform(0.0, _LONGEST_DELAY.get(moment, 0.2))))

    def _kill_at(self, process: "ForkServerProcess", instant: Instant, outcome: Outcome, name: str) -> bool:
        """Kill a process at an instant; return False if it ended before."""
        while process.exitcode is None and not self._is_in(instant, name):
            time.sleep(0.0005)
        process.join(instant.delay)
        if process.pid is None or not process.is_alive():
            return False
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            return False
        outcome.kills += 1
        outcome.phases[self._phase(name)[0]] += 1
        outcome.uploading += self._is_uploading(name)
        return True

    def _is_in(self, instant: Instant, name: str) -> bool:
        """Whether a training has reached an instant, or is past its generation."""
        phase, generation = self._phase(name)
        if instant.moment == UPLOAD:
            return generation >= instant.generation and self._is_uploading(name)
        if instant.moment in ("start", "load"):
            return PHASES.index(phase) >= PHASES.index(instant.moment)
        return generation > instant.generation or (generation == instant.generation and phase == instant.moment)

    def _phase(self, name: str) -> tuple[str, int]:
        content = self._marks(name).read_bytes() or b"00"
        return PHASES[int(content[:1])], int(content[1:])

    def _is_uploading(self, name: str) -> bool:
        status = (self._folder / "local").glob(f".remote/*/*/*/{name}/uploads.json")
        return any(b'"state": "uploading"' in path.read_bytes() for path in status)

    def _start(self, store: str, name: str, environment: Mapping[str, str]) -> "ForkServerProcess":
        marks = self._marks(name)
        marks.write_bytes(b"00")
        process = self._context.Process(
            target=train_to_the_end, args=(self.config(store), name, str(marks), dict(environment))
        )
        process.start()
        return process

    def _marks(self, name: str) -> Path:
        return self._folder / f"{name}.phase"


def kill_locally(killer: Killer, folder: Path, kills: int, progress: Progress) -> Outcome:
    store = str(folder / "runs")
    expected = killer.undisturbed(store, {})
    outcome, bar = Outcome(), progress.add_task("local store", total=kills)
    while outcome.kills < kills:
        killer.kill(outcome, store, f"run-{outcome.runs}", {}, {}, expected)
        progress.update(bar, completed=outcome.kills)
    return outcome


def kill_remotely(
    killer: Killer, emulator: "GcsEmulator", proxy: "FaultProxy", kills: int, progress: Progress
) -> Outcome:
    """Kill runs whose store is the emulator; every third reaches it through a failing network."""
    store = f"gs://{emulator.make_bucket()}/pre"
    direct, failing = ({"STORAGE_EMULATOR_HOST": server.url} for server in (emulator, proxy))
    expected = killer.undisturbed(store, direct)
    outcome, bar = Outcome(), progress.add_task("emulator of GCS", total=kills)
    while outcome.kills < kills:
        environment = failing if outcome.runs % _FAULTY_EVERY == 0 else direct
        _let_the_network_fail(proxy, outcome.runs)
        killer.kill(outcome, store, f"run-{outcome.runs}", environment, direct, expected)
        progress.update(bar, completed=outcome.kills)
    return outcome


def _let_the_network_fail(proxy: "FaultProxy", seed: int) -> None:
    from fault_proxy import Fault

    proxy.clear()
    proxy.seed(seed)
    proxy.add(
        Fault("status", probability=0.04, times=None, status=503),
        Fault("status", probability=0.03, times=None, status=429),
        Fault("reset", probability=0.03, times=None),
        Fault("lost_reply", probability=0.03, times=None),
        Fault("cut", probability=0.03, times=None, method="GET"),
        Fault("flip_request", probability=0.03, times=None, method="POST|PUT", path="upload"),
        Fault("flip_reply", probability=0.03, times=None, method="GET", path="alt=media"),
        Fault("stall", probability=0.02, times=None, seconds=1.0),
    )


def run(kills: int, seed: int, console: Console) -> dict[str, Outcome]:
    from fault_proxy import FaultProxy
    from gcs_emulator import GcsEmulator

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eigen-kill-")))
        progress = stack.enter_context(Progress(console=console))
        killer = Killer(folder, seed)
        emulator = GcsEmulator(folder)
        stack.callback(emulator.stop)
        proxy = FaultProxy(emulator.url)
        stack.callback(proxy.stop)
        return {
            "local store": kill_locally(killer, folder, kills, progress),
            "emulator of GCS": kill_remotely(killer, emulator, proxy, kills, progress),
        }


def _section(outcomes: Mapping[str, Outcome]) -> Section:
    facts: dict[str, list[object]] = {
        "kills": [outcome.kills for outcome in outcomes.values()],
        "while the network failed": [outcome.faulty for outcome in outcomes.values()],
        "during an upload": [outcome.uploading for outcome in outcomes.values()],
        **{f"in phase {phase}": [outcome.phases[phase] for outcome in outcomes.values()] for phase in PHASES},
        "resumed runs": [outcome.runs for outcome in outcomes.values()],
        "equal ends": [f"{outcome.equal} of {outcome.runs}" for outcome in outcomes.values()],
    }
    return Section(
        title="Killed at random instants",
        method="A training of 4 generations (4 agents, its ring of 800 transitions full in generation 3) is killed by "
        "SIGKILL at instants drawn at random over its phases, generations and uploads, some runs twice, and resumed "
        "to its end. Equal: the newest manifest in the store has the SHA-256 of weights, targets, moments, replay, "
        "history and state of an undisturbed run, and every file there is whole.",
        columns=("", *outcomes),
        rows=[[fact, *map(str, values)] for fact, values in facts.items()],
        remarks=[f"Not equal: {name}." for outcome in outcomes.values() for name in outcome.different],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills on each store (100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the instants (1)")
    options = parser.parse_args()
    outcomes = run(options.kills, options.seed, Console())
    publish("kill", _section(outcomes))
    return 0 if all(outcome.equal == outcome.runs for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
