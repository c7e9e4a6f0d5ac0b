"""The phases of a generation, and the holdout episodes after the last, as Prefect tasks.

Nothing is cached or serialized: the training state is passed by reference. Each phase runs under the memory guard and
logs one line.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from pydantic import JsonValue

from eigen_core import generation as phases
from eigen_core.checkpoint import Compression, LeaseLostError, RunSession, Saved, Snapshot
from eigen_core.config.stored import stored_values
from eigen_core.errors import InputError, SchedulerLostError
from eigen_core.generation import TrainingState, hold_out, remember_saved, snapshot
from eigen_core.memory import MemoryGuard, MemoryGuardError
from eigen_core.profiling import profiled
from eigen_core.records import HoldoutResult
from eigen_core.reporting import in_words
from eigen_core.reporting.drawing import Drawing
from eigen_core.units import duration, size

P = ParamSpec("P")
R = TypeVar("R")

_MINUTE = 60.0
_RETRIES = 2
_RETRY_DELAYS_SECONDS = [1.0, 5.0]
# The same computation on the same state gives the same error or takes the same memory, and a lease or a scheduler that
# is lost stays lost: trying again only costs time.
_NOT_WORTH_RETRYING = (InputError, FloatingPointError, LeaseLostError, MemoryGuardError, SchedulerLostError)


def _worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a failed phase may succeed when it is tried again. If so, a warning says that it will be."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, _NOT_WORTH_RETRYING):
        return False
    get_run_logger().warning(
        "%s failed (%s: %s) and is tried again.", task_run.name or task.name, type(error).__name__, error
    )
    return True


def _phase_task(phase: str, *, retried: bool = True) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator that makes a phase a Prefect task whose runs are named `<phase>-<generation>`.

    The function must have a parameter `generation`.
    """
    return task(
        name=phase,
        task_run_name=_run_name(phase),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=_RETRIES if retried else 0,
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=_worth_retrying if retried else None,
    )


def run_name(phase: str, generation: int) -> str:
    """Return the name of a phase's task run, for example `evaluate-007`."""
    return _run_name(phase).format(generation=generation)


def _run_name(phase: str) -> str:
    return f"{phase}-{{generation:03d}}"


@contextmanager
def _guarded(guard: MemoryGuard, phase: str, generation: int) -> Iterator[list[str]]:
    """Run the block as a phase under the guard; then log what it has put into the list, its time and its memory."""
    facts: list[str] = []
    with guard.phase(phase, generation), profiled(phase, generation):
        yield facts
    usage = next(usage for usage in reversed(guard.usage_of(generation)) if usage.phase == phase)
    seconds = usage.ended - usage.began
    # A fixed number of digits, for scripts that read the log.
    facts += [f"{seconds:.2f} s" if seconds < _MINUTE else duration(seconds), size(usage.peak_bytes)]
    if usage.device_reserved_peak:
        facts.append(f"GPU {size(usage.device_reserved_peak)}")
    get_run_logger().info("%s %d: %s", phase, generation, ", ".join(facts))


@_phase_task("evaluate")
def evaluate(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Play the episodes of `generation` and commit fitness, validation, champion and transitions."""
    with _guarded(guard, "evaluate", generation) as facts:
        result = phases.evaluate(state)
        fitness, validations = result.fitness, result.validations
        facts += [
            f"{len(fitness)} agents x {state.config.evaluation.slices} slices",
            f"mean fitness {fitness.mean():.2f}",
            f"best {fitness.max():.2f} (agent {fitness.argmax()})",
            f"best validation {validations.max():.2f} (agent {validations.argmax()})",
            in_words(result.statistics),
            f"{state.transitions:,} transitions in the replay",
        ]


@_phase_task("train")
def train(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Let every agent of `generation` learn from the replay, once that holds enough transitions."""
    with _guarded(guard, "train", generation) as facts:
        statistics = phases.train(state)
        if statistics is None:
            facts += [
                "nothing to learn from yet",
                f"{state.transitions:,} transitions of the {state.config.replay.minimum:,} that learning begins with",
            ]
        else:
            facts += [
                f"{statistics['gradient_steps']:.0f} gradient steps an agent",
                *(f"{curve.label} {statistics[curve.name]:.4g}" for curve in state.learner.curves),
            ]


@_phase_task("evolve")
def evolve(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Breed the next population and complete `generation`."""
    with _guarded(guard, "evolve", generation) as facts:
        record = phases.evolve(state)
        facts += [
            *(f"{count} {origin}" for origin, count in Counter(lineage.origin for lineage in record.descent).items()),
            *(f"{name.replace('_', ' ')} {value:.3g}" for name, value in record.evolution.items()),
            f"champion {record.champion_validation:.2f} "
            f"(agent {record.champion_agent} of generation {record.champion_generation})",
            f"weights {record.weights_sha256[:12]}",
        ]


@_phase_task("checkpoint")
def checkpoint(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    """Commit the completed `generation` and send it on its way to a store elsewhere."""
    with _guarded(guard, "checkpoint", generation) as facts:
        saved = session.save(*_parts(state))
        facts.append(_saved_sentence(saved))
        uploads = session.uploads()
        if uploads is not None:
            facts.append(str(uploads))
    remember_saved(state, lambda: session.directory.load_tensors(saved.manifest, "population"))


def checkpoint_before_end(state: TrainingState, session: RunSession) -> None:
    """Commit a completed generation on this machine, if that has not been done, in a process that is stopped."""
    saved = session.save_before_end(*_parts(state))
    if saved is not None:
        get_run_logger().info("checkpoint %d, before the end: %s", state.generation, _saved_sentence(saved))


def _parts(state: TrainingState) -> tuple[Snapshot, dict[str, JsonValue], Compression]:
    return snapshot(state), stored_values(state.config), state.config.replay.compression


def _saved_sentence(saved: Saved) -> str:
    """Return what a checkpoint wrote, and what compression saved on the replay's new transitions."""
    return (
        f"{size(saved.written_bytes)} written, {size(saved.ring_bytes)} of them new transitions "
        f"(compression saved {100 * saved.ring_share_saved:.0f} %)"
    )


@_phase_task("plot", retried=False)
def plot(drawing: Drawing, session: RunSession, guard: MemoryGuard, generation: int) -> list[Path]:
    """Keep the figures of the run up to `generation`, which another process draws, in the store; return their paths.

    A picture that cannot be drawn must not stop a training: it is not tried again.
    """
    folder = session.directory.plots
    with _guarded(guard, "plot", generation) as facts:
        with session.replacing_plots() as paths:
            paths += drawing.write(folder)
        bytes_written = sum(path.stat().st_size for path in paths)
        facts += [f"{len(paths)} plots", size(bytes_written), f"in {folder}"]
    return paths


@_phase_task("holdout")
def holdout(state: TrainingState, guard: MemoryGuard, generation: int) -> HoldoutResult | None:
    """Play the champion of `generation` and random agents in the holdout episodes; None without any."""
    with _guarded(guard, "holdout", generation) as facts:
        result = hold_out(state)
        if result is not None:
            facts += [
                f"{len(result.slices)} episodes",
                f"champion's reward {result.champion_reward:.2f}",
                f"random agents' {result.random_reward:.2f}",
            ]
    return result
