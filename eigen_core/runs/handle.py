"""Opening, continuing and describing the training runs of a store (a folder or bucket of runs)."""

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from eigen_core.checkpoint.integrity import CONFIG_NAME, DamagedGenerationError, holdout_name
from eigen_core.checkpoint.locks import is_live
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents, RunLocation, list_runs, newest_of, no_such_run
from eigen_core.checkpoint.store import MissingObjectError, StoreUnavailableError
from eigen_core.checkpoint.store_location import command_for, is_remote, open_store
from eigen_core.checkpoint.uploads import UploadStatus, read_status
from eigen_core.common.errors import InputError
from eigen_core.common.records import (
    Arithmetic,
    GenerationRecord,
    HoldoutResult,
    Telemetry,
    UnfitRecordsError,
    parse_history,
    parse_telemetry,
)
from eigen_core.common.text import listed, quoted
from eigen_core.config import Config, merge
from eigen_core.config.explain import flatten
from eigen_core.config.loading import changed, differing_keys, values_of_environment
from eigen_core.config.machine_settings import MACHINE_SETTINGS, TASK_VARIABLE, machine_values, names_module
from eigen_core.config.market import absolute_data, own_path
from eigen_core.config.model import CheckpointConfig
from eigen_core.config.registry import has_prices
from eigen_core.config.stored import config_from_stored, current_values, stored_values
from eigen_core.runs import journals

logger = logging.getLogger(__name__)

RunState = Literal["running", "finished", "unfinished", "blocked"]

_CHANGEABLE_KEYS = frozenset(
    {
        "generations",
        "threads",
        "device",
        "cuda_graphs",
        "workers",
        "scheduler",
        "population.group_size",
        # The hash of the prices of the run's days shows whether they are still the same. So decisions about later days
        # are allowed, and one about a day of the run if it changes no price; not in a walk or sweep, which has no hash.
        "market.layout",
        "market.suspicious",
        "market.events",
    }
)
_CHANGEABLE_SECTIONS = ("account.", "checkpoint.", "memory.", "reporting.")
_LONGEST_TASK = 200


@dataclass(frozen=True)
class RunStatus:
    """The status of a training run.

    Attributes:
        state: running (a process holds the lock on its folder, or its lease in the store), finished (`is_complete`),
            blocked (its next generation has failed too often in scheduled resumes), or else unfinished.
        generation: number of the last complete generation; 0: none.
        config: the configuration with which the run was last started or continued.
        store, folder: URL of the store; the run's folder on this machine, which need not exist if the store is remote.
        history, telemetry: one record of results, and one of time and memory, per complete generation.
        holdout: None: not played yet.
        computed_by: processor and libraries that computed the newest generation; None: there is no generation.
        uploads: None if the store is a folder, or nothing was uploaded from this machine.
    """

    run: str
    state: RunState
    generation: int
    config: Config
    store: str
    folder: Path
    history: tuple[GenerationRecord, ...]
    telemetry: tuple[Telemetry, ...]
    holdout: HoldoutResult | None
    computed_by: Arithmetic | None
    uploads: UploadStatus | None


class Run:
    """A handle of a run, which need not exist. It reads lazily and only once: `refresh` lets it see later changes.

    `own` has nested values of `MACHINE_SETTINGS` for this machine; they override the environment variables for these.
    """

    def __init__(self, settings: CheckpointConfig, name: str, own: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.location = RunLocation.of(settings, name)
        self._settings = settings
        self._own = own or {}

    @classmethod
    def open(cls, store: str, name: str, own: Mapping[str, Any] | None = None) -> "Run":
        """Return the existing run `name` of a store (`own` and environment variables say where its copy is here).

        Raises:
            InputError: there is no such run.
        """
        given = merge(values_of_environment(os.environ), own or {}).get("checkpoint", {})
        run = cls(CheckpointConfig(**{**given, "store": store}), name, own)
        if not run.exists:
            raise no_such_run(run.location.store, name)
        return run

    @classmethod
    def of(cls, config: Config, name: str) -> "Run":
        """Return the run `name` at the place where `config` would train it; it need not exist."""
        return cls(config.checkpoint, name, machine_values(config.model_dump()))

    def refresh(self) -> "Run":
        """Forget all that was read, since this or another process may have changed the run."""
        for name in [name for name in vars(self) if isinstance(getattr(Run, name, None), cached_property)]:
            del vars(self)[name]
        return self

    @property
    def exists(self) -> bool:
        return self._begun is not None

    @cached_property
    def _begun(self) -> RunContents | None:
        return next((contents for contents in self.location.contents() if contents.exists()), None)

    @cached_property
    def _begun_values(self) -> Mapping[str, Any]:
        if self._begun is None:
            raise no_such_run(self.location.store, self.name)
        return self._begun.config()

    @cached_property
    def newest(self) -> tuple[RunContents, Manifest] | None:
        """Newest manifest (of a checkpoint), and the copy that has it: this machine's, if the store's is not newer."""
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[tuple[RunContents, Manifest]]:
        """Yield all manifests, newest first, each with the copy of the run that has it; warn of damaged ones."""
        for contents, found in newest_of(self.location.contents()):
            if isinstance(found, Manifest):
                yield contents, found
            else:
                _warn_once(f"Run '{self.name}' in {contents.store.url}: {found}. An older generation is used.")

    @property
    def generation(self) -> int:
        """Number of the newest complete generation; 0: none."""
        return 0 if self.newest is None else self.newest[1].generation

    @cached_property
    def _latest_values(self) -> Mapping[str, Any]:
        """Values of the run's latest configuration as stored; others may have changed them, so they are not trusted."""
        begun = self._begun_values
        trained = begun if self.newest is None else self.newest[1].config
        last = journals.REQUESTS.read(self.location)[-1:]
        requested = next((request.config for request in last if request.generation == self.generation), None)
        return requested or trained

    @cached_property
    def config(self) -> Config:
        """The configuration with which the run was last trained, or was last requested to continue.

        The store may have moved, or come from somebody else: so `MACHINE_SETTINGS` have this machine's values. If the
        store is remote and this machine has trained the run, the path of the data is the one that it used last.
        """
        config = self._config_of(self._latest_values)
        known = self._known
        return config if known is None else changed(config, {"market": {"data": known.data}})

    @cached_property
    def _begun_config(self) -> Config:
        return self._config_of(self._begun_values)

    def _config_of(self, values: Mapping[str, Any]) -> Config:
        """Return a stored configuration with this machine's `MACHINE_SETTINGS`; `InputError` if it is invalid."""
        # Its place is the one in which it was found.
        place = self._settings.model_dump(include={"store", "local"} if self.location.remote else {"store"})
        own = merge(merge(values_of_environment(os.environ), self._own), {"checkpoint": place})
        own.pop("task", None)
        try:
            return config_from_stored(values, own)
        except InputError as error:
            raise InputError(
                f"The configuration of run '{self.name}' in {self.location.store.url} cannot be used. {error}"
            ) from error

    @cached_property
    def _known(self) -> journals.OwnSettings | None:
        return journals.own_settings(self.location)

    def config_to_resume(self, data: str | None = None) -> Config:
        """Return the configuration with which this machine continues the run.

        `data` is the path of the prices; None: the environment variable `EIGEN_DATA`, or else the path in `config`.

        Raises:
            InputError: the prices are not found, or the run's task imports a module, and neither the handle's `own`
                settings nor the environment variables of this process name that task (`require_trusted_task`).
        """
        config = self.config
        named = [self._own.get("task"), os.environ.get(TASK_VARIABLE)]
        require_trusted_task(config.task, f"Run '{self.name}' plays", named)
        self._say_left_out()
        before = own_path(config.market.data)
        given = data or (before and os.environ.get("EIGEN_DATA"))
        unknown = self.location.remote and self._known is None
        if given:
            config = changed(config, {"market": {"data": absolute_data(given)}})
        elif before is not None and (unknown or not Path(os.path.expanduser(before)).exists()):
            why = "this machine does not know where it is" if unknown else "it is not there any more"
            raise InputError(
                f"Run '{self.name}' was trained on {quoted(Path(before).name)}, and {why}: give it with --data, or as "
                "the environment variable EIGEN_DATA."
            )
        return self.on_its_days(config)

    def config_to_train(self, config: Config) -> Config:
        """Return `config` to begin the run with, or to continue it (`require_same_settings`, `on_its_days`)."""
        if not self.exists:
            return config
        self.require_same_settings(config)
        return self.on_its_days(config)

    def on_its_days(self, config: Config) -> Config:
        """Return `config` with the first and last day of the run's prices, if their files are others than at its begin.

        Whether their prices on these days are the same, the task's data show when they are read.
        """
        if not (days := self._days) or not has_prices(config.task):
            return config
        # Imported here because it loads pandas, which a table of runs does without.
        from eigen_core.market.build import files_are_those_of

        if files_are_those_of(self._origin, config.market):
            return config
        _warn_once(
            f"Run '{self.name}' was begun with other price files, or other settings of these. Of the prices here, "
            f"only its days are used: {days['first_date']} to {days['last_date']}."
        )
        begun = self._begun_config.market
        # `require_same_settings` refuses dates that a user names.
        kept = {name: day for name, day in days.items() if getattr(config.market, name) == getattr(begun, name)}
        return changed(config, {"market": kept})

    @property
    def _origin(self) -> Mapping[str, Any]:
        """`Panel.origin` of the newest generation; empty if it has none, or is damaged."""
        if self.newest is None:
            return {}
        contents, manifest = self.newest
        try:
            described = contents.document(manifest, "champion")
        except (DamagedGenerationError, KeyError):
            return {}
        origin = described.get("origin") if isinstance(described, dict) else None
        return origin if isinstance(origin, dict) else {}

    @property
    def _days(self) -> dict[str, str]:
        """First and last day of the run's prices, by the names of their settings; empty if they are not known."""
        try:
            return {f"{name}_date": str(date.fromisoformat(self._origin[name])) for name in ("first", "last")}
        except (KeyError, TypeError, ValueError):
            return {}

    def _say_left_out(self) -> None:
        stored = flatten(machine_values(current_values(self._latest_values)))
        now, usual = (flatten(one.model_dump(mode="json")) for one in (self.config, Config()))
        # Where it was found is given, and a folder of copies serves a bucket alone.
        places = ("checkpoint.store", "" if self.location.remote else "checkpoint.local")
        left_out = [
            f"{key} ({setting.variable})"
            for key, setting in MACHINE_SETTINGS.items()
            if key not in places and now[key] == usual[key] and stored.get(key, usual[key]) != usual[key]
        ]
        if left_out:
            logger.warning(
                "Run '%s' was trained with settings that each machine chooses for itself, and here they have their "
                "defaults: %s. Set them again with --set, or as these environment variables.",
                self.name,
                ", ".join(left_out),
            )

    def require_same_settings(self, config: Config) -> None:
        """Raise `InputError` if `config` differs from the run in settings that may not change between generations."""
        begun = self._begun_config
        before, now = own_path(begun.market.data), own_path(config.market.data)
        # The data may have moved, or continue: their hash shows later whether they are those that the run began with.
        moved = {f"market.{name}" for name, day in self._days.items() if getattr(config.market, name) == day}
        gone = before is not None and not Path(os.path.expanduser(before)).exists()
        if before is not None and now is not None and (self.location.remote or gone or self.newest is not None):
            moved.add("market.data")
        differing = [key for key in differing_keys(begun, config) if not is_changeable(key) and key not in moved]
        if differing:
            raise InputError(
                f"Run '{self.name}' exists and was begun with other settings: {listed(differing, 5)} "
                f"differ{'s' * (len(differing) == 1)}. Continue it as it is with `{self.command('resume')}`, or choose "
                "another name."
            )

    def begin(self, config: Config) -> RunLocation:
        """Create the run with this configuration, or, if it exists, call `require_same_settings`."""
        if self.exists:
            self.require_same_settings(config)
        else:
            # Imported here because it loads torch, which a table of runs does without.
            from eigen_core.checkpoint.session import create_run

            journals.remember_own_settings(self.location, config.market.data)
            create_run(self.location, stored_values(config))
        return self.location

    def keep_request(self, config: Config) -> None:
        """Record `config` as the run's latest until a checkpoint contains it; this process must hold the run's lock."""
        if self.config != config:
            request = journals.Request(generation=self.generation, config=stored_values(config))
            journals.REQUESTS.append(self.location, request)
        journals.remember_own_settings(self.location, config.market.data)

    @contextmanager
    def attempt(self, outside: tuple[type[BaseException], ...]) -> Iterator[None]:
        """Count the block as a scheduled resume of the run, unless an error `outside` of the run ends it.

        Raises:
            BlockedError: the last three resumes began with the same generation as this one, and did not complete it.
        """
        journals.count_attempt(self.location, self.refresh().generation + 1)
        try:
            yield
        except outside:
            journals.ATTEMPTS.replace(self.location, journals.ATTEMPTS.read(self.location)[:-1])
            raise

    def forget_stops_and_attempts(self) -> None:
        """Let schedules resume the run again, since a user has resumed or launched it by its name."""
        for journal in (journals.ATTEMPTS, journals.STOPS):
            if journal.read(self.location):
                journal.replace(self.location, [])

    def stop(self) -> None:
        """Record that a user has stopped the run, if it exists: schedules do not resume it from now on."""
        if self.refresh().exists:
            journals.STOPS.append(self.location, journals.Stop(moment=journals.now()))

    @property
    def is_stopped(self) -> bool:
        """Whether a user has stopped the run, and no user has resumed or launched it by its name since."""
        return bool(journals.STOPS.read(self.location))

    def command(self, name: str) -> str:
        """Return the command `eigen` of this name for the run, to be pasted into a shell here."""
        return command_for(name, self.name, self._settings.store)

    def holdout_of(self, generation: int) -> HoldoutResult | None:
        name = holdout_name(generation)
        for contents in self.location.contents():
            try:
                result = HoldoutResult.model_validate(contents.read_holdout(name))
                if result.generation != generation:
                    raise ValueError(f"is of generation {result.generation}")
            except MissingObjectError:
                continue
            except ValueError as error:
                logger.warning(
                    "Run '%s': %s in %s is damaged and is not used (%s).", self.name, name, contents.store.url, error
                )
            else:
                return result
        return None

    def is_complete(self, config: Config, generation: int | None = None) -> bool:
        """Whether the run has all `config.generations`, and has played the holdout episodes if it holds out data.

        `generation` is the newest undamaged one of the run; None: the one of its newest manifest.
        """
        newest = self.generation if generation is None else generation
        return newest >= config.generations and (not config.has_holdout or self.holdout_of(newest) is not None)

    def is_running(self) -> bool:
        """Whether a process holds the lock on the run's folder here, or the run's lease in a remote store."""
        location = self.location
        if location.is_locked():
            return True
        return location.remote and is_live(location.store, self.name)

    def is_finished(self, config: Config) -> bool:
        """Whether the run `is_complete`, and its newest generation is in the store, not only on this machine."""
        if not self.is_complete(config):
            return False
        here = self.location.local.newest_manifest() if self.location.remote else None
        there = None if here is None else self.location.stored.newest_manifest()
        return here is None or (there is not None and there.generation >= here.generation)

    def status(self) -> RunStatus:
        """Return the status after the newest generation with undamaged records; weights and replay are not read.

        If the store does not answer, it is that of this machine's copy.
        """
        self._leave_silent_store()
        location, config = self.location, self.config
        manifest, history, telemetry = self._records()
        generation = history[-1].generation if history else 0
        state: RunState = "unfinished"
        if self.is_running():
            state = "running"
        elif self.is_complete(config, generation):
            state = "finished"
        elif journals.has_failed_too_often(location, generation + 1):
            state = "blocked"
        folder = location.root / self.name
        return RunStatus(
            run=self.name,
            state=state,
            generation=generation,
            config=config,
            store=location.store.url,
            folder=folder,
            history=history,
            telemetry=telemetry,
            holdout=self.holdout_of(generation),
            computed_by=None if manifest is None else manifest.computed_by,
            uploads=read_status(folder) if is_remote(self._settings.store) else None,
        )

    def _records(self) -> tuple[Manifest | None, tuple[GenerationRecord, ...], tuple[Telemetry, ...]]:
        for contents, manifest in self.newest_first():
            generation = manifest.generation
            try:
                history = parse_history(contents.document(manifest, "history"), generation)
                telemetry = parse_telemetry(contents.document(manifest, "telemetry"), generation)
            except (DamagedGenerationError, UnfitRecordsError, KeyError) as error:
                logger.warning(
                    "Run '%s': records of generation %d are damaged, those of an older generation are used (%s).",
                    *(self.name, generation, error),
                )
                continue
            return manifest, tuple(history), tuple(telemetry)
        return None, (), ()

    def _leave_silent_store(self) -> None:
        """Read only this machine's copy of the run if its store does not answer."""
        location = self.location
        if not location.remote or not location.local.exists():
            return
        try:
            location.store.stat(location.stored.object_name(CONFIG_NAME))
        except StoreUnavailableError as error:
            logger.warning("%s. What is on this machine is shown, and may be older.", str(error).rstrip("."))
            self.location = replace(location, remote=False)


def status_of(store: str, name: str) -> RunStatus:
    """Return the status of a run; if the store does not answer, that of this machine's copy."""
    return Run.open(store, name).status()


def statuses_of(store: str) -> tuple[list[RunStatus], dict[str, str]]:
    """Return the status of each run of a store that can be read, and for each other run, by name, why it cannot."""
    statuses, unreadable = [], {}
    for name in runs_in(store):
        try:
            statuses.append(status_of(store, name))
        except InputError as error:
            unreadable[name] = str(error)
    return statuses, unreadable


def runs_in(store: str) -> list[str]:
    return list_runs(open_store(store))


def unfinished_runs(store: str, own_of: Callable[[str], Mapping[str, Any]] | None = None) -> list[Run]:
    """Return the runs of a store that are neither complete nor stopped, the newest first; log unreadable ones.

    `own_of` returns the `own` settings of a run, by its name (see `Run`).
    """
    found = []
    for name in runs_in(store):
        try:
            run = Run.open(store, name, None if own_of is None else own_of(name))
            config = run.config
        except InputError as error:
            logger.warning("Run '%s' is not resumed. %s", name, error)
            continue
        if run.is_stopped:
            logger.info("Run '%s' is not resumed: a user stopped it. `eigen launch --run` continues it.", name)
        elif not run.is_complete(config):
            found.append(run)
    return sorted(found, key=lambda run: ("" if run.newest is None else run.newest[1].created, run.name), reverse=True)


def is_changeable(key: str) -> bool:
    """Whether the setting `key` (such as `learner.batch_size`) may change between the generations of a run."""
    return key in _CHANGEABLE_KEYS or key.startswith(_CHANGEABLE_SECTIONS)


def require_same_definition(subject: str, begun: Config, now: Config, options: Sequence[str]) -> None:
    """Raise `InputError` if a walk or sweep (both train several runs) would be continued with another definition.

    `subject` begins the message, for example `Walk 'years'`; `options`: the command's options that the caller has found
    to differ. Settings that may change between the generations of a run may change here too, but not `generations`, nor
    those by which prices are read: the runs would have different prices.
    """
    fixed = ("generations", "market.")
    settings = [key for key in differing_keys(begun, now) if key.startswith(fixed) or not is_changeable(key)]
    differing = [*options, *settings]
    if differing:
        raise InputError(
            f"{subject} exists with other settings: {', '.join(differing[:5])} differ{'s' * (len(differing) == 1)}. "
            "Give the same command, or choose another name."
        )


def require_trusted_task(task: str, subject: str, named: Sequence[str | None]) -> None:
    """Raise `InputError` for a task that imports a module (`gym:module:Name`), unless it is in `named`.

    `subject` begins the message, for example `Run 'long' plays`; `named` are tasks that this machine's user has named.
    """
    if not names_module(task) or task in named:
        return
    text = task if task.isprintable() and len(task) <= _LONGEST_TASK else quoted(task)
    raise InputError(
        f"{subject} {text}, which imports a module, and neither a store nor a flow run's parameters may choose "
        f"what is imported here. If you trust that module, name the task again: --set task={shlex.quote(text)}, or set "
        f"the environment variable {TASK_VARIABLE}={shlex.quote(text)}."
    )


@cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)
