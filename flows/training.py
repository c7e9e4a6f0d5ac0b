"""What a training does: evaluate, train, evolve, checkpoint and plot, generation after generation."""

import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial

import torch
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from eigen_core.checkpoint import LeaseHeldError, RunLockedError, RunPlace, RunSession, open_session
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
from eigen_core.market import build_panel
from eigen_core.memory import MemoryGuard, MemoryGuardError, release_free_memory, tune_allocator
from eigen_core.planning import PanelFacts
from eigen_core.records import HoldoutResult, Telemetry
from eigen_core.store import StoreUnavailableError
from flows.cockpit import Cockpit
from flows.file_modes import set_umask
from flows.goodput import work_recorded
from flows.journals import BlockedError, count_attempt, forget_attempts, remember_own_settings, withdraw_attempt
from flows.memory_watch import MemoryWatch
from flows.names import (
    BLOCKED_NAME,
    FINISHED_NAME,
    NOTHING_NAME,
    PLAN_NAME,
    RUNNING_NAME,
    SUSPENDED_NAME,
    default_run_name,
)
from flows.observer import observer
from flows.own_flow_run import CancellationError, correct_state, name_flow_run, report_suspension
from flows.resuming import is_scheduled, remove_needless_resumes, suspension_of, switch_schedule
from flows.run_plan import RunTooLargeError, require_fit
from flows.runs import (
    config_to_resume,
    holdout_of,
    is_complete,
    keep_request,
    newest_generation,
    open_or_create,
    require_store,
    run_exists,
)
from flows.scheduling import newest_unfinished, with_store_of_environment
from flows.server_presence import asked_twice, server_is_there, wait_for_server
from tasks.checkpoint import checkpoint, checkpoint_before_end
from tasks.evaluate import evaluate
from tasks.evolve import evolve
from tasks.holdout import holdout
from tasks.plot import plot
from tasks.train import train

# After these there is nothing that a schedule could go on with, or not without a user's help.
_LAST_NAMES = (FINISHED_NAME, NOTHING_NAME, BLOCKED_NAME, PLAN_NAME)

# What a user has asked for: to stop, or to suspend in Prefect's pages, which it notices between two phases.
_STOPPED = (TerminationSignal, Pause)
# Prefect kills a cancelled process 30 s after SIGTERM.
_GRACE_SECONDS = 15.0
# A server that is away at the end of a training is waited for so long.
_REPORT_SECONDS = 120.0


def train_run(config: Config, run: str | None, *, resume: bool) -> State[None] | None:
    """Train as `train_flow` is asked to, and return how it ended; None: with all generations trained."""
    tune_allocator()
    set_umask(os.environ)
    config = with_store_of_environment(config)
    resume = resume or (run is None and is_scheduled())
    try:
        require_store(config.checkpoint)
        ended = _chosen(config, run, resume=resume)
    except (RunLockedError, LeaseHeldError) as error:
        return Completed(name=RUNNING_NAME, message=str(error))
    except Pause:
        report_suspension()
        raise
    except CancellationError as error:
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


def _end_at_once() -> None:
    """End this process as SIGTERM does by itself: Prefect would try for a minute to report that it was stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _chosen(config: Config, run: str | None, *, resume: bool) -> State[None] | None:
    """Train the run that is meant."""
    if not resume:
        return _asked_for(config, run or default_run_name(config))
    if run is None:
        return _resume_newest(config)
    return _asked_for(_resumable(config, run), run)


def _resumable(given: Config, run: str) -> Config:
    """Return the configuration of a run to go on with; of the given one, only what is this machine's own counts."""
    return config_to_resume(given.checkpoint.store, run, given.market.data, given.checkpoint.local)


def _asked_for(config: Config, run: str) -> State[None] | None:
    """Train the run that was named."""
    if run_exists(config.checkpoint, run):
        forget_attempts(RunPlace.of(config.checkpoint, run))
    return _watched(config, run)


def _resume_newest(config: Config) -> State[None] | None:
    """Go on with the run of the store that was trained last and is not complete."""
    chosen = newest_unfinished(config.checkpoint.store, config.checkpoint.local)
    if chosen is None:
        name_flow_run("nothing to resume")
        return Completed(name=NOTHING_NAME, message=f"Every run in {config.checkpoint.store} is complete.")
    suspended = suspension_of(chosen.name)
    if suspended is not None:
        name_flow_run(f"{chosen.name} is suspended")
        return Completed(name=SUSPENDED_NAME, message=suspended)
    config = _resumable(config, chosen.name)
    place = RunPlace.of(config.checkpoint, chosen.name)
    count_attempt(place, chosen.generation)
    try:
        return _watched(config, chosen.name)
    except (*_STOPPED, RunLockedError, LeaseHeldError, StoreUnavailableError):
        # Who stops a training, trains it elsewhere or takes its store away says nothing about the run.
        withdraw_attempt(place)
        raise


def _watched(config: Config, run: str) -> State[None] | None:
    """Train under the memory guard."""
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    with MemoryWatch(config, RunPlace.of(config.checkpoint, run)) as watch, Cockpit(config, run) as cockpit:
        try:
            with watch.guard.exhaustion_reported():
                return _train(config, run, watch, cockpit)
        except RunTooLargeError as error:
            cockpit.planned(error.run_plan)
            return Failed(name=PLAN_NAME, message=str(error), data=error)
        except MemoryGuardError as error:
            ended = watch.ended_by(error)
            cockpit.ended(str(error))
            return ended


def _train(config: Config, run: str, watch: MemoryWatch, cockpit: Cockpit) -> State[None] | None:
    begun = run_exists(config.checkpoint, run)
    newest = newest_generation(RunPlace.of(config.checkpoint, run)) if begun else None
    generation = 1 if newest is None else newest[1].generation + 1
    cockpit.chosen(generation)
    # It has the name that the flow run has been given just now.
    logger = get_run_logger()
    watch.require_not_blocked(generation)
    panel, report = build_panel(config)
    run_plan = require_fit(config, PanelFacts.of(panel))
    watch.follow_plan(run_plan)
    # A configuration that cannot be trained is refused before the run is made.
    with watch.guard.phase("start", generation):
        state = start_training(config, panel)
    logger.info("data: %s days, %d columns, %d of them tradable", f"{panel.days:,}", panel.columns, panel.assets)
    logger.info("plan: %s", run_plan.sentence())
    open_or_create(config, run)
    with open_session(config.checkpoint, run) as session, ExitStack() as ending:
        keep_request(config, run)
        watch.report_uploads_of(session)
        if newest is not None:
            _resume(state, session, watch.guard, generation)
        # Now it is known that these are the run's data.
        remember_own_settings(config, run)
        if is_complete(config, state.generation, holdout_of(session.place, state.generation)):
            _finish(state, session, cockpit)
            return Completed(name=FINISHED_NAME, message=f"Run {run} has all {config.generations} generations.")
        left = range(state.generation + 1, config.generations + 1)
        logger.info(
            "begin: %s on %s, run directory %s, store %s",
            f"generations {left[0]} to {left[-1]}" if left else "plots and holdout",
            state.device,
            session.directory.path,
            session.place.store.url,
        )
        written = None if newest is None else datetime.fromisoformat(newest[1].created)
        starts = ending.enter_context(work_recorded(session.place, written, (*_STOPPED, KeyboardInterrupt)))
        cockpit.begun(state, session, watch.guard, panel, report, starts)
        cockpit.planned(run_plan)
        switch_schedule(True)
        remove_needless_resumes()
        observer().started(state.generation, config.generations)
        try:
            with asked_twice():
                for generation in left:
                    _run_generation(state, session, watch, cockpit, generation)
            if not left:
                _plot(state, session, watch.guard, cockpit, state.generation)
            result = _hold_out(state, session, watch.guard)
        except MemoryGuardError:
            _bring_to_the_store(state, session, cockpit)
            raise
        except _STOPPED:
            _bring_to_the_store(state, session, cockpit, _GRACE_SECONDS)
            raise
        _finish(state, session, cockpit)
        # A training that cannot report its end would be taken for crashed.
        wait_for_server(_REPORT_SECONDS)
        correct_state()
        cockpit.finished(state, session, watch.guard, result)
    return None


def _resume(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    """Let a fresh state become that of the newest generation that is whole, if there is one."""
    with guard.phase("resume", generation):
        loaded = session.load_newest(snapshot_form(state), partial(restore, state, take_memory=True))
        if loaded is None:
            return
        get_run_logger().info("resume: generation %d from %s", state.generation, session.directory.path)
        # The function keeps what it names: the manifest, not the tensors that were loaded.
        manifest = loaded.manifest
        remember_saved(state, lambda: session.directory.load_tensors(manifest, "population"))


def _run_generation(
    state: TrainingState, session: RunSession, watch: MemoryWatch, cockpit: Cockpit, generation: int
) -> None:
    guard = watch.guard
    evaluate_seconds = _timed(generation, "evaluate", lambda: evaluate(state, guard, generation))
    train_seconds = _timed(generation, "train", lambda: train(state, guard, generation))
    evolve_seconds = _timed(generation, "evolve", lambda: evolve(state, guard, generation))
    release_free_memory()
    phases = watch.phases_of(generation)
    telemetry = Telemetry(
        generation=generation,
        evaluate_seconds=evaluate_seconds,
        train_seconds=train_seconds,
        evolve_seconds=evolve_seconds,
        rss_bytes=guard.sample().host,
        rss_peak_bytes=max(phase.peak_bytes for phase in phases),
        phases=phases,
    )
    record_telemetry(state, telemetry)
    try:
        checkpoint_seconds = _timed(generation, "checkpoint", lambda: checkpoint(state, session, guard, generation))
    except _STOPPED:
        checkpoint_before_end(state, session)
        cockpit.generation_finished(state, session, guard)
        raise
    remove_needless_resumes()
    correct_state()
    telemetry = _with_all_phases(telemetry.model_copy(update={"checkpoint_seconds": checkpoint_seconds}), watch)
    record_telemetry(state, telemetry)
    cockpit.generation_finished(state, session, guard)
    if _is_due(generation, state.config):
        _plot(state, session, guard, cockpit, generation)
        telemetry = _with_all_phases(telemetry, watch)
        record_telemetry(state, telemetry)
    observer().generation_finished(state.history[-1], telemetry)


def _with_all_phases(telemetry: Telemetry, watch: MemoryWatch) -> Telemetry:
    """Return the telemetry with the memory of the phases that have ended since."""
    phases = watch.phases_of(telemetry.generation)
    return telemetry.model_copy(update={"phases": phases, "rss_peak_bytes": max(phase.peak_bytes for phase in phases)})


def _timed(generation: int, phase: str, run_phase: Callable[[], object]) -> float:
    """Run a phase and return its time with all its retries (seconds)."""
    observer().phase_started(generation, phase)
    started = time.perf_counter()
    run_phase()
    return time.perf_counter() - started


def _is_due(generation: int, config: Config) -> bool:
    every = config.reporting.plot_every
    return generation == config.generations or (every > 0 and generation % every == 0)


def _plot(state: TrainingState, session: RunSession, guard: MemoryGuard, cockpit: Cockpit, generation: int) -> None:
    observer().phase_started(generation, "plot")
    ended = plot(state, session, guard, generation, return_state=True)
    # Figures and pages are full of circular references, which would stay until the next full collection.
    gc.collect()
    if ended.is_completed():
        cockpit.plotted(generation, ended.result())
        return
    error = ended.result(raise_on_failure=False)
    if isinstance(error, MemoryGuardError):
        raise error
    get_run_logger().warning("generation %d has no new plots: %s", generation, ended.message)


def _hold_out(state: TrainingState, session: RunSession, guard: MemoryGuard) -> HoldoutResult | None:
    """Play the holdout days, if there are any."""
    if state.config.market.holdout_days == 0:
        return None
    observer().phase_started(state.generation, "holdout")
    result = holdout(state, guard, state.generation)
    if result is not None:
        session.keep_holdout(state.generation, result.model_dump(mode="json"))
    return result


def _finish(state: TrainingState, session: RunSession, cockpit: Cockpit, seconds: float | None = None) -> None:
    """Wait until everything is in the store, at most `seconds`; None: as long as the run's settings allow."""
    if session.uploads() is None:
        return
    observer().phase_started(state.generation, "upload")
    try:
        session.finish(seconds)
    finally:
        cockpit.uploaded(session)


def _bring_to_the_store(
    state: TrainingState, session: RunSession, cockpit: Cockpit, seconds: float | None = None
) -> None:
    """Wait for the uploads of a training that ends early; what cannot be uploaded is safe on this machine."""
    try:
        _finish(state, session, cockpit, seconds)
    except StoreUnavailableError as error:
        get_run_logger().warning("The last checkpoint is on this machine, not in the store: %s", error)
