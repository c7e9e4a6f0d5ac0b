"""The command `eigen sweep`: trains trials, each a set of settings with a run for each seed, and prints their table."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.checkpoint.store import check_run_name
from eigen_core.checkpoint.store_location import is_remote, own_folder
from eigen_core.common.errors import FOLLOWS, End, InputError, Next, end_of
from eigen_core.common.text import install_command
from flows.cli.common import LARGEST, Json, RunOptions, RunsOn, examples, number, option, run_options
from flows.cli.console import PlainTable, attributes, output_console, print_line, print_result
from flows.cli.run_jobs import IsStopped, Train, job_executor, refuse_two_schedulers, require_trained, run_job

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.sweeps import Study


@examples(
    """
  eigen sweep rates --vary learner.weight_decay=0.1:10:log --vary learner.batch_size=32,64 --trials 30
  eigen sweep seeds --seeds 5 --preset quickstart
  eigen sweep steps --vary learner.critic_learning_rate=1e-4:1e-2:log --seeds 3 --jobs 2 --set threads=1

A trial is a set of settings with a run for each seed, such as `NAME-007-s1`, which `eigen show`, `resume` and `export`
accept. Its value is the mean validation fitness of its runs' champions.
"""
)
@run_options("preset", "generations", "seed", "assignments", "data", "store", "device")
def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep; its runs begin with it.", metavar="NAME")],
    *,
    vary: Annotated[
        list[str] | None, option("KEY=VALUES", "A setting to vary: LOW:HIGH, LOW:HIGH:log or ONE,OTHER.")
    ] = None,
    trials: Annotated[int, number("Number of trials.", most=LARGEST)] = 20,
    seeds: Annotated[int, number("Runs of each trial, with different seeds.", most=1_000)] = 1,
    jobs: Annotated[int, number("Trials trained at a time.", most=1_000)] = 1,
    runs_on: RunsOn = None,
    prune: Annotated[bool, typer.Option(help="Stop trials early whose champions fall behind.")] = True,
    options: RunOptions,
    as_json: Json = False,
) -> None:
    """Train runs with varied settings and seeds; run the same command again to continue a sweep that was stopped."""
    settings = options.with_store().settings()
    given = Sweep(check_run_name(name), options.preset, settings, trials, seeds)
    refuse_two_schedulers(given.config, runs_on)
    try:
        from eigen_core.judging.sweeps import Definition, Study, space_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"eigen sweep needs the package {error.name}, which is not installed: `{install_command('sweep')}`."
        ) from error
    definition = Definition(given.config, space_of(vary or (), given.preset, settings), seeds, prune)
    console = output_console()
    with job_executor(jobs, runs_on) as in_threads, _locked(given):
        study = Study(given.folder / f"{name}.db", definition)
        training = _Trials(given, study, (lambda _: None) if as_json else partial(print_line, console))
        in_threads([training.train] * jobs)
        results = _results_of(given, study)
    print_result(as_json, results_document, print_results, given, results)
    if all(one.value is None for one in results):
        ends = Counter(one.state for one in results)
        said = ", ".join(f"{number} {state}" for state, number in ends.items())
        raise InputError(
            f"No trial of sweep '{name}' finished ({said}): begin another one with values that can be trained."
        )


# Reading a run in a bucket takes several requests: only one of this many polls reads it.
_REMOTE_POLLS = 20


@dataclass(frozen=True)
class Sweep:
    name: str
    preset: str | None
    settings: Sequence[str]
    trials: int
    seeds: int

    @cached_property
    def config(self) -> "Config":
        """Configuration of all trials, except for the settings of `--vary`, which each trial replaces."""
        from eigen_core.config.loading import load_config

        return load_config(self.preset, self.settings)

    @property
    def all_seeds(self) -> range:
        first = self.config.seed
        return range(first, first + self.seeds)

    def run_of(self, number: int, seed: int) -> str:
        """Return the name of the run of trial `number` with `seed`, such as `NAME-007-s1`."""
        return f"{self.name}-{number:03d}-s{seed}"

    @property
    def folder(self) -> Path:
        """Folder of the study (Optuna's SQLite file) and of the runs' logs."""
        checkpoint = self.config.checkpoint
        return own_folder(checkpoint.store, checkpoint.local, ".sweeps")

    def champions_of(self, run: str) -> list[float]:
        from eigen_core.runs.handle import Run, status_of

        checkpoint = self.config.checkpoint
        if not Run(checkpoint, run).exists:
            return []
        return [record.champion_validation for record in status_of(checkpoint.store, run).history]


@dataclass(frozen=True)
class TrialResult:
    number: int
    state: str
    """finished, pruned (stopped early), unfinished, or the `End` that is recorded: no run of the trial is trained."""
    settings: Mapping[str, Any]
    champions: Mapping[int, Sequence[float]]
    """By the seed of each run that has a checkpoint: validation fitness of the champion after each generation."""
    reason: str | None

    @property
    def value(self) -> float | None:
        """Mean validation fitness of the runs' last champions; None unless the trial is finished."""
        return fmean(run[-1] for run in self.champions.values()) if self.state == "finished" else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the last champions' validation fitness over the seeds; None: one seed or unfinished."""
        finished = self.state == "finished" and len(self.champions) > 1
        return stdev(run[-1] for run in self.champions.values()) if finished else None


@contextmanager
def _locked(sweep: Sweep) -> Iterator[None]:
    from eigen_core.checkpoint.locks import FileLock
    from eigen_core.checkpoint.store import ANOTHER_FOLDER
    from eigen_core.common.files import explained

    with explained("keep the sweep in", sweep.folder, ANOTHER_FOLDER):
        sweep.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(sweep.folder / f"{sweep.name}.lock")
    lock.require(f"Sweep '{sweep.name}'")
    try:
        yield
    finally:
        lock.release()


class _Trials:
    """Trains the trials of a sweep in threads that call `train`; a lock lets one thread at a time use the study."""

    def __init__(self, sweep: Sweep, study: "Study", say: Callable[[str], None]) -> None:
        self._sweep = sweep
        self._study = study
        self._say = say
        self._lock = threading.Lock()
        self._waiting = study.unfinished()

    def train(self, train: Train, is_stopped: IsStopped) -> None:
        """Train one trial after another, until none is left to train or `is_stopped()` is true."""
        while not is_stopped() and (trial := self._next()) is not None:
            self._say(f"trial {trial.number} begins: {_in_words(trial.params)}")
            self._say(f"trial {trial.number}: {self._train(trial, train, is_stopped)}")

    def _next(self) -> Any:  # noqa: ANN401 - Optuna's trial
        with self._lock:
            if self._waiting:
                number: int | None = self._waiting.pop(0)
            else:
                number = self._study.suggest() if len(self._study.trials()) < self._sweep.trials else None
            return None if number is None else self._study.trials()[number]

    def _train(self, trial: Any, train: Train, is_stopped: IsStopped) -> str:  # noqa: ANN401 - Optuna's
        """Train the runs of a trial one after another, until the study prunes it; return how it ended, as a clause."""
        from eigen_core.judging.sweeps import as_settings
        from eigen_core.runs.handle import Run

        sweep, number = self._sweep, trial.number
        settings = [*sweep.settings, *as_settings(trial.params)]
        try:
            runs = [
                run_job(sweep.run_of(number, seed), sweep.preset, [*settings, f"seed={seed}"])
                for seed in sweep.all_seeds
            ]
        except InputError as error:
            # The values of the varied settings contradict each other.
            return self._recorded(number, end_of(error), str(error))

        def is_behind() -> bool:
            reached = sweep.champions_of(runs[0].name)
            with self._lock:
                return self._study.is_behind(number, reached)

        polls, every = count(1), _REMOTE_POLLS if is_remote(sweep.config.checkpoint.store) else 1

        def is_over() -> bool:
            return is_stopped() or (next(polls) % every == 0 and is_behind())

        for run in runs:
            log = sweep.folder / f"{run.name}.log"
            end = None if Run.of(run.config, run.name).is_finished(run.config) else train(run, log, is_over)
            # The store has all that the run has reached only after its process has ended.
            if is_behind():
                with self._lock:
                    self._study.prune(number)
                return "pruned"
            if end is not None:
                ended = end.end
                if ended is not None and Run(run.config.checkpoint, run.name).exists:
                    ended = ended.of_begun_run
                if ended is not None and FOLLOWS[ended]["sweep"] is Next.RECORD:
                    return self._recorded(number, ended, end.sentence)
                require_trained(run, end, log, "sweep")
        value = fmean(sweep.champions_of(run.name)[-1] for run in runs)
        with self._lock:
            self._study.finish(number, value)
        return f"champion validation {value:,.1f}"

    def _recorded(self, number: int, end: End, reason: str) -> str:
        with self._lock:
            self._study.record(number, end, reason)
        return f"{end}: {reason}"


def _results_of(sweep: Sweep, study: "Study") -> list[TrialResult]:
    results = []
    for trial in study.trials():
        known = {seed: sweep.champions_of(sweep.run_of(trial.number, seed)) for seed in sweep.all_seeds}
        begun = {seed: champions for seed, champions in known.items() if champions}
        results.append(TrialResult(trial.number, study.state_of(trial), trial.params, begun, study.reason_of(trial)))
    return sorted(results, key=lambda one: (one.value is None, -(one.value or 0.0), one.number))


def print_results(console: Console, sweep: Sweep, results: Sequence[TrialResult]) -> None:  # noqa: ARG001
    headers = ("trial", "champion validation", "generations", "settings")
    table = PlainTable(*headers, left=("champion validation", "settings"), least_important=("generations",))
    for one in results:
        value = one.state if one.value is None else f"{one.value:,.1f}"
        spread = "" if one.spread is None else f" ± {one.spread:,.1f}"
        generations = " + ".join(str(len(champions)) for champions in one.champions.values())
        table.add_row(str(one.number), value + spread, generations, _in_words(one.settings))
    table.print(console)
    finished = sum(one.value is not None for one in results)
    if finished:
        print_line(
            console,
            "Champion validation: mean of a trial's seeds ± their standard deviation. The best of "
            f"{finished} finished trials is chosen by these values: expect less of it on other days.",
        )
    for one in results:
        if one.reason is not None:
            print_line(console, f"Trial {one.number}, {one.state}: {one.reason}")


def results_document(sweep: Sweep, results: Sequence[TrialResult]) -> dict[str, Any]:
    trials = []
    for one in results:
        runs = [
            {
                "run": sweep.run_of(one.number, seed),
                "seed": seed,
                "generation": len(champions),
                "champion_validation": champions[-1],
            }
            for seed, champions in one.champions.items()
        ]
        trials.append({**attributes(one, "number", "state", "value", "spread", "settings", "reason"), "runs": runs})
    return {"sweep": sweep.name, "trials": trials}


def _in_words(values: Mapping[str, Any]) -> str:
    words = (f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())
    return ", ".join(words) or "nothing is varied"
