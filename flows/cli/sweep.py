"""The command `eigen sweep`: its trials are ordinary runs, each trained by `eigen train` in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from eigen_core.errors import InputError
from eigen_core.store import check_run_name, is_remote, run_root
from flows.cli.common import EXIT_BAD_INPUT, EXIT_MEMORY
from flows.cli.signals import StopSignals, stop_signals
from flows.cli.sweep_results import TrialResult, champions_of, in_words, results_of
from flows.cli.training import is_finished
from flows.endings import Stopped, StoppedByMemory
from flows.operations.home import Home
from flows.operations.server import server_for_training
from flows.prefect_environment import PrefectServer, prepare_environment, stop_with_this_process

if TYPE_CHECKING:
    from eigen_core.config import Config
    from flows.sweeps import Definition, Study

_FOLDER = ".sweeps"
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 0.5, 10.0
# A stop that was requested waits 15 s for uploads, and Prefect's report of it takes some.
_STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was given.

    Attributes:
        name: of the sweep; its runs are `NAME-007-s1`: number of the trial and seed.
        preset: of all trials.
        settings: of all trials, as `key=value`.
        varied: what differs between them, as `flows.sweeps.space_of` takes it.
        trials: at most so many.
        seeds: runs of each trial.
        jobs: trials that are trained at a time.
        prunes: end trials early that are behind.
    """

    name: str
    preset: str | None
    settings: Sequence[str]
    varied: Sequence[str]
    trials: int
    seeds: int
    jobs: int
    prunes: bool

    @property
    def config(self) -> "Config":
        """The configuration of its trials, but for what is varied."""
        from eigen_core.config.loading import load_config

        return load_config(self.preset, self.settings)

    @property
    def all_seeds(self) -> range:
        """The seeds of each trial."""
        first = self.config.seed
        return range(first, first + self.seeds)

    def run_of(self, number: int, seed: int) -> str:
        """Return the name of a trial's run."""
        return f"{self.name}-{number:03d}-s{seed}"

    @property
    def folder(self) -> Path:
        """Where its study and the logs of its trials are."""
        checkpoint = self.config.checkpoint
        return run_root(checkpoint.store, checkpoint.local) / _FOLDER


def run_sweep(sweep: Sweep, say: Callable[[str], None]) -> list[TrialResult]:
    """Train all trials of a sweep, those of an earlier call no more than they need, and return them.

    Args:
        sweep: what is trained.
        say: receives a line about each trial that begins or ends.

    Raises:
        InputError: what was given cannot be used.
        Stopped: it was stopped, or a run failed; `StoppedByMemory` if that was for memory.
    """
    definition = _definition(sweep)
    from flows.sweeps import Study

    with stop_signals() as signals, _held(sweep):
        study = Study(sweep.folder / f"{sweep.name}.db", definition)
        try:
            with signals.raising(), _Trials(sweep, study, signals, say) as trials:
                trials.train()
        except KeyboardInterrupt:
            raise Stopped("Stopped. The same command goes on.") from None
        return results_of(sweep, study)


def _definition(sweep: Sweep) -> "Definition":
    """Refuse what cannot be used."""
    check_run_name(sweep.name)
    config = sweep.config
    try:
        from flows.sweeps import Definition, space_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"eigen sweep needs the package {error.name}, which is not installed: `pip install 'eigen[sweep]'`."
        ) from error
    space = space_of(sweep.varied, sweep.preset, sweep.settings)
    return Definition(config, space, sweep.seeds, sweep.prunes)


@contextmanager
def _held(sweep: Sweep) -> Iterator[None]:
    """Keep another process from training the sweep."""
    from eigen_core.checkpoint.lock import RunLock

    sweep.folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(sweep.folder / f"{sweep.name}.lock", sweep.name)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Started(NamedTuple):
    """A run that is trained, its process, and what keeps that from being ended with this one."""

    run: str
    process: subprocess.Popen[bytes]
    release: Callable[[], None]


class _Trial:
    """A trial that is trained: its runs one after another, each in a process.

    Args:
        sweep: it belongs to.
        study: decides whether it is pruned.
        number: of the trial.
        values: what it varies.
    """

    def __init__(self, sweep: Sweep, study: "Study", number: int, values: Mapping[str, Any]) -> None:
        from flows.sweeps import as_settings

        self._sweep = sweep
        self._study = study
        self._number = number
        self._settings = as_settings(values)
        self._seeds = sweep.all_seeds
        self._started: _Started | None = None

    def advance(self) -> str | None:
        """Do what can be done without waiting; return how the trial ended, None while it has not."""
        try:
            self._config(self._seeds[0])
        except InputError as error:
            # These values contradict each other.
            return self._refused(str(error))
        code = None if self._started is None else self._started.process.poll()
        # After its end: then all that it has reached is stored.
        if self._study.is_behind(self._number, champions_of(self._sweep.config, self._run(self._seeds[0]))):
            self.stop()
            self._study.prune(self._number)
            return "pruned"
        if self._started is not None:
            if code is None:
                return None
            started, self._started = self._started, None
            started.release()
            if code != 0:
                return self._failed(code, started.run)
        left = next((seed for seed in self._seeds if not is_finished(self._config(seed), self._run(seed))), None)
        if left is not None:
            self._start(left)
            return None
        value = fmean(champions_of(self._sweep.config, self._run(seed))[-1] for seed in self._seeds)
        self._study.finish(self._number, value)
        return f"champion validation {value:,.1f}"

    def stop(self) -> None:
        """End its process; the run goes on from its last checkpoint."""
        if self._started is None:
            return
        started, self._started = self._started, None
        started.process.terminate()
        try:
            started.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()
        started.release()

    def _run(self, seed: int) -> str:
        return self._sweep.run_of(self._number, seed)

    def _given(self, seed: int) -> list[str]:
        others = [given for given in self._sweep.settings if given.partition("=")[0].strip() != "seed"]
        return [*others, *self._settings, f"seed={seed}"]

    def _config(self, seed: int) -> "Config":
        from eigen_core.config.loading import load_config

        return load_config(self._sweep.preset, self._given(seed))

    def _start(self, seed: int) -> None:
        run = self._run(seed)
        _wait_until_free(self._config(seed), run)
        preset = [] if self._sweep.preset is None else ["--preset", self._sweep.preset]
        options = [part for given in self._given(seed) for part in ("--set", given)]
        with self._log(run).open("wb") as log:
            # Ctrl-C reaches this process alone, which then stops the others.
            process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "train", "--run", run, *preset, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = _Started(run, process, stop_with_this_process(process.pid))

    def _log(self, run: str) -> Path:
        return self._sweep.folder / f"{run}.log"

    def _failed(self, code: int, run: str) -> str:
        from flows.runs import run_exists

        lines = self._log(run).read_text(encoding="utf-8", errors="replace").splitlines()
        sentence = next((line.removeprefix("eigen: ") for line in reversed(lines) if line.startswith("eigen: ")), "")
        if code in (EXIT_BAD_INPUT, EXIT_MEMORY) and not run_exists(self._sweep.config.checkpoint, run):
            return self._refused(sentence)
        message = f"Run {run} ended with exit code {code}. {sentence} Its output is in {self._log(run)}."
        advice = "The same command goes on."
        raise (StoppedByMemory if code == EXIT_MEMORY else Stopped)(f"{message} {advice}")

    def _refused(self, reason: str) -> str:
        self._study.refuse(self._number, reason)
        return f"refused: {reason}"


def _wait_until_free(config: "Config", run: str) -> None:
    """Wait for a process that an earlier call has left behind, and that is about to end."""
    from eigen_core.checkpoint import RunLocation
    from flows.runs import is_running

    location = RunLocation.of(config.checkpoint, run)
    end = time.monotonic() + _STOP_SECONDS
    while is_running(location):
        if time.monotonic() > end:
            raise Stopped(f"Run {run} is trained by another process. Once that has ended, the same command goes on.")
        time.sleep(_POLL_SECONDS)


class _Trials:
    """All trials, so many at a time; a context manager that leaves no process behind."""

    def __init__(self, sweep: Sweep, study: "Study", signals: StopSignals, say: Callable[[str], None]) -> None:
        self._sweep = sweep
        self._study = study
        self._signals = signals
        self._say = say
        self._trained: dict[int, _Trial] = {}

    def __enter__(self) -> "_Trials":
        return self

    def __exit__(self, *error: object) -> None:
        for trial in self._trained.values():
            trial.stop()

    def train(self) -> None:
        """Return when all have ended."""
        waiting = self._study.unfinished()
        if waiting or self._may_suggest():
            _start_server(self._signals)
        remote = is_remote(self._sweep.config.checkpoint.store)
        while True:
            while len(self._trained) < self._sweep.jobs:
                number = waiting.pop(0) if waiting else self._study.suggest() if self._may_suggest() else None
                if number is None:
                    break
                values = self._study.trials()[number].params
                self._say(f"trial {number} begins: {in_words(values)}")
                self._trained[number] = _Trial(self._sweep, self._study, number, values)
            if not self._trained:
                return
            for number, trial in list(self._trained.items()):
                ended = trial.advance()
                if ended is not None:
                    del self._trained[number]
                    self._say(f"trial {number}: {ended}")
            time.sleep(_REMOTE_POLL_SECONDS if remote else _POLL_SECONDS)

    def _may_suggest(self) -> bool:
        return len(self._study.trials()) < self._sweep.trials


def _start_server(signals: StopSignals) -> None:
    """Start one server of Prefect for all trials, unless one is configured or runs here."""
    prepare_environment()
    os.environ.update(server_for_training(Home.of(os.environ), os.environ))
    server = PrefectServer()
    server.check()
    signals.before_leaving(server.stop)
    server.start()
    server.wait_until_ready()
