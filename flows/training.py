"""A training as a flow run: which run is trained, its phases as tasks, its pages, and the flow's end state."""

import os
import signal
from collections.abc import Callable
from typing import TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from eigen_core.checkpoint import LeaseHeldError, RunLockedError
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.machine import MemoryGuardError
from eigen_core.planning.run_plan import RunTooLargeError
from eigen_core.reporting.tracking import Tracking
from eigen_core.run import train_run
from eigen_core.training.journals import BlockedError, remember_stop
from eigen_core.training.stop_requests import stop_requests_unmasked
from flows.server.choosing import STOP_REQUESTS, ChosenRun, choose_run, with_own_settings
from flows.server.cockpit import Cockpit
from flows.server.environment import (
    BLOCKED_NAME,
    FINISHED_NAME,
    GUARD_NAME,
    NOTHING_NAME,
    PLAN_NAME,
    RUNNING_NAME,
    set_umask,
)
from flows.server.flow_run import CancellationError, OwnFlowRun, is_scheduled, report_suspension, switch_schedule
from flows.server.flow_runs import own_run
from flows.server.reporter import Reporter, retry_once, server_is_there
from tasks.phases import TASKS

R = TypeVar("R")

# After these there is nothing that a schedule could resume, or not without a user's help.
_LAST_NAMES = (FINISHED_NAME, NOTHING_NAME, BLOCKED_NAME, PLAN_NAME)


def train_flow_run(config: Config, run: str | None, *, resume: bool) -> State[None] | None:
    """Train as `train_flow` describes, and return the end state; None: all generations are trained."""
    set_umask(os.environ)
    resume = resume or (run is None and is_scheduled())
    run = run or (own_run() if resume else None)
    chosen: ChosenRun | State[None] | None = None
    try:
        chosen = choose_run(with_own_settings(config, run), run, resume=resume)
        ended = _train(chosen) if isinstance(chosen, ChosenRun) else chosen
    except (RunLockedError, LeaseHeldError) as error:
        return Completed(name=RUNNING_NAME, message=str(error))
    except Pause:
        _keep_stop(chosen)
        report_suspension()
        raise
    except CancellationError as error:
        _keep_stop(chosen)
        switch_schedule(False)
        return Cancelled(message=str(error))
    except TerminationSignal:
        if not server_is_there():
            _exit_now()
        raise
    except BlockedError as error:
        ended = Failed(name=BLOCKED_NAME, message=str(error), data=error)
    except InputError:
        # A run that was trained before can be again, once its store or its data are corrected.
        if not resume:
            switch_schedule(False)
        raise
    if ended is None or ended.name in _LAST_NAMES:
        switch_schedule(False)
    return ended


def _train(run: ChosenRun) -> State[None] | None:
    """Train a run, with its pages and trackers; return how that ended."""
    logger = get_run_logger()
    with (
        run.attempt(),
        Reporter(run.name) as reporter,
        Cockpit(run.config, run.name, reporter) as cockpit,
        Tracking(run.config, run.location, logger.warning) as tracking,
        retry_once(),
        stop_requests_unmasked(STOP_REQUESTS),
    ):
        listeners = (OwnFlowRun(run.config, run.name, reporter), cockpit, tracking)
        try:
            trained = train_run(
                run.config, run.name, run_phase=_run_phase, listeners=listeners, stop_requests=STOP_REQUESTS
            )
        except RunTooLargeError as error:
            cockpit.refused(error.run_plan)
            return Failed(name=PLAN_NAME, message=str(error), data=error)
        except MemoryGuardError as error:
            cockpit.ended(str(error))
            return Failed(name=GUARD_NAME, message=str(error), data=error)
    if trained:
        return None
    return Completed(name=FINISHED_NAME, message=f"Run {run.name} has all {run.config.generations} generations.")


def _run_phase(phase: str, generation: int, compute: Callable[[], R]) -> R:
    """Call a phase as its Prefect task. Implements `eigen_core.run.RunPhase`."""
    with stop_requests_unmasked(STOP_REQUESTS):
        return cast(R, TASKS[phase](compute, generation))


def _keep_stop(chosen: ChosenRun | State[None] | None) -> None:
    if isinstance(chosen, ChosenRun) and chosen.location.exists():
        remember_stop(chosen.location)


def _exit_now() -> None:
    """End this process as SIGTERM does by itself: Prefect would try for a minute to report that it was stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
