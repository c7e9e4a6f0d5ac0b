"""The training flow: evaluate, train, evolve, checkpoint and plot, generation after generation."""

import gc
import time
from collections.abc import Callable
from typing import Annotated

import psutil
import torch
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed
from pydantic import Field

from eigen_core.checkpoint import RunSession, open_session
from eigen_core.config import Config
from eigen_core.generation import TrainingState, record_telemetry, remember_saved, restore, start_training
from eigen_core.market import Panel, build_panel
from eigen_core.memory import limit_arenas, peak_resident_bytes, release_free_memory, reset_peak
from eigen_core.records import HoldoutResult, Telemetry
from flows.observer import observer
from flows.runs import holdout_of, open_or_create, require_store, run_exists
from tasks.artifacts import publish_data_report, publish_population, publish_summary, publish_uploads
from tasks.checkpoint import checkpoint
from tasks.evaluate import evaluate
from tasks.evolve import evolve
from tasks.holdout import holdout
from tasks.plot import plot
from tasks.train import train

FINISHED_NAME = "AlreadyFinished"


@flow(name="train", flow_run_name="{run}", persist_result=False)
def train_flow(
    config: Annotated[
        Config, Field(description="Everything that determines the run; what is not given is the preset's.")
    ],
    run: Annotated[str, Field(description="Name of the run: letters, digits, dots, dashes and underscores.")],
    resume: Annotated[bool, Field(description="The run must exist; false: it is begun if it is missing.")] = False,
) -> State[None] | None:
    """Train a population until the run has all its generations, from its newest checkpoint if there is one.

    Ends as `Completed(name="AlreadyFinished")` when nothing is left to do.

    Raises:
        InputError: the data, the store or the run cannot be used with this configuration.
        StoreUnavailableError: the store does not answer, or has not all of the run at its end.
        LeaseLostError: another process has taken the run over.
    """
    logger = get_run_logger()
    limit_arenas()
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    require_store(config.checkpoint)
    panel, report = build_panel(config)
    logger.info("%d days, %d columns, %d of them tradable", panel.days, panel.columns, panel.assets)
    fresh = None
    if not resume and not run_exists(config.checkpoint, run):
        # A configuration that cannot be trained is refused before the run is made.
        fresh = start_training(config, panel)
    open_or_create(config, run, must_exist=resume)
    with open_session(config.checkpoint, run) as session:
        state = _restored(session, config, panel) or fresh or start_training(config, panel)
        del fresh
        if state.generation >= config.generations:
            _hold_out(state, session)
            _finish(state, session)
            return Completed(name=FINISHED_NAME, message=f"Run {run} has all {config.generations} generations.")
        logger.info("starting after generation %d of %d on %s", state.generation, config.generations, state.device)
        publish_data_report(run, panel, report.lines())
        observer().started(state.generation, config.generations)
        for generation in range(state.generation + 1, config.generations + 1):
            _run_generation(state, session, generation)
        result = _hold_out(state, session)
        _finish(state, session)
        where = f"{session.place.store.url.rstrip('/')}/{run}"
        publish_summary(run, state.history, state.telemetry, result, where)
    return None


def _restored(session: RunSession, config: Config, panel: Panel) -> TrainingState | None:
    loaded = session.load_newest()
    if loaded is None:
        return None
    generation = loaded.snapshot.generation
    get_run_logger().info("restoring generation %d from %s", generation, session.directory.path)
    # The function keeps what it names: the manifest, not the tensors that were loaded.
    manifest = loaded.manifest
    state = restore(config, panel, loaded.snapshot, take_memory=True)
    remember_saved(state, lambda: session.directory.load_tensors(manifest, "population"))
    return state


def _run_generation(state: TrainingState, session: RunSession, generation: int) -> None:
    reset_peak()
    evaluate_seconds = _timed(generation, "evaluate", lambda: evaluate(state, generation))
    train_seconds = _timed(generation, "train", lambda: train(state, generation))
    evolve_seconds = _timed(generation, "evolve", lambda: evolve(state, generation))
    release_free_memory()
    telemetry = Telemetry(
        generation=generation,
        evaluate_seconds=evaluate_seconds,
        train_seconds=train_seconds,
        evolve_seconds=evolve_seconds,
        rss_bytes=_resident_bytes(),
        rss_peak_bytes=peak_resident_bytes(),
    )
    record_telemetry(state, telemetry)
    checkpoint_seconds = _timed(generation, "checkpoint", lambda: checkpoint(state, session, generation))
    telemetry = telemetry.model_copy(update={"checkpoint_seconds": checkpoint_seconds})
    record_telemetry(state, telemetry)
    publish_population(session.name, state.history[-2:])
    _show_uploads(session)
    if _is_due(generation, state.config):
        _plot(state, session, generation)
    observer().generation_finished(state.history[-1], telemetry)


def _timed(generation: int, phase: str, run_phase: Callable[[], object]) -> float:
    """Run a phase and return its time with all its retries (seconds)."""
    observer().phase_started(generation, phase)
    started = time.perf_counter()
    run_phase()
    return time.perf_counter() - started


def _is_due(generation: int, config: Config) -> bool:
    every = config.reporting.plot_every
    return generation == config.generations or (every > 0 and generation % every == 0)


def _plot(state: TrainingState, session: RunSession, generation: int) -> None:
    observer().phase_started(generation, "plot")
    ended = plot(state, session, generation, return_state=True)
    # Figures and pages are full of circular references, which would stay until the next full collection.
    gc.collect()
    if not ended.is_completed():
        get_run_logger().warning("generation %d has no new plots: %s", generation, ended.message)


def _hold_out(state: TrainingState, session: RunSession) -> HoldoutResult | None:
    """Play the holdout days, unless that was done after this very generation."""
    known = holdout_of(session.place, state.generation)
    if known is not None or state.config.market.holdout_days == 0:
        return known
    observer().phase_started(state.generation, "holdout")
    result = holdout(state, state.generation)
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


def _show_uploads(session: RunSession) -> None:
    uploads = session.uploads()
    if uploads is not None:
        publish_uploads(session.name, uploads)


def _resident_bytes() -> int:
    # Without children: Prefect's embedded server is one, and no part of the training.
    return int(psutil.Process().memory_info().rss)
