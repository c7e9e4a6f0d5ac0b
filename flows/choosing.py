"""Which run a flow trains: the one that was named, the newest unfinished one of the store, or a new one."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import Completed

from eigen_core.checkpoint import LeaseHeldError, Manifest, RunLocation, RunLockedError
from eigen_core.config import Config, merge
from eigen_core.config.explain import flatten
from eigen_core.config.loading import config_from_values, values_of_environment
from eigen_core.config.machine import MACHINE_SETTINGS, TASK_VARIABLE, machine_values
from eigen_core.config.running import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError, store_from_environment
from flows.journals import count_attempt, forget_attempts, withdraw_attempt
from flows.names import NOTHING_NAME, SUSPENDED_NAME, default_run_name
from flows.operations.home import Home
from flows.own_flow_run import name_flow_run
from flows.resuming import own_deployment, suspension_of
from flows.runs import (
    config_to_resume,
    configured_location,
    holdout_of,
    is_complete,
    newest_generation,
    require_named,
    require_store,
    runs_in,
)

logger = logging.getLogger(__name__)

STOP_REQUESTS = (TerminationSignal, Pause)
"""What ends a training at a user's request: SIGTERM, or a suspension in Prefect's pages, noticed between two phases."""


@dataclass(frozen=True)
class ChosenRun:
    """A run to train.

    Attributes:
        name: the run.
        config: the configuration with which it is trained.
        newest: the manifest of its newest generation; None: there is none.
        unnamed: it was not named but found, to be resumed.
    """

    name: str
    config: Config
    newest: Manifest | None
    unnamed: bool = False

    @property
    def generation(self) -> int:
        """The generation that comes next; one more than the last if only the holdout episodes are left."""
        return 1 if self.newest is None else self.newest.generation + 1

    @property
    def location(self) -> RunLocation:
        """Where it is kept."""
        return RunLocation.of(self.config.checkpoint, self.name)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Count the block as an attempt to resume the run, if it was not named.

        Raises:
            BlockedError: enough attempts have begun with this generation.
        """
        if not self.unnamed:
            yield
            return
        count_attempt(self.location, self.generation)
        try:
            yield
        except (*STOP_REQUESTS, RunLockedError, LeaseHeldError, StoreUnavailableError):
            # A stop, another process that trains the run, or an unavailable store says nothing about the run.
            withdraw_attempt(self.location)
            raise


def choose_run(config: Config, run: str | None, *, resume: bool) -> ChosenRun | State[None]:
    """Return the run to train, or the flow's end state if there is none.

    Args:
        config: of a new run; of one that is resumed, only what is this machine's own counts.
        run: its name; None: a new one, or with `resume` the newest unfinished one of the store.
        resume: the run must exist.

    Raises:
        InputError: the store or the run cannot be used.
        StoreUnavailableError: the store does not answer.
    """
    require_store(config.checkpoint)
    if resume and run is None:
        return _run_to_resume(config)
    if resume and run is not None:
        config = _resumed_config(config, run)
    name = run or default_run_name(config)
    location = RunLocation.of(config.checkpoint, name)
    if not location.exists():
        return ChosenRun(name, config, None)
    forget_attempts(location)
    newest = newest_generation(location)
    return ChosenRun(name, config, None if newest is None else newest[1])


def _run_to_resume(config: Config) -> ChosenRun | State[None]:
    found = newest_unfinished(config.checkpoint.store, config.checkpoint.local)
    if found is None:
        name_flow_run("nothing to resume")
        return Completed(name=NOTHING_NAME, message=f"Every run in {config.checkpoint.store} is complete.")
    suspended = suspension_of(found.name)
    if suspended is not None:
        name_flow_run(f"{found.name} is suspended")
        return Completed(name=SUSPENDED_NAME, message=suspended)
    return replace(found, config=_resumed_config(config, found.name))


def _resumed_config(given: Config, run: str) -> Config:
    own = merge(machine_values(given.model_dump()), _launched(run))
    return config_to_resume(given.checkpoint.store, run, given.market.data, given.checkpoint.local, own)


def newest_unfinished(store: str, local: str = CheckpointConfig().local) -> ChosenRun | None:
    """Return the run of a store that was trained last among those that are not complete; None if there is none.

    Its configuration is the one it had last, with this machine's locations for it (`configured_location`). Runs whose
    configuration cannot be read are logged and passed over.

    Raises:
        InputError: the store cannot be used.
        StoreUnavailableError: it does not answer.
    """
    candidates = []
    for name in runs_in(store):
        try:
            location, config = configured_location(store, name, local)
        except InputError as error:
            logger.warning("Run '%s' is passed over. %s", name, error)
            continue
        found = newest_generation(location)
        newest = None if found is None else found[1]
        generation, written = (0, "") if newest is None else (newest.generation, newest.created)
        if not is_complete(config, generation, holdout_of(location, generation)):
            candidates.append((written, name, ChosenRun(name, config, newest, unnamed=True)))
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def with_own_settings(config: Config, run: str | None) -> Config:
    """Return the configuration of a flow run with this machine's own settings.

    The parameters of a flow run that a worker was given are foreign: anyone who reaches the server gives them. Its own
    settings are those of the worker's environment, and those with which `eigen launch` named the run on this machine.

    Args:
        config: as the flow was given it.
        run: the run's name; None: it is not known yet.

    Raises:
        InputError: a parameter gives a setting of this machine, or a task of a module that it does not name; or the
            environment's variables are at odds with each other.
    """
    if own_deployment() is not None:
        launched = {} if run is None else _launched(run)
        _require_parameters_of_a_run(config)
        require_named(config.task, "This flow run plays", [launched.get("task"), os.environ.get(TASK_VARIABLE)])
        own = merge(values_of_environment(os.environ), {key: value for key, value in launched.items() if key != "task"})
        workers = {} if own.get("scheduler") is None else {"workers": 0}
        config = config_from_values(merge(config.model_dump(), {**own, **workers}))
    return _with_store_of_environment(config)


def _require_parameters_of_a_run(config: Config) -> None:
    """Refuse parameters that give a setting of this machine."""
    given, usual = (flatten(machine_values(one.model_dump(mode="json"))) for one in (config, Config()))
    foreign = [key for key, value in given.items() if key != "task" and value != usual[key]]
    if foreign:
        raise InputError(
            f"The parameters of this flow run give {' and '.join(foreign)}. These settings are the worker's own, and "
            "no parameter chooses them: leave them out, and set "
            f"{' and '.join(MACHINE_SETTINGS[key].variable for key in foreign)} in the worker's environment, or use "
            "`eigen launch` there."
        )


def _launched(run: str) -> dict[str, Any]:
    """Return what `eigen launch` was given of this machine's own settings for a run that this flow run trains."""
    return Home.of(os.environ).launched(run) if own_deployment() is not None else {}


def _with_store_of_environment(config: Config) -> Config:
    found = store_from_environment(os.environ)
    if found is None or config.checkpoint.store != CheckpointConfig().store:
        return config
    return config_from_values(merge(config.model_dump(), {"checkpoint": {"store": found}}))
