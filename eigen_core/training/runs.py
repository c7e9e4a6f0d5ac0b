"""Opening, continuing and describing the runs of a store."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from eigen_core.arithmetic import Arithmetic
from eigen_core.bundled import absolute_data, own_path
from eigen_core.checkpoint import (
    DamagedGenerationError,
    Manifest,
    RunContents,
    RunDirectory,
    RunLocation,
    UploadStatus,
    create_run,
    is_live,
    list_runs,
    newest_of,
    no_such_run,
    parse_checksummed,
    read_status,
)
from eigen_core.checkpoint.names import CONFIG_NAME, holdout_name
from eigen_core.config import Config, merge
from eigen_core.config.explain import flatten
from eigen_core.config.loading import config_from_values, differing_keys, values_of_environment
from eigen_core.config.machine import MACHINE_SETTINGS, TASK_VARIABLE, machine_values, names_module
from eigen_core.config.plain import shown
from eigen_core.config.running import CheckpointConfig
from eigen_core.config.stored import config_from_stored, current_values, stored_values
from eigen_core.errors import InputError
from eigen_core.records import (
    GenerationRecord,
    HoldoutResult,
    Telemetry,
    UnfitRecordsError,
    history_in,
    telemetry_in,
)
from eigen_core.store import MissingObjectError, StoreUnavailableError, is_remote, open_store, run_root
from eigen_core.training.goodput import Goodput, goodput, starts_of
from eigen_core.training.journals import (
    OwnSettings,
    has_failed_too_often,
    is_blocked,
    own_settings,
    remember_own_settings,
    remember_request,
    requested_config,
)

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
        "replay.compression",
        # The panel's fingerprint shows whether prices are read as they were.
        "market.layout",
        "market.suspicious",
    }
)
_CHANGEABLE_SECTIONS = ("account.", "checkpoint.", "memory.", "reporting.")
_LOCAL = CheckpointConfig().local
_LONGEST_TASK = 200


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        run: its name.
        state: running (a process holds its lock or lease), finished (`is_complete`), unfinished, or blocked: the memory
            guard, or whatever ended scheduled resumes, has ended its next generation too often.
        generation: last completed generation; 0: none.
        config: the configuration with which it was last started or continued.
        store: absolute path or URL of what holds the runs.
        folder: the run's folder on this machine, for its plots; it need not exist if the store is elsewhere.
        history, telemetry: one record per completed generation.
        holdout: the champion in the holdout episodes, once the run has all its generations.
        computed_by: what computed its newest generation; None: not known.
        goodput: what its time was used for; None: not known.
        uploads: how far its uploads are; None if the store is this machine, or nothing was uploaded from here.
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
    goodput: Goodput | None
    uploads: UploadStatus | None


def is_complete(config: Config, generation: int, holdout: HoldoutResult | None) -> bool:
    """Whether a run has all its generations, and the holdout episodes, if there are any, were played after the newest.

    Args:
        config: the run's.
        generation: its newest complete generation.
        holdout: the holdout's result after that generation; None if it was not played.
    """
    return generation >= config.generations and (holdout is not None or not config.holds_out)


def require_store(settings: CheckpointConfig) -> None:
    """Ask a store elsewhere whether it can be used, within 15 seconds. A folder shows it when the run is made.

    Raises:
        InputError: it cannot: credentials, bucket or permission are missing.
        StoreUnavailableError: it does not answer.
    """
    if is_remote(settings.store):
        open_store(settings.store).check()


def run_exists(settings: CheckpointConfig, name: str) -> bool:
    """Whether a run of this name was begun, in the store or on this machine."""
    return RunLocation.of(settings, name).exists()


def is_in_store(settings: CheckpointConfig, name: str) -> bool:
    """Whether the store has the newest generation of a run, rather than this machine alone."""
    location = RunLocation.of(settings, name)
    here = location.local.newest_manifest() if location.remote else None
    there = None if here is None else location.stored.newest_manifest()
    return here is None or (there is not None and there.generation >= here.generation)


def runs_in(store: str) -> list[str]:
    """Return the names of the runs in a store, sorted."""
    return list_runs(open_store(store))


def statuses_of(store: str) -> tuple[list[RunStatus], dict[str, str]]:
    """Return how far the runs of a store are, by name; and of those that cannot be read, in a sentence, why.

    Raises:
        InputError: the store cannot be used.
        StoreUnavailableError: it does not answer.
    """
    statuses, unreadable = [], {}
    for name in runs_in(store):
        try:
            statuses.append(status_of(store, name))
        except InputError as error:
            unreadable[name] = str(error)
    return statuses, unreadable


def open_or_create(config: Config, name: str) -> RunLocation:
    """Return the location of the run `name` in the store of `config`; the run is made if it is missing.

    Raises:
        InputError: the store or the name cannot be used, or the run was begun with other settings, so that continuing
            it would not be the same run.
    """
    location = RunLocation.of(config.checkpoint, name)
    if location.exists():
        require_same_run(location, config)
    else:
        remember_own_settings(config, name)
        create_run(location, stored_values(config))
    return location


def is_changeable(key: str) -> bool:
    """Whether a setting may change between the generations of a run."""
    return key in _CHANGEABLE_KEYS or key.startswith(_CHANGEABLE_SECTIONS)


def require_same_run(location: RunLocation, config: Config) -> None:
    """Raise `InputError` if `config` differs from the run's in more than may change between generations."""
    begun = _config_of(location, _begun(location).config())
    before, now = own_path(begun.market.data), own_path(config.market.data)
    moved = set()
    if before is not None and now is not None and (location.remote or not Path(os.path.expanduser(before)).exists()):
        # They may have moved: the panel's fingerprint shows whether they are those that the run began with.
        moved = {"market.data"}
    differing = [key for key in differing_keys(begun, config) if not is_changeable(key) and key not in moved]
    if differing:
        keys = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise InputError(
            f"Run '{location.name}' exists and was begun with other settings: {keys} "
            f"differ{'s' * (len(differing) == 1)}. Continue it as it is with "
            f"`eigen resume {location.name}`, or choose another name."
        )


def latest_config(location: RunLocation, own: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration with which the run was last trained, or requested, here: it is opened where it is.

    Args:
        location: the run.
        own: nested values that this machine gives for its own settings; None: its environment alone gives some.

    Raises:
        InputError: there is no such run, or its configuration cannot be read.
    """
    return _config_of(location, _latest_values(location), own)


def _latest_values(location: RunLocation) -> Mapping[str, Any]:
    """Return what a store holds of a run's latest configuration: nothing of it can be trusted."""
    begun = _begun(location).config()
    newest = newest_generation(location)
    generation, trained = (0, begun) if newest is None else (newest[1].generation, newest[1].config)
    return requested_config(location, generation) or trained


def configured_location(
    store: str, name: str, local: str = _LOCAL, own: Mapping[str, Any] | None = None
) -> tuple[RunLocation, Config]:
    """Return the location of a run that exists and its latest configuration, with `store` as its store.

    A store may have been moved since the run was trained, or come from somebody else. Settings that are this machine's
    own are those that it gives now; data and local folder, if the store is elsewhere, those with which it has trained
    the run.

    Args:
        store: where the run is kept.
        name: the run.
        local: `checkpoint.local` as it is given now.
        own: nested values that this machine gives for its own settings, beside its environment.

    Raises:
        InputError: there is no such run, or its configuration cannot be read.
    """
    given = _given(store, local)
    return _configured(RunLocation.of(given, name), given, own)[:2]


def config_to_resume(
    store: str, name: str, data: str | None, local: str = _LOCAL, own: Mapping[str, Any] | None = None
) -> Config:
    """Return the configuration with which this machine continues a run.

    Args:
        store: where the run is kept.
        name: the run.
        data: where its prices are on this machine, as it is given now; None: in `EIGEN_DATA`, else where they were when
            the run was trained here.
        local: as in `configured_location`.
        own: as in `configured_location`; the task too, if this machine names one.

    Raises:
        InputError: there is no such run, its configuration cannot be read, its prices are not known here, or it plays
            a task of a module that this machine does not name.
    """
    settings = _given(store, local)
    location, config, known = _configured(RunLocation.of(settings, name), settings, own)
    _require_named_task(config, name, own)
    _say_left_out(location, config)
    before = own_path(config.market.data)
    given = data or (before and os.environ.get("EIGEN_DATA"))
    if given:
        return _changed(config, market={"data": absolute_data(given)})
    unknown = location.remote and known is None
    if before is not None and (unknown or not Path(os.path.expanduser(before)).exists()):
        why = "this machine does not know where it is" if unknown else "it is not there any more"
        raise InputError(
            f"Run '{name}' was trained on {shown(Path(before).name)}, and {why}: give it with --data, or EIGEN_DATA."
        )
    return config


def _require_named_task(config: Config, name: str, own: Mapping[str, Any] | None) -> None:
    """Refuse a stored task that imports a module, unless this machine names the same task."""
    require_named(config.task, f"Run '{name}' plays", [dict(own or {}).get("task"), os.environ.get(TASK_VARIABLE)])


def require_named(task: str, who: str, named: Sequence[str | None]) -> None:
    """Refuse a task that imports a module, unless this machine itself names the same task.

    Args:
        task: that a store, or a flow run's parameters, name.
        who: begins the sentence, for example `Run 'long' plays`.
        named: the tasks that this machine names.

    Raises:
        InputError: it is not among them.
    """
    if not names_module(task) or task in named:
        return
    text = task if task.isprintable() and len(task) <= _LONGEST_TASK else shown(task)
    raise InputError(
        f"{who} {text}, which imports a module, and neither a store nor a flow run's parameters choose what is "
        f"imported here. If you trust that module, name the task again: --set task={text}, or {TASK_VARIABLE}={text} "
        "in the environment."
    )


def _say_left_out(location: RunLocation, config: Config) -> None:
    """Say which settings of this machine a run was trained with and is not continued with."""
    stored = flatten(machine_values(current_values(_latest_values(location))))
    now, usual = (flatten(one.model_dump(mode="json")) for one in (config, Config()))
    places = ("checkpoint.store", "checkpoint.local")
    left_out = [
        f"{key} ({setting.variable})"
        for key, setting in MACHINE_SETTINGS.items()
        if key not in places and now[key] == usual[key] and stored.get(key, usual[key]) != usual[key]
    ]
    if left_out:
        logger.warning(
            "Run '%s' was trained with settings that a store does not give, since they are a machine's own: %s. Give "
            "them again with --set, or in the environment.",
            location.name,
            ", ".join(left_out),
        )


def keep_request(config: Config, name: str) -> None:
    """Let `config` be the latest configuration of a run, which this process holds, before a checkpoint has it."""
    location, latest = configured_location(
        config.checkpoint.store, name, config.checkpoint.local, machine_values(config.model_dump())
    )
    if latest != config:
        newest = newest_generation(location)
        remember_request(location, 0 if newest is None else newest[1].generation, stored_values(config))


def _given(store: str, local: str) -> CheckpointConfig:
    """Return where this machine keeps what it keeps, by what is given now and by its environment."""
    of_environment = values_of_environment(os.environ).get("checkpoint", {}) if local == _LOCAL else {}
    return CheckpointConfig(**{"store": store, "local": local, **of_environment})


def _configured(
    location: RunLocation, given: CheckpointConfig, own: Mapping[str, Any] | None = None
) -> tuple[RunLocation, Config, OwnSettings | None]:
    """Return a run's location, its latest configuration, and what this machine remembers of it, which is in both.

    `location` is where the run is by the settings that are given now.
    """
    store, local = given.store, given.local
    values, known = _latest_values(location), own_settings(location, local)
    named = _stored_local(values)
    if known is None and named is not None and (known := own_settings(location, named)) is not None:
        # The store names this folder, and this machine has remembered its settings in it.
        location, local = replace(location, root=run_root(store, named)), named
        values = _latest_values(location)
    config = _config_of(location, values, own)
    config = _changed(config, checkpoint={"store": store} | ({"local": local} if is_remote(store) else {}))
    return location, config if known is None else _changed(config, market={"data": known.data}), known


def _stored_local(values: Mapping[str, Any]) -> str | None:
    """Return the folder that a stored configuration names for this machine; None if it names none that can be used."""
    section = values.get("checkpoint")
    named = section.get("local") if isinstance(section, Mapping) else None
    return named if isinstance(named, str) and named.isprintable() else None


def _changed(config: Config, **sections: Mapping[str, Any]) -> Config:
    return config_from_values(merge(config.model_dump(), sections))


def holdout_of(location: RunLocation, generation: int) -> HoldoutResult | None:
    """Return the holdout's result after `generation`; None if it was not played then."""
    name = holdout_name(generation)
    for contents in location.contents():
        try:
            result = HoldoutResult.model_validate(parse_checksummed(contents.attachments.read(name)))
            if result.generation != generation:
                raise ValueError(f"is of generation {result.generation}")
        except MissingObjectError:
            continue
        except ValueError as error:
            logger.warning("Run '%s': %s in %s is skipped (%s).", location.name, name, contents.store.url, error)
        else:
            return result
    return None


def status_of(store: str, name: str) -> RunStatus:
    """Return how far a run is, from its newest generation whose records are whole. Weights and replay are not read.

    If the store does not answer, that is logged, and what is on this machine is returned.

    Raises:
        InputError: there is no such run, or its configuration cannot be read.
        StoreUnavailableError: the store does not answer, and there is nothing of the run on this machine.
    """
    given = _given(store, _LOCAL)
    location, config, _ = _configured(_reachable(RunLocation.of(given, name)), given)
    manifest, history, telemetry = _records_of(location)
    generation = history[-1].generation if history else 0
    holdout = holdout_of(location, generation)
    state: RunState = "unfinished"
    if is_running(location):
        state = "running"
    elif is_complete(config, generation, holdout):
        state = "finished"
    elif is_blocked(location, generation + 1) or has_failed_too_often(location, generation + 1):
        state = "blocked"
    folder = location.root / name
    return RunStatus(
        run=name,
        state=state,
        generation=generation,
        config=config,
        store=location.store.url,
        folder=folder,
        history=history,
        telemetry=telemetry,
        holdout=holdout,
        computed_by=None if manifest is None else manifest.computed_by,
        goodput=goodput(starts_of(location), None if manifest is None else datetime.fromisoformat(manifest.created)),
        uploads=read_status(folder) if is_remote(store) else None,
    )


def _reachable(location: RunLocation) -> RunLocation:
    """Return the location, without its store if that does not answer and this machine knows the run."""
    if not location.remote or not location.local.exists():
        return location
    try:
        location.store.stat(location.stored.object_name(CONFIG_NAME))
    except StoreUnavailableError as error:
        logger.warning("%s. What is on this machine is shown.", str(error).rstrip("."))
        return replace(location, remote=False)
    return location


def is_running(location: RunLocation) -> bool:
    """Whether a process holds the run's lock on this machine, or its lease."""
    if location.local.exists() and RunDirectory.open(location.root, location.name).is_locked():
        return True
    return location.remote and is_live(location.store, location.name)


def _begun(location: RunLocation) -> RunContents:
    """Return the contents with the configuration with which the run began."""
    found = next((contents for contents in location.contents() if contents.exists()), None)
    if found is None:
        raise no_such_run(location.store, location.name)
    return found


def newest_generation(location: RunLocation) -> tuple[RunContents, Manifest] | None:
    """Return the newest manifest, and where it is; of two that are as new, that on this machine."""
    return next(newest_first(location), None)


def newest_first(location: RunLocation) -> Iterator[tuple[RunContents, Manifest]]:
    """Yield all manifests and where they are, the newest first; none is read long before it is its turn.

    One that is damaged is logged.
    """
    for contents, found in newest_of(location.contents()):
        if isinstance(found, Manifest):
            yield contents, found
        else:
            _warn_once(f"Run '{location.name}' in {contents.store.url}: {found}. What is older is used.")


@cache
def _warn_once(sentence: str) -> None:
    """Log what a process would find again and again."""
    logger.warning("%s", sentence)


def _config_of(location: RunLocation, values: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Config:
    """Return a stored configuration as it counts here: this machine's own settings are not taken from it."""
    own = merge(values_of_environment(os.environ), {} if own is None else own)
    # It names itself the place where it was found.
    own = merge({"checkpoint": {"store": location.store.url}}, own)
    own.pop("task", None)
    try:
        return config_from_stored(values, own)
    except InputError as error:
        raise InputError(
            f"The configuration of run '{location.name}' in {location.store.url} cannot be used. {error}"
        ) from error


def _records_of(location: RunLocation) -> tuple[Manifest | None, tuple[GenerationRecord, ...], tuple[Telemetry, ...]]:
    """Return the newest manifest whose generation's records are whole, and these."""
    for contents, manifest in newest_first(location):
        generation = manifest.generation
        try:
            history = history_in(contents.document(manifest, "history"), generation)
            telemetry = telemetry_in(contents.document(manifest, "telemetry"), generation)
        except (DamagedGenerationError, UnfitRecordsError, KeyError) as error:
            logger.warning("Run '%s': generation %d is skipped (%s).", location.name, generation, error)
            continue
        return manifest, tuple(history), tuple(telemetry)
    return None, (), ()
