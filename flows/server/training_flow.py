"""A training as a flow run: the choice of the run, its phases as Prefect tasks, its pages, the final state.

A run "is stopped" if a user has cancelled or suspended it, and nobody has continued it by its name since.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_LOGGING_LEVEL
from prefect.states import Cancelled, Completed, Failed

from eigen_core.checkpoint.locks import InUseError
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import require_store
from eigen_core.common.errors import FOLLOWS, End, InputError, Next, UnavailableError, end_of
from eigen_core.common.process import set_umask, stop_requests_unmasked
from eigen_core.config import Config, merge
from eigen_core.config.explain import flatten
from eigen_core.config.machine_settings import MACHINE_SETTINGS, TASK_VARIABLE, machine_values
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.planning.run_plan import RunTooLargeError
from eigen_core.reporting.trackers import TrackerListener
from eigen_core.run import train_run
from eigen_core.runs.handle import Run, require_trusted_task, unfinished_runs
from eigen_core.runs.journals import BlockedError
from flows.server import flow_runs
from flows.server.artifacts import Reporter, retry_once, server_is_there
from flows.server.pages import RunPages
from flows.server.prefect_settings import LOGGERS
from flows.server.state_directory import StateDirectory, of_this_machine
from tasks import TASKS

STOP_REQUESTS = (TerminationSignal, Pause)
"""Exceptions that request a stop: after SIGTERM, or after a suspension in Prefect's pages, noticed between phases."""

R = TypeVar("R")


@dataclass(frozen=True)
class ChosenRun:
    """The run that a flow run trains, and the configuration with which it does."""

    run: Run
    config: Config


def choose_run(config: Config, run: str | None, *, resume: bool) -> ChosenRun | State[None]:
    """Return the run that this flow run trains, or the flow run's final state if there is nothing to resume.

    Args:
        config: configuration of a new run. For a run that is resumed, only `MACHINE_SETTINGS` and `market.data` (the
            path of the prices) are taken from it.
        run: name of the run. None: a new run, or with `resume` the run that was requested last. If there was no
            request, or that run is complete or stopped and a user (not the schedule or an automation) has created this
            flow run: the newest unfinished run of the store that was not stopped.
        resume: the run must exist, and keeps its stored configuration. False: a run that does not exist is begun, and
            one that exists goes on if `config` has its settings.
    """
    config = with_own_settings(config, run)
    if run is None and resume:
        return _run_to_resume(config)
    return _named(config, run or flow_runs.own_run_name(config), resume=resume)


def _named(config: Config, run: str, *, resume: bool) -> ChosenRun:
    """Return the run with `config`; with `resume`, with its stored configuration and this machine's settings."""
    require_store(config.checkpoint.store)
    if not resume:
        found = Run.of(config, run)
        return ChosenRun(found, found.config_to_train(config))
    found = Run.open(config.checkpoint.store, run, _own_settings(config, run))
    return ChosenRun(found, found.config_to_resume(config.market.data))


def _run_to_resume(config: Config) -> ChosenRun | State[None]:
    """Return what `choose_run` returns if it is to resume a run that is not named."""
    request = flow_runs.last_request()
    if request is not None and request.stopped is None and not request.is_complete:
        return _requested_run(config, request)
    stopped = None if request is None else request.stopped
    if request is None or not flow_runs.is_automatic():
        require_store(config.checkpoint.store)
        for found in unfinished_runs(config.checkpoint.store, partial(_own_settings, config)):
            known = request if request is not None and request.run == found.name else flow_runs.last_request(found.name)
            if known is None or known.stopped is None:
                return ChosenRun(found, found.config_to_resume(config.market.data))
            request, stopped = known, stopped or known.stopped
    if request is not None and request.is_suspended:
        flow_runs.name_flow_run(f"{request.run} is suspended")
        return Completed(name=flow_runs.SUSPENDED_NAME, message=stopped)
    flow_runs.name_flow_run("nothing to resume")
    flow_runs.switch_schedule(False)
    nothing = "The last requested run is complete" if request is not None else "No run is left to resume"
    return Completed(name=flow_runs.NOTHING_NAME, message=stopped or f"{nothing} in {config.checkpoint.store}.")


def _requested_run(config: Config, request: flow_runs.TrainingRequest) -> ChosenRun | State[None]:
    """Return the run of a request, with the requested configuration or, once the run is in the store, the stored one.

    If the flow run of the request still waits to start, return the final state `AlreadyRunning`.
    """
    if request.waits:
        return Completed(
            name=flow_runs.RUNNING_NAME,
            message=f"Flow run {request.flow_run.name} is about to train run '{request.run}'.",
        )
    asked = request.parameters or {}
    given = with_own_settings(Config.model_validate(asked.get("config") or {}), request.run)
    resume = bool(asked.get("resume"))
    if request.begun or request.parameters is None:
        # The path of the prices comes from this flow run's parameters, not from those of the request.
        given, resume = given.model_copy(update={"market": config.market}), True
    return _named(given, request.run, resume=resume)


def with_own_settings(config: Config, run: str | None) -> Config:
    """Return a flow run's configuration with this machine's settings (`MACHINE_SETTINGS`).

    The parameters of a worker's flow run are untrusted: anyone who reaches the server can give them. The machine's
    settings come from environment variables, and from `eigen launch` of run `run` (None: not known yet) here.

    Raises:
        InputError: a parameter gives one of `MACHINE_SETTINGS`, or a task that imports a module and that neither
            EIGEN_TASK nor `eigen launch` names; or environment variables contradict each other.
    """
    if flow_runs.own_deployment() is None:
        return of_this_machine(config)
    launched = {} if run is None else _launch_settings(run)
    _require_parameters_of_a_run(config)
    require_trusted_task(config.task, "This flow run plays", [launched.get("task"), os.environ.get(TASK_VARIABLE)])
    return of_this_machine(config, launched)


def _require_parameters_of_a_run(config: Config) -> None:
    given, usual = (flatten(machine_values(one.model_dump(mode="json"))) for one in (config, Config()))
    foreign = [key for key, value in given.items() if key != "task" and value != usual[key]]
    if foreign:
        raise InputError(
            f"The parameters of this flow run give {' and '.join(foreign)}. Parameters cannot give settings of the "
            "worker's machine: leave them out, and set "
            f"{' and '.join(MACHINE_SETTINGS[key].variable for key in foreign)} among the worker's environment "
            "variables, or use `eigen launch` on its machine."
        )


def _own_settings(config: Config, run: str) -> dict[str, Any]:
    """Return the settings of this machine for a run that is resumed: those of `config`, overridden by its launch's."""
    return merge(machine_values(config.model_dump()), _launch_settings(run))


def _launch_settings(run: str) -> dict[str, Any]:
    return StateDirectory.of(os.environ).launch_settings(run) if flow_runs.own_deployment() is not None else {}


def train_flow_run(config: Config, run: str | None, *, resume: bool) -> State[None]:
    """Train the run that the parameters of this flow run ask for, and return the flow run's final state."""
    resume = resume or (run is None and flow_runs.is_scheduled())
    # A flow run that a user resumes after a suspension still has the tag of the run that it trained before.
    run = run or (flow_runs.tagged_run(runtime.flow_run.tags) if resume else None)
    named = run is not None or not resume
    with _body_of_flow_run(resume=resume):
        chosen = choose_run(config, run, resume=resume)
        return _final_state(chosen, named=named) if isinstance(chosen, ChosenRun) else chosen


def train_as_flow_run(chosen: ChosenRun) -> State[Any]:
    """Train a run that this process has chosen as a flow run without a deployment, and return its final state."""

    @flow(name="train", flow_run_name=flow_runs.initial_name, persist_result=False)
    def train(config: Config, run: str) -> State[None]:  # noqa: ARG001 - what Prefect's pages show
        with _body_of_flow_run():
            return _final_state(chosen, named=True)

    return train(chosen.config, chosen.run.name, return_state=True)


@contextmanager
def _body_of_flow_run(*, resume: bool = False) -> Iterator[None]:
    """Set umask and levels of loggers; if the block ends with an error that would recur, switch the schedule off."""
    set_umask(os.environ)
    # Prefect gives extra loggers the handler that sends records to its server, and no level: INFO would be dropped.
    for name in LOGGERS:
        logging.getLogger(name).setLevel(PREFECT_LOGGING_LEVEL.value())
    try:
        yield
    except TerminationSignal:
        if not server_is_there():
            # End by SIGTERM's default action: Prefect would try for a minute to report the end to the server.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        raise
    except (InputError, FloatingPointError) as error:
        end = end_of(error)
        # A run that had begun can be trained again once its store or its data are corrected.
        _switch_schedule_after(end.of_begun_run if resume else end)
        raise


def _final_state(chosen: ChosenRun, *, named: bool) -> State[None]:
    """Train a run, which a user has `named` or `choose_run` has found, and return the final state of its flow run."""
    try:
        return _train(chosen, named=named)
    except InUseError as error:
        return Completed(name=flow_runs.RUNNING_NAME, message=str(error))
    except Pause:
        chosen.run.stop()
        flow_runs.report_suspension()
        raise
    except flow_runs.CancellationError as error:
        chosen.run.stop()
        flow_runs.switch_schedule(False)
        return Cancelled(message=str(error))
    except BlockedError as error:
        flow_runs.switch_schedule(False)
        return Failed(name=flow_runs.BLOCKED_NAME, message=str(error), data=error)


def _train(chosen: ChosenRun, *, named: bool) -> State[None]:
    logger, run, config = get_run_logger(), chosen.run, chosen.config
    if named:
        run.forget_stops_and_attempts()
    # These errors say nothing about the run: do not count the attempt.
    outside = (*STOP_REQUESTS, UnavailableError, StoreUnavailableError)
    with (
        nullcontext() if named else run.attempt(outside),
        Reporter(run.name) as reporter,
        RunPages(config, run.name, reporter) as pages,
        TrackerListener(config, run.location, logger.warning) as tracking,
        retry_once(),
        stop_requests_unmasked(STOP_REQUESTS),
    ):
        flow_run = flow_runs.FlowRunListener(config, run.name, reporter)
        listeners = (flow_run, pages, tracking)
        try:
            trained = train_run(config, run, run_phase=_run_phase, listeners=listeners, stop_requests=STOP_REQUESTS)
        except RunTooLargeError as error:
            pages.show_plan(error.run_plan)
            _switch_schedule_after(error.end)
            return Failed(name=flow_runs.PLAN_NAME, message=str(error), data=error)
        except MemoryGuardError as error:
            pages.ended(str(error))
            return Failed(name=flow_runs.GUARD_NAME, message=str(error), data=error)
    flow_runs.switch_schedule(False)
    return Completed(name="Completed" if trained else flow_runs.FINISHED_NAME, message=flow_run.result)


def _switch_schedule_after(end: End) -> None:
    if FOLLOWS[end]["flow"] is not Next.RETRY:
        flow_runs.switch_schedule(False)


def _run_phase(phase: str, generation: int, compute: Callable[[], R]) -> R:
    """Call `compute` in the Prefect task of the phase; implements `eigen_core.run.RunPhase`."""
    with stop_requests_unmasked(STOP_REQUESTS):
        return cast(R, TASKS[phase](compute, generation))
