"""The command `eigen sweep`: trains trials, each a set of settings with a run for each seed, and prints their table."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console

from eigen_core.checkpoint.store import check_run_name
from eigen_core.checkpoint.store_location import is_remote
from eigen_core.common.errors import FOLLOWS, End, InputError, Next, end_of, needs_extra
from eigen_core.common.text import percent, quoted, ratio
from flows.cli.common import LARGEST, Json, RunOptions, RunsOn, examples, flag, number, option, run_options
from flows.cli.console import PlainTable, attributes, output_console, print_line, print_result
from flows.cli.judging import choice_document, print_choice
from flows.cli.run_jobs import IsStopped, RunJob, Train, job_executor, refuse_two_schedulers, require_trained, run_job

if TYPE_CHECKING:
    from eigen_core.judging.cross_validation import CrossValidation, Kind, Objective
    from eigen_core.judging.sweeps import Study, Sweep, TrialResult


@examples(
    """
  eigen sweep rates --vary learner.weight_decay=0.1:10:log --vary learner.batch_size=32,64 --trials 30
  eigen sweep seeds --seeds 5 --preset quickstart
  eigen sweep steps --vary learner.critic_learning_rate=1e-4:1e-2:log --seeds 3 --jobs 2 --set threads=1
  eigen sweep coins --preset crypto --data FOLDER --cv cpcv --trials 10 --refit
  eigen sweep years --cv walk --folds 4 --vary learner.gradient_steps=24,48,96

A trial is a set of settings with a run for each seed, such as `NAME-007-s1`, which `eigen show`, `resume` and `export`
accept. Its value is the mean validation fitness of its runs' champions. With `--cv` the bars before the holdout are
divided into groups; a trial has a run for each split, trained on other groups than its champion then trades. Without
`--vary` a sweep varies what its preset names (`crypto`), or nothing but seeds. With several `--objective` no trial is
stopped early; the best one is that of the Pareto front with the best first value.
"""
)
@run_options("preset", "generations", "seed", "assignments", "data", "store", "device")
def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep; its runs begin with it.", metavar="NAME")],
    *,
    vary: Annotated[
        list[str] | None,
        option("KEY=VALUES", "A setting to vary: LOW:HIGH, LOW:HIGH:log or ONE,OTHER.", "those of the preset"),
    ] = None,
    trials: Annotated[int, number("Number of trials.", most=LARGEST)] = 20,
    seeds: Annotated[int, number("Runs of each trial, with different seeds.", most=1_000)] = 1,
    jobs: Annotated[int, number("Trials trained at a time.", most=1_000)] = 1,
    runs_on: RunsOn = None,
    prune: Annotated[bool, typer.Option(help="Stop trials early whose champions fall behind.")] = True,
    refit: Annotated[
        bool, flag("--refit", "At the end train the settings of the best trial on all bars but the holdout: NAME-best.")
    ] = False,
    cv: Annotated[
        Literal["cpcv", "kfold", "walk"] | None,
        option("KIND", "Cross-validation: cpcv (combinatorial, purged), kfold or walk (forward).", "none"),
    ] = None,
    groups: Annotated[int | None, number("Groups of bars of cpcv.", 100, "5")] = None,
    test_groups: Annotated[int | None, number("Groups that test each split of cpcv.", 50, "2")] = None,
    folds: Annotated[int | None, number("Test folds of kfold or walk, which trains before its first.", 99, "5")] = None,
    objective: Annotated[
        list[str] | None,
        option("VALUE", "A value of trials: sharpe, growth or excess in the tests, or score.", "sharpe with --cv"),
    ] = None,
    options: RunOptions,
    as_json: Json = False,
) -> None:
    """Train runs with varied settings and seeds; run the same command again to continue a sweep that was stopped."""
    from eigen_core.config.loading import load_config

    settings = options.with_store().settings()
    config = load_config(options.preset, settings)
    check_run_name(name)
    refuse_two_schedulers(config, runs_on)
    with needs_extra("sweep", "eigen sweep"):
        from eigen_core.judging.cross_validation import splits_of_sweep
        from eigen_core.judging.sweeps import Definition, Study, Sweep, as_settings, results_of, space_of, varied_of
        from eigen_core.judging.walk_forward import with_purge
    cross_validation = _cross_validation(cv, groups, test_groups, folds)
    objectives = tuple(objective or ["score" if cross_validation is None else "sharpe"])
    if len(set(objectives) & _OBJECTIVES.keys()) < len(objectives):
        raise InputError(
            f"--objective {quoted(' '.join(objectives))}: give one of {', '.join(_OBJECTIVES)}, each once."
        )
    if cross_validation is None and objectives != ("score",):
        raise InputError(
            f"--objective {' '.join(objectives)} is of the tests of a cross-validation: add --cv, or leave it out."
        )
    if cross_validation is not None:
        config = with_purge(config, config.market.purge if "purge" in config.market.model_fields_set else None)
    if refit and not config.has_holdout:
        raise InputError("--refit trains a run for a holdout, and market.holdout is 0: set it, or leave --refit out.")
    varied = vary or varied_of(config, settings)
    space = space_of(varied, options.preset, settings)
    definition = Definition(config, space, seeds, prune, cross_validation, cast("tuple[Objective, ...]", objectives))
    given = Sweep(name, definition, () if cross_validation is None else splits_of_sweep(config, cross_validation))
    console = output_console()
    with job_executor(jobs, runs_on) as in_threads, _locked(given):
        study = Study(given.folder / f"{name}.db", definition)
        say: Callable[[str], None] = (lambda _: None) if as_json else partial(print_line, console)
        if varied and not vary:
            say(f"varied, as preset {config.preset} says: {' '.join(varied)}")
        if prune and len(objectives) > 1:
            say("No trial is stopped early: Optuna prunes by one objective only.")
        training = _Trials(given, study, options.preset, settings, trials, say)
        in_threads([training.train] * jobs)
        results = results_of(given, study.trials(), study.front())
    if refit and results[0].value is not None:
        chosen = [*settings, *as_settings(results[0].settings), f"market.purge={config.market.purge}"]
        best = run_job(f"{name}-best", options.preset, chosen)
        with job_executor(1, runs_on) as in_threads:
            in_threads([partial(_train_best, best, given.folder / f"{best.name}.log")])
        front = (
            f", of the Pareto front the best by {_OBJECTIVES[definition.objectives[0]]}" if len(objectives) > 1 else ""
        )
        say(f"Run {best.name} has the settings of trial {results[0].number}{front}, and a holdout that none has seen.")
    print_result(as_json, results_document, print_results, given, results)
    if all(one.value is None for one in results):
        ends = Counter(one.state for one in results)
        said = ", ".join(f"{number} {state}" for state, number in ends.items())
        raise InputError(
            f"No trial of sweep '{name}' finished ({said}): begin another one with values that can be trained."
        )


_OBJECTIVES: "Mapping[Objective, str]" = {
    "score": "champion validation",
    "sharpe": "Sharpe ratio",
    "growth": "growth a year",
    "excess": "growth a year beyond equal weight",
}
_FOLDS, _TEST_GROUPS = 5, 2
# Reading a run in a bucket takes several requests: only one of this many polls reads it.
_REMOTE_POLLS = 20


def _cross_validation(
    cv: "Kind | None", groups: int | None, test_groups: int | None, folds: int | None
) -> "CrossValidation | None":
    from eigen_core.judging.cross_validation import CrossValidation

    shape = {"--groups": (groups, "cpcv"), "--test-groups": (test_groups, "cpcv"), "--folds": (folds, "kfold or walk")}
    for name, (given, kinds) in shape.items():
        if given is not None and (cv is None or cv not in kinds):
            raise InputError(f"{name} is an option of --cv {kinds}: leave it out, or give that --cv.")
    if cv is None:
        return None
    if cv == "cpcv":
        return CrossValidation.of(cv, groups or _FOLDS, test_groups or _TEST_GROUPS)
    # The first group of a walk is only trained on.
    return CrossValidation.of(cv, (folds or _FOLDS) + (cv == "walk"), 1)


@contextmanager
def _locked(sweep: "Sweep") -> Iterator[None]:
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


def _train_best(run: RunJob, log: Path, train: Train, is_stopped: IsStopped) -> None:
    from eigen_core.runs.handle import Run

    if not Run.of(run.config, run.name).is_finished(run.config):
        require_trained(run, train(run, log, is_stopped), log, "sweep")


class _Trials:
    """Trains the trials of a sweep in threads that call `train`; a lock lets one thread at a time use the study."""

    def __init__(
        self,
        sweep: "Sweep",
        study: "Study",
        preset: str | None,
        settings: Sequence[str],
        trials: int,
        say: Callable[[str], None],
    ) -> None:
        self._sweep, self._study, self._preset, self._settings = sweep, study, preset, settings
        self._trials, self._say = trials, say
        # One thread at a time uses the study, and one plays tests, which use all processors.
        self._lock, self._playing = threading.Lock(), threading.Lock()
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
                number = self._study.suggest() if len(self._study.trials()) < self._trials else None
            return None if number is None else self._study.trials()[number]

    def _train(self, trial: Any, train: Train, is_stopped: IsStopped) -> str:  # noqa: ANN401 - Optuna's
        """Train the runs of a trial one after another, until the study prunes it; return how it ended, as a clause."""
        from eigen_core.judging.sweeps import as_settings
        from eigen_core.runs.handle import Run

        sweep, number = self._sweep, trial.number
        settings = [*self._settings, *as_settings(trial.params)]
        of_trial = list(sweep.runs_of(number))
        try:
            runs = [run_job(one.name, self._preset, [*settings, *one.settings]) for one in of_trial]
        except InputError as error:
            # The values of the varied settings contradict each other.
            return self._recorded(number, end_of(error), str(error))

        def is_behind() -> bool:
            reached = sweep.champions_of(runs[0].name)
            with self._lock:
                return self._study.is_behind(number, reached)

        polls, every = count(1), _REMOTE_POLLS if is_remote(sweep.definition.config.checkpoint.store) else 1

        def is_over() -> bool:
            return is_stopped() or (next(polls) % every == 0 and is_behind())

        for run, one in zip(runs, of_trial, strict=True):
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
            with self._playing:
                sweep.play(one)
        values, _ = sweep.result_of(number)
        with self._lock:
            self._study.finish(number, values)
        objectives = sweep.definition.objectives
        return ", ".join(
            f"{_OBJECTIVES[one]} {_shown(one, value)}" for one, value in zip(objectives, values, strict=True)
        )

    def _recorded(self, number: int, end: End, reason: str) -> str:
        with self._lock:
            self._study.record(number, end, reason)
        return f"{end}: {reason}"


def print_results(console: Console, sweep: "Sweep", results: Sequence["TrialResult"]) -> None:
    from eigen_core.judging.choice import Choice

    objectives = sweep.definition.objectives
    names = [_OBJECTIVES[objective] for objective in objectives]
    several = ("front",) if len(names) > 1 else ()
    headers = ("trial", *names, *several, "generations", "settings")
    table = PlainTable(*headers, left=(*names, *several, "settings"), least_important=("generations",))
    for one in results:
        values = [_shown(*each) + _spread(each[0], one) for each in zip(objectives, one.values, strict=False)]
        values = values or [one.state, *("" for _ in names[1:])]
        of_front = ["yes" if one.front else ""] if several else []
        of_runs = Counter(len(champions) for champions in one.champions.values())
        generations = " + ".join(f"{runs} x {number}" if runs > 1 else f"{number}" for number, runs in of_runs.items())
        table.add_row(str(one.number), *values, *of_front, generations, _in_words(one.settings))
    table.print(console)
    finished = sum(one.value is not None for one in results)
    if finished:
        for objective, name in zip(objectives, names, strict=True):
            of = "seeds ± their standard deviation" if objective == "score" else "paths, and their range"
            print_line(console, f"{name.capitalize()}: mean of a trial's {of}.")
        values_in_words = f"the {names[0]} of those of the Pareto front" if several else "these values"
        print_line(
            console,
            f"The best of {finished} finished trials is chosen by {values_in_words}: expect less of it on other days.",
        )
    if (choice := Choice.among(results, sweep.definition.config.seed)) is not None:
        print_choice(console, choice, None)
    for one in results:
        if one.reason is not None:
            print_line(console, f"Trial {one.number}, {one.state}: {one.reason}")


def results_document(sweep: "Sweep", results: Sequence["TrialResult"]) -> dict[str, Any]:
    from eigen_core.judging.choice import Choice

    (objective, *_), trials = sweep.definition.objectives, []
    for one in results:
        runs = [
            {
                "run": run.name,
                "seed": run.seed,
                **({} if run.split is None else {"test_groups": list(run.split.tests)}),
                "generation": len(champions),
                "champion_validation": champions[-1],
            }
            for run in sweep.runs_of(one.number)
            if (champions := one.champions.get(run.name))
        ]
        paths = {} if one.paths is None or objective == "score" else {"paths": one.paths.values(objective)}
        known = attributes(one, "number", "state", "value", "values", "front", "spread", "settings", "reason")
        trials.append({**known, **paths, "runs": runs})
    document: dict[str, Any] = {"sweep": sweep.name, "objectives": list(sweep.definition.objectives), "trials": trials}
    if (choice := Choice.among(results, sweep.definition.config.seed)) is not None:
        document["choice"] = choice_document(choice, None)
    return document


def _shown(objective: "Objective", value: float) -> str:
    if objective == "score":
        return f"{value:,.1f}"
    return ratio(value) if objective == "sharpe" else percent(value, 1)


def _spread(objective: "Objective", one: "TrialResult") -> str:
    if objective == "score":
        return "" if one.spread is None else f" ± {one.spread:,.1f}"
    values = [] if one.paths is None else one.paths.values(objective)
    return f" ({_shown(objective, min(values))} to {_shown(objective, max(values))})" if len(values) > 1 else ""


def _in_words(values: Mapping[str, Any]) -> str:
    words = (f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())
    return ", ".join(words) or "nothing is varied"
