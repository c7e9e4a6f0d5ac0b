"""The command `eigen sweep`: its trials are ordinary runs, each trained in a process of its own."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from eigen_core.distribution import install_command
from eigen_core.errors import InputError
from eigen_core.store import check_run_name, is_remote, run_root
from flows.cli.run_trainers import refuse_two_schedulers, whole_runs
from flows.cli.sweep_results import TrialResult, champions_of, in_words, results_of
from flows.cli.training import is_finished
from flows.cli.whole_runs import (
    POLL_SECONDS,
    REMOTE_POLL_SECONDS,
    RunningRun,
    WholeRun,
    WholeRuns,
    require_trained,
    whole_run,
)

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.sweeps import Definition, Study

_FOLDER = ".sweeps"


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was given.

    Attributes:
        name: of the sweep; its runs are `NAME-007-s1`: number of the trial and seed.
        preset: of all trials.
        settings: of all trials, as `key=value`.
        varied: what differs between them, as `eigen_core.judging.sweeps.space_of` takes it.
        trials: at most so many.
        seeds: runs of each trial.
        jobs: trials that are trained at a time.
        runs_on: address of the scheduler whose workers train the runs; None: this machine does.
        prunes: end trials early that are behind.
    """

    name: str
    preset: str | None
    settings: Sequence[str]
    varied: Sequence[str]
    trials: int
    seeds: int
    jobs: int
    runs_on: str | None
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
    from eigen_core.judging.sweeps import Study

    with whole_runs(sweep.jobs, sweep.runs_on) as runs, _held(sweep):
        study = Study(sweep.folder / f"{sweep.name}.db", definition)
        _Trials(runs, sweep, study, say).train()
        return results_of(sweep, study)


def _definition(sweep: Sweep) -> "Definition":
    """Refuse what cannot be used."""
    check_run_name(sweep.name)
    config = sweep.config
    refuse_two_schedulers(config, sweep.runs_on)
    try:
        from eigen_core.judging.sweeps import Definition, space_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"eigen sweep needs the package {error.name}, which is not installed: `{install_command('sweep')}`."
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


class _Trial:
    """A trial that is trained: its runs one after another, each in a process.

    Args:
        runs: trains them.
        sweep: it belongs to.
        study: decides whether it is pruned.
        number: of the trial.
        values: what it varies.
    """

    def __init__(self, runs: WholeRuns, sweep: Sweep, study: "Study", number: int, values: Mapping[str, Any]) -> None:
        from eigen_core.judging.sweeps import as_settings

        self._runs = runs
        self._sweep = sweep
        self._study = study
        self._number = number
        self._settings = as_settings(values)
        self._seeds = sweep.all_seeds
        self._started: tuple[WholeRun, RunningRun] | None = None

    def advance(self) -> str | None:
        """Do what can be done without waiting; return how the trial ended, None while it has not."""
        from eigen_core.training.runs import Run

        try:
            self._whole_run(self._seeds[0])
        except InputError as error:
            # These values contradict each other.
            return self._refused(str(error))
        end = None if self._started is None else self._started[1].poll()
        # After its end: then all that it has reached is stored.
        if self._study.is_behind(self._number, champions_of(self._sweep.config, self._run(self._seeds[0]))):
            self._stop()
            self._study.prune(self._number)
            return "pruned"
        if self._started is not None:
            if end is None:
                return None
            (run, _), self._started = self._started, None
            if end.refused and not Run(run.config.checkpoint, run.name).exists:
                return self._refused(end.sentence)
            require_trained(run, end, self._log(run.name))
        runs = (self._whole_run(seed) for seed in self._seeds)
        left = next((run for run in runs if not is_finished(run.config, run.name)), None)
        if left is not None:
            self._started = left, self._runs.start(left, self._log(left.name))
            return None
        value = fmean(champions_of(self._sweep.config, self._run(seed))[-1] for seed in self._seeds)
        self._study.finish(self._number, value)
        return f"champion validation {value:,.1f}"

    def _stop(self) -> None:
        """End its process; the run stays as it is."""
        if self._started is not None:
            self._started[1].stop()
            self._started = None

    def _run(self, seed: int) -> str:
        return self._sweep.run_of(self._number, seed)

    def _whole_run(self, seed: int) -> WholeRun:
        settings = [*self._sweep.settings, *self._settings, f"seed={seed}"]
        return whole_run(self._run(seed), self._sweep.preset, settings)

    def _log(self, run: str) -> Path:
        return self._sweep.folder / f"{run}.log"

    def _refused(self, reason: str) -> str:
        self._study.refuse(self._number, reason)
        return f"refused: {reason}"


class _Trials:
    """All trials, so many at a time."""

    def __init__(self, runs: WholeRuns, sweep: Sweep, study: "Study", say: Callable[[str], None]) -> None:
        self._runs = runs
        self._sweep = sweep
        self._study = study
        self._say = say
        self._trained: dict[int, _Trial] = {}

    def train(self) -> None:
        """Return when all have ended."""
        waiting = self._study.unfinished()
        remote = is_remote(self._sweep.config.checkpoint.store)
        while True:
            while len(self._trained) < self._sweep.jobs:
                number = waiting.pop(0) if waiting else self._study.suggest() if self._may_suggest() else None
                if number is None:
                    break
                values = self._study.trials()[number].params
                self._say(f"trial {number} begins: {in_words(values)}")
                self._trained[number] = _Trial(self._runs, self._sweep, self._study, number, values)
            if not self._trained:
                return
            for number, trial in list(self._trained.items()):
                ended = trial.advance()
                if ended is not None:
                    del self._trained[number]
                    self._say(f"trial {number}: {ended}")
            time.sleep(REMOTE_POLL_SECONDS if remote else POLL_SECONDS)

    def _may_suggest(self) -> bool:
        return len(self._study.trials()) < self._sweep.trials
