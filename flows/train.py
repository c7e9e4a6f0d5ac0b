"""The training flow: evaluate, train, evolve, checkpoint and plot, generation after generation."""

import gc
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated

import torch
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed
from pydantic import Field

from eigen_core.checkpoint import LeaseHeldError, RunLockedError, RunPlace, RunSession, open_session
from eigen_core.config import Config
from eigen_core.generation import TrainingState, record_telemetry, remember_saved, restore, start_training
from eigen_core.market import Panel, build_panel
from eigen_core.memory import MemoryGuard, MemoryGuardError, release_free_memory, tune_allocator
from eigen_core.planning import PanelFacts
from eigen_core.records import HoldoutResult, Telemetry
from eigen_core.store import StoreUnavailableError
from flows.attempts import count_attempt
from flows.flow_runs import describe_flow_run
from flows.memory_reports import BlockedError
from flows.memory_watch import BLOCKED_NAME, PLAN_NAME, MemoryWatch
from flows.observer import observer
from flows.run_names import default_run_name
from flows.run_plan import RunTooLargeError, require_room
from flows.runs import holdout_of, newest_generation, open_or_create, require_store, run_exists
from flows.scheduling import newest_unfinished, with_store_of_environment
from tasks.artifacts import (
    link_to_run,
    publish_data_report,
    publish_plan,
    publish_population,
    publish_progress,
    publish_summary,
    publish_uploads,
)
from tasks.checkpoint import checkpoint
from tasks.evaluate import evaluate
from tasks.evolve import evolve
from tasks.holdout import holdout
from tasks.plot import plot
from tasks.train import train

FINISHED_NAME = "AlreadyFinished"
RUNNING_NAME = "AlreadyRunning"
NOTHING_NAME = "NothingToDo"

_DEFAULT_CONFIG = Config()
# Generations whose time says how long the rest will take.
_RECENT = 5


@flow(name="train", persist_result=False)
def train_flow(
    config: Annotated[
        Config, Field(description="Everything that determines the run; what is not given is the preset's.")
    ] = _DEFAULT_CONFIG,
    run: Annotated[
        str | None,
        Field(
            description="Name of the run: letters, digits, dots, dashes and underscores. None: a new run, named by "
            "preset and time; with resume, the run of the store that was trained last and lacks generations."
        ),
    ] = None,
    resume: Annotated[bool, Field(description="The run must exist; false: it is begun if it is missing.")] = False,
) -> State[None] | None:
    """Train a population until the run has all its generations, from its newest checkpoint if there is one.

    Ends as `Completed`, named `AlreadyFinished` when nothing is left to do, `AlreadyRunning` if another process trains
    the run, and `NothingToDo` if no run lacks generations; as `Failed`, with the exception as its data, named
    `MemoryPlan` if the run cannot fit into memory and nothing was begun, `MemoryGuard` if the guard ended it, and
    `Blocked` if the guard, or whatever ended scheduled resumes, has ended this generation as often as is allowed.

    Raises:
        InputError: the data, the store or the run cannot be used with this configuration.
        StoreUnavailableError: the store does not answer, or has not all of the run at its end.
        LeaseLostError: another process has taken the run over.
    """
    tune_allocator()
    config = with_store_of_environment(config)
    require_store(config.checkpoint)
    try:
        if run is None and resume:
            chosen = newest_unfinished(config.checkpoint.store)
            if chosen is None:
                where = config.checkpoint.store
                return Completed(name=NOTHING_NAME, message=f"No run in {where} lacks generations.")
            count_attempt(RunPlace.of(chosen.config.checkpoint, chosen.name), chosen.generation)
            return _watched(chosen.config, chosen.name, must_exist=True)
        return _watched(config, run or default_run_name(config), must_exist=resume)
    except (RunLockedError, LeaseHeldError) as error:
        return Completed(name=RUNNING_NAME, message=str(error))
    except BlockedError as error:
        return Failed(name=BLOCKED_NAME, message=str(error), data=error)


def _watched(config: Config, run: str, *, must_exist: bool) -> State[None] | None:
    """Train under the memory guard."""
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    with MemoryWatch(config, RunPlace.of(config.checkpoint, run)) as watch:
        try:
            with watch.guard.exhaustion_reported():
                return _train(config, run, watch, must_exist=must_exist)
        except RunTooLargeError as error:
            return Failed(name=PLAN_NAME, message=str(error), data=error)
        except MemoryGuardError as error:
            return watch.ended_by(error)


def _train(config: Config, run: str, watch: MemoryWatch, *, must_exist: bool) -> State[None] | None:
    logger = get_run_logger()
    begun = run_exists(config.checkpoint, run)
    newest = newest_generation(RunPlace.of(config.checkpoint, run)) if begun else None
    generation = 1 if newest is None else newest[1].generation + 1
    describe_flow_run(config, run, generation)
    watch.require_not_blocked(generation)
    panel, report = build_panel(config)
    run_plan = require_room(config, PanelFacts.of(panel))
    watch.goes_by(run_plan)
    fresh = None
    if newest is None:
        # A configuration that cannot be trained is refused before the run is made.
        with watch.guard.phase("start", generation):
            fresh = start_training(config, panel)
    logger.info("%d days, %d columns, %d of them tradable", panel.days, panel.columns, panel.assets)
    logger.info("%s", run_plan.sentence())
    open_or_create(config, run, must_exist=must_exist)
    with open_session(config.checkpoint, run) as session:
        watch.tells_uploads_of(session)
        state = fresh or _resumed(session, config, panel, watch.guard, generation)
        del fresh
        if state.generation >= config.generations:
            _hold_out(state, session, watch.guard)
            _finish(state, session)
            return Completed(name=FINISHED_NAME, message=f"Run {run} has all {config.generations} generations.")
        logger.info("starting after generation %d of %d on %s", state.generation, config.generations, state.device)
        publish_data_report(run, panel, report.lines())
        publish_plan(run, run_plan.sentence(), run_plan.plan.part_rows())
        observer().started(state.generation, config.generations)
        try:
            for generation in range(state.generation + 1, config.generations + 1):
                _run_generation(state, session, watch, generation)
            result = _hold_out(state, session, watch.guard)
        except MemoryGuardError:
            _bring_to_the_store(state, session)
            raise
        _finish(state, session)
        publish_summary(run, state.history, state.telemetry, result, link_to_run(session.place.store.url, run))
    return None


def _resumed(session: RunSession, config: Config, panel: Panel, guard: MemoryGuard, generation: int) -> TrainingState:
    """Return the state of the newest generation that is whole; that of a run's beginning if there is none."""
    with guard.phase("resume", generation):
        loaded = session.load_newest()
        if loaded is None:
            return start_training(config, panel)
        newest = loaded.snapshot.generation
        get_run_logger().info("restoring generation %d from %s", newest, session.directory.path)
        # The function keeps what it names: the manifest, not the tensors that were loaded.
        manifest = loaded.manifest
        state = restore(config, panel, loaded.snapshot, take_memory=True)
        remember_saved(state, lambda: session.directory.load_tensors(manifest, "population"))
        return state


def _run_generation(state: TrainingState, session: RunSession, watch: MemoryWatch, generation: int) -> None:
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
    checkpoint_seconds = _timed(generation, "checkpoint", lambda: checkpoint(state, session, guard, generation))
    telemetry = _with_all_phases(telemetry.model_copy(update={"checkpoint_seconds": checkpoint_seconds}), watch)
    record_telemetry(state, telemetry)
    publish_population(session.name, state.history[-2:])
    publish_progress(session.name, generation, state.config.generations, _seconds_each(state.telemetry))
    _show_uploads(session)
    if _is_due(generation, state.config):
        _plot(state, session, guard, generation)
        telemetry = _with_all_phases(telemetry, watch)
        record_telemetry(state, telemetry)
    observer().generation_finished(state.history[-1], telemetry)


def _seconds_each(telemetry: Sequence[Telemetry]) -> float:
    """Return the time of a generation, the mean of the newest ones (seconds)."""
    return fmean(entry.seconds for entry in telemetry[-_RECENT:])


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


def _plot(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    observer().phase_started(generation, "plot")
    ended = plot(state, session, guard, generation, return_state=True)
    # Figures and pages are full of circular references, which would stay until the next full collection.
    gc.collect()
    if ended.is_completed():
        return
    error = ended.result(raise_on_failure=False)
    if isinstance(error, MemoryGuardError):
        raise error
    get_run_logger().warning("generation %d has no new plots: %s", generation, ended.message)


def _hold_out(state: TrainingState, session: RunSession, guard: MemoryGuard) -> HoldoutResult | None:
    """Play the holdout days, unless that was done after this very generation."""
    known = holdout_of(session.place, state.generation)
    if known is not None or state.config.market.holdout_days == 0:
        return known
    observer().phase_started(state.generation, "holdout")
    result = holdout(state, guard, state.generation)
    if result is not None:
        session.keep_holdout(state.generation, result.model_dump(mode="json"))
    return result


def _finish(state: TrainingState, session: RunSession) -> None:
    """Wait until everything is in the store."""
    if session.uploads() is None:
        return
    observer().phase_started(state.generation, "upload")
    try:
        session.finish()
    finally:
        _show_uploads(session)


def _bring_to_the_store(state: TrainingState, session: RunSession) -> None:
    """Wait for the uploads of a training that its guard has ended; what cannot be uploaded is safe on this machine."""
    try:
        _finish(state, session)
    except StoreUnavailableError as error:
        get_run_logger().warning("The last checkpoint is on this machine, not in the store: %s", error)


def _show_uploads(session: RunSession) -> None:
    uploads = session.uploads()
    if uploads is not None:
        publish_uploads(session.name, uploads)
