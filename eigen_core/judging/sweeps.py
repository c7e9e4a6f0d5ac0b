"""Sweeps over settings and seeds, as a study of Optuna that suggests trials and prunes (stops) those that fall behind.

A trial is one set of settings, trained with each seed, and for each split of a cross-validation, as an ordinary run of
the store. The study is a SQLite file next to the runs. The value of a trial is the mean validation fitness of its runs'
champions, or the mean of its paths through the test groups of the cross-validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import optuna
import pandas as pd
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from eigen_core.checkpoint.store import check_run_name
from eigen_core.common.errors import End, InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import quoted, text_or_json
from eigen_core.config import Config, preset_space
from eigen_core.config.explain import flatten, settings
from eigen_core.config.loading import load_config, parse_assignments
from eigen_core.config.model import CheckpointConfig
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.judging.cross_validation import CrossValidation, Objective, Paths, Split, kept_tests, sweep_folder
from eigen_core.runs.handle import Run, is_changeable, require_same_definition, status_of

_DEFINITION = "definition"
_REASON, _END = "reason", "end"
# Largest number of draws to find settings that were not tried before.
_ATTEMPTS = 100

Space = Mapping[str, Any]
"""Optuna's distribution of each setting that is varied."""


@dataclass(frozen=True)
class Definition:
    """Definition of a sweep; only the number of its trials may change later.

    Attributes:
        config: of all trials, except for the varied settings.
        space: the varied settings.
        seeds: number of runs per trial and split; their seeds are consecutive, from `config.seed` on.
        prunes: stop trials early that fall behind the median of earlier ones.
        cross_validation: None: each trial is trained once with each seed, on the training bars.
        objectives: the values of a trial; only `score` without cross-validation. With several, none is pruned, and the
            best trial is the one of the Pareto front with the greatest first value.
    """

    config: Config
    space: Space
    seeds: int
    prunes: bool
    cross_validation: CrossValidation | None = None
    objectives: tuple[Objective, ...] = ("score",)

    @property
    def combinations(self) -> int | None:
        """Number of different trials that are possible; None: no limit, since a range of real numbers is varied."""
        if any(isinstance(one, FloatDistribution) for one in self.space.values()):
            return None
        return prod(len(_values_of(one)) for one in self.space.values())

    def document(self) -> dict[str, Any]:
        space = {key: repr(one) for key, one in sorted(self.space.items())}
        folds = None if self.cross_validation is None else asdict(self.cross_validation)
        return {
            "config": stored_values(self.config),
            "vary": space,
            "seeds": self.seeds,
            "prune": self.prunes,
            "cv": folds,
            "objective": self.objectives[0] if len(self.objectives) == 1 else list(self.objectives),
        }


def space_of(varied: Sequence[str], preset: str | None, given: Sequence[str]) -> Space:
    """Return the space of the settings `varied`, each `KEY=LOW:HIGH`, `KEY=LOW:HIGH:log` or `KEY=ONE,OTHER`.

    `preset` and `given` (`KEY=VALUE`) are settings of all trials. Raises `InputError` if a varied one cannot be varied.
    """
    fixed = flatten(parse_assignments(given))
    space: dict[str, Any] = {}
    for text in varied:
        key, _, values = (part.strip() for part in text.partition("="))
        # Refuses unknown settings.
        parse_assignments([text])
        if key in space or key in fixed:
            raise InputError(f"{key} is given to --vary, and once more to --vary or as a setting: give it once.")
        if key == "seed":
            raise InputError("--vary seed: give --seeds N, so that each trial is trained with the same seeds.")
        if key in ("preset", "generations") or is_changeable(key) or settings()[key].kind in ("integers", "strings"):
            raise InputError(f"--vary {key}: this setting cannot be varied; give it with --set.")
        space[key] = _distribution(key, values, preset, given)
    return space


def varied_of(config: Config, given: Sequence[str]) -> list[str]:
    """Return the settings that the preset of `config` varies, as `space_of` takes them, where a sweep names none.

    Left out are those that are `given` (`KEY=VALUE`), and those that the algorithm of `config` does not have.
    """
    fixed, known = flatten(parse_assignments(given)), flatten(config.model_dump())
    varied = {text.partition("=")[0]: text for text in preset_space(config.preset)}
    return [text for key, text in varied.items() if key in known and key not in fixed]


def _distribution(key: str, text: str, preset: str | None, given: Sequence[str]) -> Any:  # noqa: ANN401 - Optuna's
    def value(part: str) -> Any:  # noqa: ANN401 - of any setting
        config = load_config(preset, [*given, f"{key}={part}"])
        return flatten(config.model_dump(mode="json"))[key]

    kind = settings()[key].kind
    if kind not in ("integer", "number") or ":" not in text:
        return CategoricalDistribution(tuple(dict.fromkeys(value(part) for part in text.split(","))))
    low, high, *scale = text.split(":")
    ends = value(low), value(high)
    logarithmic = scale == ["log"]
    if None in ends or (scale and not logarithmic) or ends[0] >= ends[1] or (logarithmic and ends[0] <= 0):
        raise InputError(
            f"--vary {key}: {quoted(text)} is no range: write LOW:HIGH with LOW below HIGH, or LOW:HIGH:log with LOW "
            "above 0."
        )
    return (IntDistribution if kind == "integer" else FloatDistribution)(*ends, log=logarithmic)


def _values_of(distribution: Any) -> Sequence[Any]:  # noqa: ANN401 - Optuna's
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1)
    choices: Sequence[Any] = distribution.choices
    return choices


def as_settings(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={text_or_json(value)}" for key, value in values.items()]


class TrialRun(NamedTuple):
    """A run of a trial: its name and seed, and its split of a cross-validation."""

    name: str
    seed: int
    split: Split | None

    @property
    def settings(self) -> list[str]:
        """Settings `key=value` of this run alone, beside those of its trial."""
        return [*(() if self.split is None else self.split.settings), f"seed={self.seed}"]


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep's trials.

    `splits`: those of the cross-validation for the prices of `definition.config`; empty without one.
    """

    name: str
    definition: Definition
    splits: Sequence[Split] = ()

    @property
    def folder(self) -> Path:
        return sweep_folder(self.definition.config.checkpoint)

    @property
    def seeds(self) -> range:
        first = self.definition.config.seed
        return range(first, first + self.definition.seeds)

    def runs_of(self, number: int) -> Iterator[TrialRun]:
        """Yield the runs of a trial, such as `NAME-007-s1`, or of its third split `NAME-007-split-02-s1`."""
        for seed in self.seeds:
            for split in self.splits or (None,):
                of_split = "" if split is None else f"-split-{split.number:02d}"
                yield TrialRun(f"{self.name}-{number:03d}{of_split}-s{seed}", seed, split)

    def champions_of(self, run: str) -> list[float]:
        """Return the validation fitness of a run's champion after each generation so far."""
        checkpoint = self.definition.config.checkpoint
        if not Run(checkpoint, run).exists:
            return []
        return [record.champion_validation for record in status_of(checkpoint.store, run).history]

    def play(self, run: TrialRun) -> None:
        """Let the champion of a finished run play its test groups, unless that is known."""
        if run.split is not None:
            self._tests_of(run, run.split)

    def _tests_of(self, run: TrialRun, split: Split) -> pd.DataFrame:
        opened = Run(self.definition.config.checkpoint, run.name)
        return kept_tests(self.folder / f"{run.name}.parquet", opened, split)

    def paths_of(self, number: int) -> Paths:
        """Return the paths of a trial whose runs are finished through the test groups of the cross-validation."""
        folds, config = self.definition.cross_validation, self.definition.config
        assert folds is not None
        tables = [self._tests_of(run, run.split) for run in self.runs_of(number) if run.split is not None]
        size = len(self.splits)
        return Paths.of([tables[first : first + size] for first in range(0, len(tables), size)], folds, config)

    def result_of(self, number: int) -> tuple[tuple[float, ...], Paths | None]:
        """Return the values of a trial whose runs are finished, and its paths with cross-validation."""
        paths = None if self.definition.cross_validation is None else self.paths_of(number)

        def value(objective: Objective) -> float:
            if paths is None or objective == "score":
                return fmean(self.champions_of(run.name)[-1] for run in self.runs_of(number))
            return fmean(paths.values(objective))

        return tuple(map(value, self.definition.objectives)), paths


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Attributes:
        state: finished, pruned (stopped early), unfinished, or the `End` that is recorded: no run of it is trained.
        champions: validation fitness of the champion after each generation, by the name of each run that has begun.
        values: of a finished trial, by the sweep's objectives; else empty.
        paths: of a finished trial of a cross-validation.
        front: whether it is of the Pareto front: no finished trial has a greater value and no smaller one.
    """

    number: int
    state: str
    settings: Mapping[str, Any]
    champions: Mapping[str, Sequence[float]]
    reason: str | None
    values: tuple[float, ...]
    paths: Paths | None
    front: bool

    @property
    def value(self) -> float | None:
        """The first of its values; None: not finished."""
        return self.values[0] if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the last champions' validation fitness over the runs; None: one run or unfinished."""
        finished = self.state == "finished" and len(self.champions) > 1
        return stdev(run[-1] for run in self.champions.values()) if finished else None


def results_of(sweep: Sweep, trials: Sequence[Any], front: Sequence[Any] = ()) -> list[TrialResult]:
    """Return the results of Optuna's trials, the best first and those without values last.

    `front`: those of the Pareto front. The first result is one of them: of equal first values the second one decides.
    """
    of_front = {trial.number for trial in front}
    results = []
    for trial in trials:
        known = {run.name: sweep.champions_of(run.name) for run in sweep.runs_of(trial.number)}
        state = state_of(trial)
        values, paths = sweep.result_of(trial.number) if state == "finished" else ((), None)
        results.append(
            TrialResult(
                number=trial.number,
                state=state,
                settings=trial.params,
                champions={run: champions for run, champions in known.items() if champions},
                reason=trial.user_attrs.get(_REASON),
                values=values,
                paths=paths,
                front=trial.number in of_front,
            )
        )
    return sorted(results, key=lambda one: (not one.values, [-value for value in one.values], one.number))


class Study:
    """The trials of a sweep, numbered from 0, in a SQLite file. One process at a time may use it.

    Raises:
        InputError: the file is that of a sweep with another definition.
    """

    def __init__(self, path: Path, definition: Definition) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Optuna's defaults: no trial is pruned before five have finished.
        pruner = optuna.pruners.MedianPruner() if definition.prunes else optuna.pruners.NopPruner()
        self._directions = ["maximize"] * len(definition.objectives)
        self._storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        self._study = optuna.create_study(
            storage=self._storage, study_name=path.stem, directions=self._directions, pruner=pruner, load_if_exists=True
        )
        self._definition = definition
        stored, now = self._study.user_attrs.get(_DEFINITION), definition.document()
        if stored is None:
            self._study.set_user_attr(_DEFINITION, now)
            return
        # Before there was cross-validation, studies had neither key.
        stored = {"cv": None, "objective": "score"} | stored
        options = [f"--{key}" for key in ("vary", "seeds", "prune", "cv", "objective") if stored[key] != now[key]]
        require_same_definition(
            f"Sweep '{path.stem}'", config_from_stored(stored["config"]), definition.config, options
        )

    def trials(self) -> list[Any]:
        return list(self._study.trials)

    def front(self) -> list[Any]:
        """Return the trials of the Pareto front; of one objective, those with the greatest value."""
        return list(self._study.best_trials)

    def unfinished(self) -> list[int]:
        """Return the numbers of trials that are not finished or pruned, and whose end is not recorded."""
        return [trial.number for trial in self._study.trials if trial.state == TrialState.RUNNING]

    def suggest(self) -> int | None:
        """Add a trial and return its number; None if all combinations were tried.

        Its settings depend on `config.seed`, the trial's number and the results of earlier trials. They differ from
        those of earlier trials, unless a range of real numbers is varied and many draws find nothing new.
        """
        trials = self._study.trials
        number, space = len(trials), self._definition.space
        combinations = self._definition.combinations
        if combinations is not None and number >= combinations:
            return None
        tried = [trial.params for trial in trials]
        for attempt in range(_ATTEMPTS):
            values = self._drawn(trials, number, attempt)
            if values not in tried:
                break
        else:
            if combinations is not None:
                every = product(*map(_values_of, space.values()))
                values = next(
                    one for one in (dict(zip(space, each, strict=True)) for each in every) if one not in tried
                )
        # In one transaction: a trial exists with its settings or not at all.
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=values, distributions=dict(space)))
        return number

    def _drawn(self, trials: Sequence[Any], number: int, attempt: int) -> dict[str, Any]:
        generator = keyed_generator(self._definition.config.seed, number, attempt, "sweep")
        sampler = optuna.samplers.TPESampler(seed=int(generator.integers(2**32)))
        beside = optuna.create_study(directions=self._directions, sampler=sampler)
        beside.add_trials(trials)
        drawn: dict[str, Any] = beside.ask(dict(self._definition.space)).params
        return drawn

    def is_behind(self, number: int, reached: Sequence[float]) -> bool:
        """Report to Optuna the result `reached` after each generation so far; return whether to prune the trial."""
        if len(self._directions) > 1:
            # Optuna prunes by one objective only.
            return False
        trial, known = self._trial(number), len(self._study.trials[number].intermediate_values)
        if known and trial.should_prune():
            return True
        for generation, value in enumerate(reached[known:], start=known + 1):
            trial.report(value, generation)
            if trial.should_prune():
                return True
        return False

    def finish(self, number: int, values: Sequence[float]) -> None:
        self._study.tell(number, values)

    def prune(self, number: int) -> None:
        self._study.tell(number, state=TrialState.PRUNED)

    def record(self, number: int, end: End, reason: str) -> None:
        """Record how a trial ended early: it is not trained again."""
        trial = self._trial(number)
        trial.set_user_attr(_END, end)
        trial.set_user_attr(_REASON, reason)
        self._study.tell(number, state=TrialState.FAIL)

    def _trial(self, number: int) -> Any:  # noqa: ANN401 - Optuna's
        study = self._storage.get_study_id_from_name(self._study.study_name)
        return optuna.Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(study, number))


def state_of(trial: Any) -> str:  # noqa: ANN401 - Optuna's
    """Return the state of Optuna's trial, as in `TrialResult`."""
    # Before sweeps recorded ends, all those were refusals.
    ended = trial.user_attrs.get(_END, End.REFUSED)
    names = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: str(ended)}
    return names.get(trial.state, "unfinished")


def load_sweep(store: str, name: str) -> tuple[Sweep, list[TrialResult]]:
    """Return a sweep of a store, and the results of its trials; the varied values of its definition are text.

    Raises:
        InputError: there is no such sweep here, or its study cannot be read.
        StoreUnavailableError: the store does not answer.
    """
    checkpoint = CheckpointConfig(store=store)
    path = sweep_folder(checkpoint) / f"{check_run_name(name)}.db"
    if not path.is_file():
        raise InputError(f"There is no sweep '{name}' in {path.parent}: begin one with `eigen sweep {name}`.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.load_study(study_name=name, storage=f"sqlite:///{path}")
        stored = {"cv": None, "objective": "score"} | study.user_attrs[_DEFINITION]
        folds = None if stored["cv"] is None else CrossValidation.of(**stored["cv"])
        config = config_from_stored(stored["config"], {"checkpoint": {"store": store}})
        given = stored["objective"]
        objectives = (given,) if isinstance(given, str) else tuple(given)
        definition = Definition(config, stored["vary"], stored["seeds"], stored["prune"], folds, objectives)
    except (KeyError, TypeError, ValueError, RuntimeError, SQLAlchemyError) as error:
        raise InputError(f"{path} holds no study of sweep '{name}': restore a copy of it.") from error
    splits = [] if folds is None else [Split(number, tests, ()) for number, tests in enumerate(folds.tests)]
    sweep = Sweep(name, definition, splits)
    return sweep, results_of(sweep, study.trials, study.best_trials)
