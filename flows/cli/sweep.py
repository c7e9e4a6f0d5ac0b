"""The command eigen sweep: trials over settings and seeds, and their table."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eigen_core.checkpoint.location import is_remote, run_root
from eigen_core.checkpoint.store import check_run_name
from eigen_core.common.errors import InputError
from eigen_core.common.text import install_command
from flows.cli.common import PlainTable, print_line
from flows.cli.training import is_finished
from flows.cli.whole_runs import (
    POLL_SECONDS,
    REMOTE_POLL_SECONDS,
    RunningRun,
    WholeRun,
    WholeRuns,
    refuse_two_schedulers,
    require_trained,
    whole_run,
    whole_runs,
)

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.sweeps import Definition, Study


@dataclass(frozen=True)
class SweepRun:
    """A run of a trial.

    Attributes:
        run: its name.
        seed: of the run.
        champions: validation fitness of the champion after each generation.
    """

    run: str
    seed: int
    champions: Sequence[float]


@dataclass(frozen=True)
class TrialResult:
    """A trial.

    Attributes:
        number: of the trial.
        state: finished, pruned, refused (its settings cannot be trained) or unfinished.
        settings: what it varies.
        runs: one for each seed that was begun.
        reason: why it was refused.
    """

    number: int
    state: str
    settings: Mapping[str, Any]
    runs: Sequence[SweepRun]
    reason: str | None

    @property
    def value(self) -> float | None:
        """Mean of its champions' validation fitness; None unless it is finished."""
        return fmean(run.champions[-1] for run in self.runs) if self.state == "finished" else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of that over its seeds; None for a single one."""
        finished = self.state == "finished" and len(self.runs) > 1
        return stdev(run.champions[-1] for run in self.runs) if finished else None


def champions_of(config: "Config", run: str) -> list[float]:
    """Return the champion's validation after each generation of a run that is stored."""
    from eigen_core.training.runs import Run, status_of

    if not Run(config.checkpoint, run).exists:
        return []
    return [record.champion_validation for record in status_of(config.checkpoint.store, run).history]


def results_of(sweep: "Sweep", study: "Study") -> list[TrialResult]:
    """Return all trials of a sweep, the best first, those without a value after them."""
    results = []
    for trial in study.trials():
        runs = [(seed, sweep.run_of(trial.number, seed)) for seed in sweep.all_seeds]
        known = [SweepRun(run, seed, champions_of(sweep.config, run)) for seed, run in runs]
        begun = [run for run in known if run.champions]
        results.append(TrialResult(trial.number, study.state_of(trial), trial.params, begun, study.reason_of(trial)))
    return sorted(results, key=lambda one: (one.value is None, -(one.value or 0.0), one.number))


def print_results(console: Console, results: Sequence[TrialResult]) -> None:
    """Print the table of a sweep."""
    table = PlainTable(
        "trial",
        "champion validation",
        "generations",
        "settings",
        left=("champion validation", "settings"),
        least_important=("generations",),
    )
    for one in results:
        value = one.state if one.value is None else f"{one.value:,.1f}"
        spread = "" if one.spread is None else f" ± {one.spread:,.1f}"
        generations = " + ".join(str(len(run.champions)) for run in one.runs)
        table.add_row(str(one.number), value + spread, generations, in_words(one.settings))
    table.print(console)
    finished = sum(one.value is not None for one in results)
    print_line(
        console,
        "Champion validation: mean of a trial's seeds ± their standard deviation. The best of "
        f"{finished} finished trials is chosen by these values: expect less of it on other days.",
    )
    for one in results:
        if one.reason is not None:
            print_line(console, f"Trial {one.number} was refused: {one.reason}")


def results_document(sweep: "Sweep", results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return what `eigen sweep --json` prints. Its keys are a contract."""
    return {
        "sweep": sweep.name,
        "trials": [
            {
                "number": one.number,
                "state": one.state,
                "value": one.value,
                "spread": one.spread,
                "settings": dict(one.settings),
                "reason": one.reason,
                "runs": [
                    {
                        "run": run.run,
                        "seed": run.seed,
                        "generation": len(run.champions),
                        "champion_validation": run.champions[-1],
                    }
                    for run in one.runs
                ],
            }
            for one in results
        ],
    }


def in_words(values: Mapping[str, Any]) -> str:
    """Return settings in words."""
    return (
        ", ".join(
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
        )
        or "nothing is varied"
    )


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
    from eigen_core.checkpoint.lock import FileLock

    sweep.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(sweep.folder / f"{sweep.name}.lock")
    lock.require(f"Sweep '{sweep.name}'")
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
