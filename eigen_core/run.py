"""The training of a run, from its configuration to its last upload: read this file from top to bottom."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import JsonValue

from eigen_core import generation as phases
from eigen_core.checkpoint.run_directory import SavedGeneration
from eigen_core.checkpoint.session import RunSession, open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import WorkerLostError
from eigen_core.common.records import HoldoutResult, Telemetry
from eigen_core.common.text import duration, in_words, size
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.generation import TrainingState, record_telemetry, resolve_device, restore, snapshot, snapshot_form
from eigen_core.machine.gpu import visible_gpus
from eigen_core.machine.memory_guard import MemoryGuard, MemoryGuardError
from eigen_core.machine.memory_usage import release_free_memory, tune_allocator
from eigen_core.machine.performance import computing_threads
from eigen_core.memory_watch import MemoryWatch
from eigen_core.planning.memory_parts import local_worker_count
from eigen_core.planning.run_plan import require_fit
from eigen_core.runs.drawing import Drawing, DrawingError
from eigen_core.runs.evaluation_log import keep_look
from eigen_core.runs.handle import Run
from eigen_core.runs.listener import Listener, Training, active_listeners
from eigen_core.task import open_data
from eigen_core.task.interface import TaskData

if TYPE_CHECKING:
    from eigen_core.workers import LocalWorkers

logger = logging.getLogger(__name__)

R = TypeVar("R")

RETRY_DELAYS_SECONDS = (1.0, 5.0)
PASSING_ERRORS = (OSError, StoreUnavailableError, WorkerLostError)
"""Errors of files, stores and workers whose cause may pass, so that a phase, which then changed nothing, is retried."""

_MINUTE = 60.0
# Prefect kills a cancelled process 30 s after SIGTERM.
_GRACE_SECONDS = 15.0


class RunPhase(Protocol):
    """A function that runs a phase of a generation, for example with retries or as a Prefect task."""

    def __call__(self, phase: str, generation: int, compute: Callable[[], R], /) -> R:
        """Return the result of `compute`, which computes the phase; it may be called again after an error."""


def with_retries(phase: str, generation: int, compute: Callable[[], R]) -> R:
    """Call `compute`, and again after each of `RETRY_DELAYS_SECONDS` if it raises `PASSING_ERRORS`. See `RunPhase`."""
    for seconds in RETRY_DELAYS_SECONDS:
        try:
            return compute()
        except PASSING_ERRORS as error:
            kind = type(error).__name__
            logger.warning(
                "Phase %s of generation %d failed and is retried in %.0f s (%s: %s).",
                *(phase, generation, seconds, kind, error),
            )
            time.sleep(seconds)
    return compute()


def train_run(
    config: Config,
    run: Run,
    *,
    run_phase: RunPhase = with_retries,
    listeners: Sequence[Listener] = (),
    stop_requests: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
) -> bool:
    """Train a run until it has `config.generations` generations, from its newest checkpoint if there is one.

    Args:
        config: configuration of the run.
        run: the run, which is created if it does not exist; `Run.of(config, name)` names it.
        run_phase: calls each phase, by default with retries.
        listeners: receive the training's events, in addition to the listener of `observed_by`.
        stop_requests: exceptions by which a user stops the training; a generation that is computed but not yet in a
            checkpoint is saved first.

    Returns:
        True if the run was incomplete and is now complete; False if it was complete, and nothing was trained.

    Raises:
        InputError: data, store or run cannot be used with this configuration.
        RunTooLargeError: the run does not fit into memory or onto the disk; nothing was changed.
        MemoryGuardError: the memory guard has aborted the training; its report is in the run's folder.
        StoreUnavailableError: the store does not answer, or uploads did not end within `checkpoint.finish_seconds`.
        LeaseLostError: another process has taken the run over.
    """
    tune_allocator()
    listeners = (*listeners, *active_listeners())
    with computing_threads(config.threads), MemoryWatch(config, run.location, listeners) as watch:
        try:
            with watch.guard.out_of_memory_reported():
                return _Trainer(config, run, watch, listeners, run_phase, stop_requests).train()
        except MemoryGuardError as error:
            watch.report_abort(error)
            raise


@dataclass(frozen=True)
class _Trainer:
    config: Config
    run: Run
    watch: MemoryWatch
    listeners: Sequence[Listener]
    run_phase: RunPhase
    stop_requests: tuple[type[BaseException], ...]

    def send(self, event: Callable[[Listener], None]) -> None:
        for listener in self.listeners:
            event(listener)

    def train(self) -> bool:
        with self.prepared() as training:
            self.send(lambda listener: listener.prepared(training))
            if self.run.is_complete(self.config, training.state.generation):
                self.upload(training)
                return False
            self.run_generations(training)
        return True

    @contextmanager
    def prepared(self) -> Iterator[Training]:
        """Read the data, check that the run fits this machine, lock the run, and load its newest generation."""
        config, guard, run = self.config, self.watch.guard, self.run
        generation = run.refresh().generation + 1
        self.send(lambda listener: listener.chosen(generation))
        data = open_data(config)
        plan = require_fit(config, data, run.name)
        self.watch.set_plan(plan)
        with ExitStack() as exits:
            workers = exits.enter_context(local_workers(config))
            # Before the run is created: this refuses a configuration that cannot be trained.
            with guard.phase("start", generation):
                state = phases.start_training(config, data.content)
            self.watch.watch_state(state)
            logger.info("data: %s", data.size)
            logger.info("plan: %s", plan.sentence())
            exits.enter_context(computed_by_workers(run.name, state, data, workers))
            run.begin(config)
            session = exits.enter_context(open_session(run.location, config.checkpoint))
            # Another process may have trained the run until now.
            if run.refresh().newest is not None:
                with guard.phase("resume", generation):
                    loaded = session.load_newest(snapshot_form(state), partial(restore, state))
                if loaded is not None:
                    logger.info("resume: after generation %d, read from %s", state.generation, session.directory.path)
            # Only now: a request that was refused, for example for other data, must not replace the recorded one.
            run.keep_request(config)
            yield Training(run, state, session, guard, plan, data)

    def run_generations(self, training: Training) -> None:
        state, session = training.state, training.session
        left = range(state.generation + 1, self.config.generations + 1)
        logger.info(
            "begin: %s on %s, run directory %s, store %s",
            f"generations {left[0]} to {left[-1]}" if left else "plots and holdout",
            state.executor,
            session.directory.path,
            session.location.store.url,
        )
        try:
            with _Plots(self, training) as plots:
                self.send(lambda listener: listener.begun(training))
                for generation in left:
                    self.run_generation(training, generation, plots)
                if not left:
                    plots.prepare(state.generation)
                    plots.begin(state.generation)
                result = self.hold_out(training, plots)
        except MemoryGuardError:
            self.upload_before_end(training)
            raise
        except self.stop_requests:
            self.upload_before_end(training, _GRACE_SECONDS)
            raise
        self.upload(training)
        self.send(lambda listener: listener.completed(training, result))

    def run_generation(self, training: Training, generation: int, plots: "_Plots") -> None:
        state, session = training.state, training.session
        exchanged_before = state.executor.exchanged_bytes
        every = self.config.reporting.plot_every
        is_drawn = generation == self.config.generations or (every > 0 and generation % every == 0)
        if is_drawn:
            plots.prepare(generation)

        def timed(phase: str, compute: Callable[[TrainingState], list[str]]) -> float:
            plots.keep_if_drawn()
            started = time.perf_counter()
            self.phase(training, phase, generation, partial(compute, state))
            return time.perf_counter() - started

        measured: dict[str, Any] = {
            "evaluate_seconds": timed("evaluate", _evaluate),
            "train_seconds": timed("train", _train),
            "evolve_seconds": timed("evolve", _evolve),
        }
        release_free_memory()
        measured["rss_bytes"] = training.guard.sample().host
        measured["exchanged_bytes"] = state.executor.exchanged_bytes - exchanged_before
        self.record_telemetry(state, generation, measured)
        try:
            measured["checkpoint_seconds"] = timed("checkpoint", partial(_checkpoint, session=session))
        except self.stop_requests:
            saved = session.save_before_end(*_parts(state))
            if saved is not None:
                logger.info("checkpoint %d, before the end: %s", state.generation, _saved_sentence(saved))
            self.send(lambda listener: listener.checkpointed(training))
            raise
        telemetry = self.record_telemetry(state, generation, measured)
        self.send(lambda listener: listener.checkpointed(training))
        if is_drawn:
            plots.begin(generation)
        self.send(lambda listener: listener.generation_finished(state.history[-1], telemetry))

    def phase(self, training: Training, phase: str, generation: int, compute: Callable[[], list[str]]) -> None:
        """Run a phase by `run_phase`; each attempt runs under the memory guard, and logs what `compute` returns."""
        self.send(lambda listener: listener.phase_started(generation, phase))
        self.run_phase(phase, generation, partial(_guarded, training.guard, phase, generation, compute))

    def record_telemetry(self, state: TrainingState, generation: int, measured: Mapping[str, Any]) -> Telemetry:
        ended = self.watch.phases_of(generation)
        peak = max(phase.peak_bytes for phase in ended)
        telemetry = Telemetry(generation=generation, rss_peak_bytes=peak, phases=ended, **measured)
        record_telemetry(state, telemetry)
        return telemetry

    def hold_out(self, training: Training, plots: "_Plots") -> HoldoutResult | None:
        """Play the holdout episodes, if there are any, while the last plots are drawn; return the result.

        The result is saved after the plots: it completes the run, and resuming a complete run draws no plots.
        """
        state = training.state
        result: HoldoutResult | None = None

        def compute() -> list[str]:
            nonlocal result
            result = phases.hold_out(state)
            if result is None:
                return []
            return [
                f"{len(result.slices)} episodes",
                f"champion's reward {result.champion_reward:.2f}",
                f"random agents' {result.random_reward:.2f}",
            ]

        if self.config.has_holdout:
            self.log_evaluation(training)
            self.phase(training, "holdout", state.generation, compute)
        plots.keep()
        if result is not None:
            training.session.keep_holdout(state.generation, result.model_dump(mode="json"))
        return result

    def log_evaluation(self, training: Training) -> None:
        """Record in the store's evaluation log, in advance, that the champion is evaluated on the holdout days."""
        days, champion = training.state.task.holdout_days, training.state.champion
        if days is None or champion is None:
            return
        try:
            store = open_store(self.config.checkpoint.store)
            keep_look(store, self.run.name, self.config, days, champion.weights[None])
        except StoreUnavailableError as error:
            logger.warning("The holdout of run '%s' is not in the evaluation log: %s", self.run.name, error)

    def upload(self, training: Training, seconds: float | None = None) -> None:
        """Wait until all files are in the bucket, at most `seconds`; None: `checkpoint.finish_seconds`."""
        if training.session.uploads() is None:
            return
        self.send(lambda listener: listener.phase_started(training.state.generation, "upload"))
        training.session.finish(seconds)

    def upload_before_end(self, training: Training, seconds: float | None = None) -> None:
        """Wait for the uploads of a training that ends early; files that are not in the bucket then stay here."""
        try:
            self.upload(training, seconds)
        except StoreUnavailableError as error:
            logger.warning("Run '%s' is not all in the store: resume it here for the rest. %s", self.run.name, error)


class _Plots(AbstractContextManager["_Plots"]):
    """Draws the plots of a training in another process during the next generation; a context manager.

    If plots cannot be drawn, a warning is logged and the training continues.
    """

    def __init__(self, run: _Trainer, training: Training) -> None:
        self._run = run
        self._training = training
        self._drawing: Drawing | None = None
        # The generation after which the plots are drawn; None: `begin` has not been called.
        self._generation: int | None = None

    def __exit__(self, *error: object) -> None:
        if self._drawing is not None:
            self._drawing.stop()

    def prepare(self, generation: int) -> None:
        """Save the plots that are being drawn, if any, and start the process that will draw those of `generation`."""
        self.keep()
        try:
            self._drawing = Drawing()
        except OSError as error:
            _warn_of_plots(generation, error)

    def begin(self, generation: int) -> None:
        if self._drawing is not None:
            self._generation, state = generation, self._training.state
            self._drawing.begin(state.history, state.telemetry, state.learner.curves)

    def keep_if_drawn(self) -> None:
        if self._drawing is not None and self._generation is not None and self._drawing.is_done():
            self.keep()

    def keep(self) -> None:
        """Wait for the plots that are being drawn, if any, and save them in the run."""
        drawing, generation, session = self._drawing, self._generation, self._training.session
        if drawing is None or generation is None:
            return
        paths: list[Path] = []

        def compute() -> list[str]:
            paths.extend(drawing.write(session.directory.plots))
            session.upload_files(paths)
            written = size(sum(path.stat().st_size for path in paths))
            return [f"{len(paths)} plots", written, f"in {session.directory.plots}"]

        try:
            self._run.phase(self._training, "plot", generation, compute)
        except (DrawingError, OSError) as error:
            _warn_of_plots(generation, error)
        else:
            self._run.send(lambda listener: listener.plotted(generation, paths))
        finally:
            drawing.stop()
            self._drawing = self._generation = None


def _warn_of_plots(generation: int, error: Exception) -> None:
    logger.warning("generation %d has no new plots, and training continues: %s", generation, error)


@contextmanager
def local_workers(config: Config) -> "Iterator[LocalWorkers | None]":
    """Run worker processes for a run on this machine during the block; yield None if its settings need none here."""
    device = resolve_device(config.device).type
    count = local_worker_count(config, "cuda" if device == "cuda" else "cpu")
    if not count:
        yield None
        return
    # Imported here: most trainings need none, and it takes as long as a small generation.
    from eigen_core.workers import LocalWorkers

    gpus = visible_gpus() if device == "cuda" else ()
    # This process computes on the first GPU.
    with LocalWorkers(count, (*gpus[1:], *gpus[:1])) as workers:
        yield workers


@contextmanager
def computed_by_workers(run: str, state: TrainingState, data: TaskData, local: "LocalWorkers | None") -> Iterator[None]:
    """Let `local` workers, or else those of the setting `scheduler`, compute the agents; without both, do nothing."""
    scheduler = state.config.scheduler if local is None else local.address
    if scheduler is None:
        yield
        return
    from eigen_core.workers import WorkerExecutor

    before_phase = (lambda: None) if local is None else local.start_missing
    with WorkerExecutor(run, state.config, data.content, state.task.fingerprint, scheduler, before_phase) as executor:
        state.executor = executor
        yield


def _guarded(guard: MemoryGuard, phase: str, generation: int, compute: Callable[[], list[str]]) -> None:
    with guard.phase(phase, generation):
        details = compute()
    usage = guard.phases[-1]
    seconds = usage.ended - usage.began
    # A fixed number of digits, for scripts that read the log.
    details += [f"{seconds:.2f} s" if seconds < _MINUTE else duration(seconds), size(usage.peak_bytes)]
    if usage.device_reserved_peak:
        details.append(f"GPU {size(usage.device_reserved_peak)}")
    logger.info("%s %d: %s", phase, generation, ", ".join(details))


def _evaluate(state: TrainingState) -> list[str]:
    result = phases.evaluate(state)
    fitness, validations = result.fitness, result.validations
    return [
        f"{len(fitness)} agents x {state.config.evaluation.slices} training episodes",
        f"mean fitness {fitness.mean():.2f}",
        f"best {fitness.max():.2f} (agent {fitness.argmax()})",
        f"best validation {validations.max():.2f} (agent {validations.argmax()})",
        in_words(result.statistics),
        f"{state.replay.size:,} transitions in the replay",
    ]


def _train(state: TrainingState) -> list[str]:
    statistics = phases.train(state)
    if statistics is None:
        size, least = state.replay.size, state.config.replay.minimum
        waits = f"{size:,} transitions in the replay, learning begins at replay.minimum {least:,}"
        return ["no agent learned", *([waits] if size < least else [])]
    return [
        f"{statistics['gradient_steps']:.0f} gradient steps an agent",
        *(f"{curve.label} {statistics[curve.name]:.4g}" for curve in state.learner.curves),
    ]


def _evolve(state: TrainingState) -> list[str]:
    record = phases.evolve(state)
    return [
        *(f"{count} {origin}" for origin, count in Counter(lineage.origin for lineage in record.descent).items()),
        *(f"{name.replace('_', ' ')} {value:.3g}" for name, value in record.evolution.items()),
        f"champion {record.champion_score:.2f} "
        f"(agent {record.champion_agent} of generation {record.champion_generation})",
        f"weights {record.weights_sha256[:12]}",
    ]


def _checkpoint(state: TrainingState, session: RunSession) -> list[str]:
    saved = session.save(*_parts(state))
    uploads = session.uploads()
    return [_saved_sentence(saved), *([] if uploads is None else [str(uploads)])]


def _parts(state: TrainingState) -> tuple[Snapshot, dict[str, JsonValue]]:
    return snapshot(state), stored_values(state.config)


def _saved_sentence(saved: SavedGeneration) -> str:
    return f"{size(saved.written_bytes)} written, {size(saved.ring_bytes)} of them new transitions"
