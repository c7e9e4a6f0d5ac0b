"""A training in four steps: decide which run, prepare it, train its generations, end it. Each is in one place."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from eigen_core.checkpoint import LeaseHeldError, RunLockedError, RunSession, open_session
from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.generation import (
    TrainingState,
    record_telemetry,
    remember_saved,
    restore,
    snapshot_form,
    start_training,
)
from eigen_core.memory import MemoryGuard, MemoryGuardError, release_free_memory, tune_allocator
from eigen_core.records import HoldoutResult, Telemetry
from eigen_core.store import StoreUnavailableError, open_store
from eigen_core.task import TaskData, open_data
from eigen_core.threads import computing_threads
from flows.choosing import STOP_REQUESTS, ChosenRun, choose_run, with_own_settings
from flows.cockpit import Cockpit
from flows.goodput import work_recorded
from flows.journals import BlockedError, remember_own_settings, remember_stop
from flows.listener import Listener, outside_listeners
from flows.looks import keep_look
from flows.memory_watch import MemoryWatch
from flows.migration import await_immigrant
from flows.names import BLOCKED_NAME, FINISHED_NAME, NOTHING_NAME, PLAN_NAME, RUNNING_NAME
from flows.own_flow_run import CancellationError, OwnFlowRun, report_suspension
from flows.plotting import Plotting
from flows.prefect_environment import set_umask
from flows.reporter import Reporter
from flows.requests import own_run
from flows.resuming import is_scheduled, switch_schedule
from flows.run_plan import RunPlan, RunTooLargeError, require_fit
from flows.runs import holdout_of, is_complete, keep_request, open_or_create
from flows.server_presence import asked_twice, server_is_there
from flows.stop_requests import stop_requests_unmasked
from flows.tracking import Tracking
from flows.workers import computed_by_workers, local_workers
from tasks.phases import checkpoint, checkpoint_before_end, evaluate, evolve, holdout, train

# After these there is nothing that a schedule could resume, or not without a user's help.
_LAST_NAMES = (FINISHED_NAME, NOTHING_NAME, BLOCKED_NAME, PLAN_NAME)
# Prefect kills a cancelled process 30 s after SIGTERM.
_GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Training:
    """A run that is prepared for training.

    Attributes:
        run: which it is.
        state: what is trained.
        session: the run's directory, lease and uploads, held by this process.
        watch: guards its memory.
        plan: what it will take.
        data: what is played on.
        listeners: receive its events.
        plotting: draws its plots.
    """

    run: ChosenRun
    state: TrainingState
    session: RunSession
    watch: MemoryWatch
    plan: RunPlan
    data: TaskData
    listeners: Sequence[Listener]
    plotting: Plotting

    @property
    def guard(self) -> MemoryGuard:
        """The guard of its memory."""
        return self.watch.guard

    def send(self, event: Callable[[Listener], None]) -> None:
        """Send an event to all listeners."""
        _send(self.listeners, event)


def train_run(config: Config, run: str | None, *, resume: bool) -> State[None] | None:
    """Train as `train_flow` describes, and return the end state; None: all generations are trained."""
    tune_allocator()
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
            _end_at_once()
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


def _keep_stop(chosen: ChosenRun | State[None] | None) -> None:
    if isinstance(chosen, ChosenRun) and chosen.location.exists():
        remember_stop(chosen.location)


def _end_at_once() -> None:
    """End this process as SIGTERM does by itself: Prefect would try for a minute to report that it was stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _train(run: ChosenRun) -> State[None] | None:
    """Prepare a run, train its generations and end it, under the memory guard; return how that ended."""
    with (
        computing_threads(run.config.threads),
        run.attempt(),
        MemoryWatch(run.config, run.location) as watch,
        Reporter(run.name) as reporter,
        Cockpit(run.config, run.name, reporter) as cockpit,
        Tracking(run.config, run.location, _warn) as tracking,
    ):
        listeners = (OwnFlowRun(run.config, run.name, reporter), watch, cockpit, tracking, *outside_listeners())
        try:
            with watch.guard.exhaustion_reported():
                return _train_guarded(run, watch, listeners)
        except RunTooLargeError as error:
            cockpit.refused(error.run_plan)
            return Failed(name=PLAN_NAME, message=str(error), data=error)
        except MemoryGuardError as error:
            ended = watch.ended_by(error)
            cockpit.ended(str(error))
            return ended


def _warn(sentence: str) -> None:
    get_run_logger().warning(sentence)


def _train_guarded(run: ChosenRun, watch: MemoryWatch, listeners: Sequence[Listener]) -> State[None] | None:
    with _prepared(run, watch, listeners) as training:
        training.send(lambda listener: listener.prepared(training))
        generation = training.state.generation
        if is_complete(run.config, generation, holdout_of(training.session.location, generation)):
            _upload(training)
            message = f"Run {run.name} has all {run.config.generations} generations."
            return Completed(name=FINISHED_NAME, message=message)
        _run_generations(training)
    return None


@contextmanager
def _prepared(run: ChosenRun, watch: MemoryWatch, listeners: Sequence[Listener]) -> Iterator[Training]:
    """Read the data, check the plan, take the run for this process, and bring its state back."""
    config = run.config
    _send(listeners, lambda listener: listener.chosen(run.generation))
    # It has the name that the flow run has been given just now.
    logger = get_run_logger()
    data = open_data(config)
    plan = require_fit(config, data.facts, run.name)
    _send(listeners, lambda listener: listener.planned(plan))
    with ExitStack() as exits:
        workers = exits.enter_context(local_workers(config))
        # A configuration that cannot be trained is refused before the run is made.
        with watch.guard.phase("start", run.generation):
            state = start_training(config, data.content)
        logger.info("data: %s", data.size)
        logger.info("plan: %s", plan.sentence())
        exits.enter_context(computed_by_workers(run.name, state, data, workers))
        open_or_create(config, run.name)
        session = exits.enter_context(open_session(config.checkpoint, run.name))
        watch.add_uploads(session)
        if run.newest is not None:
            with watch.guard.phase("resume", run.generation):
                _resume(state, session)
        # Now it is known that these are the run's data: what is refused must not change what the run was asked for.
        keep_request(config, run.name)
        remember_own_settings(config, run.name)
        plotting = Plotting()
        exits.callback(plotting.stop)
        yield Training(run, state, session, watch, plan, data, listeners, plotting)


def _resume(state: TrainingState, session: RunSession) -> None:
    """Let a fresh state become that of the newest generation that is whole, if there is one."""
    loaded = session.load_newest(snapshot_form(state), partial(restore, state, take_memory=True))
    if loaded is None:
        return
    get_run_logger().info("resume: generation %d from %s", state.generation, session.directory.path)
    # The function keeps what it names: the manifest, not the tensors that were loaded.
    manifest = loaded.manifest
    remember_saved(state, lambda: session.directory.load_tensors(manifest, "population"))


def _run_generations(training: Training) -> None:
    """Train the generations that are left, and end the run: holdout, uploads."""
    state, session, run = training.state, training.session, training.run
    left = range(state.generation + 1, run.config.generations + 1)
    get_run_logger().info(
        "begin: %s on %s, run directory %s, store %s",
        f"generations {left[0]} to {left[-1]}" if left else "plots and holdout",
        state.executor,
        session.directory.path,
        session.location.store.url,
    )
    written = None if run.newest is None else datetime.fromisoformat(run.newest.created)
    try:
        with work_recorded(session.location, written, (*STOP_REQUESTS, KeyboardInterrupt)) as starts:
            training.send(lambda listener: listener.begun(training, starts))
            with asked_twice(), stop_requests_unmasked(STOP_REQUESTS):
                for generation in left:
                    _run_generation(training, generation)
            if not left:
                training.plotting.prepare(training, state.generation)
                training.plotting.begin(training, state.generation)
            result = _hold_out(training)
    except MemoryGuardError:
        _upload_before_end(training)
        raise
    except STOP_REQUESTS:
        _upload_before_end(training, _GRACE_SECONDS)
        raise
    _upload(training)
    training.send(lambda listener: listener.completed(training, result))


def _run_generation(training: Training, generation: int) -> None:
    state, guard = training.state, training.guard
    await_immigrant(state, training.run.name, get_run_logger())
    exchanged_before = state.executor.exchanged_bytes
    is_drawn = _is_due(generation, state.config)
    if is_drawn:
        training.plotting.prepare(training, generation)
    took: dict[str, Any] = {
        f"{phase}_seconds": _timed(training, generation, phase, partial(run_phase, state, guard, generation))
        for phase, run_phase in (("evaluate", evaluate), ("train", train), ("evolve", evolve))
    }
    release_free_memory()
    took["rss_bytes"] = guard.sample().host
    took["exchanged_bytes"] = state.executor.exchanged_bytes - exchanged_before
    _record_telemetry(training, generation, took)
    save = partial(checkpoint, state, training.session, guard, generation)
    try:
        took["checkpoint_seconds"] = _timed(training, generation, "checkpoint", save)
    except STOP_REQUESTS:
        checkpoint_before_end(state, training.session)
        training.send(lambda listener: listener.checkpointed(training))
        raise
    telemetry = _record_telemetry(training, generation, took)
    training.send(lambda listener: listener.checkpointed(training))
    if is_drawn:
        training.plotting.begin(training, generation)
    training.send(lambda listener: listener.generation_finished(state.history[-1], telemetry))


def _record_telemetry(training: Training, generation: int, took: Mapping[str, Any]) -> Telemetry:
    """Record what a generation took, with the memory of its phases that have ended until now."""
    phases = training.watch.phases_of(generation)
    peak = max(phase.peak_bytes for phase in phases)
    telemetry = Telemetry(generation=generation, rss_peak_bytes=peak, phases=phases, **took)
    record_telemetry(training.state, telemetry)
    return telemetry


def _timed(training: Training, generation: int, phase: str, run_phase: Callable[[], object]) -> float:
    """Run a phase and return its time with all its retries (seconds)."""
    training.plotting.take_over_if_drawn(training)
    training.send(lambda listener: listener.phase_started(generation, phase))
    started = time.perf_counter()
    with stop_requests_unmasked(STOP_REQUESTS):
        run_phase()
    return time.perf_counter() - started


def _is_due(generation: int, config: Config) -> bool:
    every = config.reporting.plot_every
    return generation == config.generations or (every > 0 and generation % every == 0)


def _hold_out(training: Training) -> HoldoutResult | None:
    """Play the holdout episodes, if there are any, beside the last plots.

    The result is kept last: with it the run is complete, and no resume would draw them.
    """
    state, result = training.state, None
    if state.config.holds_out:
        training.send(lambda listener: listener.phase_started(state.generation, "holdout"))
        _keep_look(training)
        result = holdout(state, training.guard, state.generation)
    training.plotting.take_over(training)
    if result is not None:
        training.session.keep_holdout(state.generation, result.model_dump(mode="json"))
    return result


def _keep_look(training: Training) -> None:
    """Keep the coming look at the holdout's days in the ledger, before it is made."""
    state = training.state
    days = state.task.holdout_days
    if days is None or state.champion is None:
        return
    try:
        store = open_store(state.config.checkpoint.store)
        keep_look(store, training.run.name, state.config, days, state.champion.weights[None])
    except StoreUnavailableError as error:
        get_run_logger().warning("This look at the holdout is missing in the ledger of looks: %s", error)


def _upload(training: Training, seconds: float | None = None) -> None:
    """Wait until everything is in the store, at most `seconds`; None: as long as the run's settings allow."""
    if training.session.uploads() is None:
        return
    training.send(lambda listener: listener.phase_started(training.state.generation, "upload"))
    try:
        training.session.finish(seconds)
    finally:
        training.send(lambda listener: listener.uploaded(training))


def _upload_before_end(training: Training, seconds: float | None = None) -> None:
    """Wait for the uploads of a training that ends early; what cannot be uploaded is safe on this machine."""
    try:
        _upload(training, seconds)
    except StoreUnavailableError as error:
        get_run_logger().warning("The last checkpoint is on this machine, not in the store: %s", error)


def _send(listeners: Sequence[Listener], event: Callable[[Listener], None]) -> None:
    for listener in listeners:
        event(listener)
