"""The evaluate phase as a Prefect task."""

from prefect.logging import get_run_logger

from eigen_core import generation as phases
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from eigen_core.reporting import in_words
from tasks.phase import phase_task, took


@phase_task("evaluate")
def evaluate(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Play the episodes of `generation` and commit fitness, validation, champion and transitions."""
    with guard.phase("evaluate", generation):
        result = phases.evaluate(state)
    get_run_logger().info(
        "evaluate %d: %d agents x %d slices, mean fitness %.2f, best %.2f (agent %d), best validation %.2f (agent %d), "
        "%s, %s transitions in the replay, %s",
        generation,
        len(result.fitness),
        state.config.evaluation.slices,
        result.fitness.mean(),
        result.fitness.max(),
        result.fitness.argmax(),
        result.validations.max(),
        result.validations.argmax(),
        in_words(result.statistics),
        f"{state.transitions:,}",
        took(guard, "evaluate", generation),
    )
