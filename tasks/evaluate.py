"""The evaluate phase as a Prefect task."""

from prefect.logging import get_run_logger

from eigen_core import generation as phases
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from tasks.phase import phase_task


@phase_task("evaluate")
def evaluate(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Play the episodes of `generation` and commit fitness, validation, champion and transitions."""
    with guard.phase("evaluate", generation):
        result = phases.evaluate(state)
    get_run_logger().info(
        "generation %d: fitness best %.2f, mean %.2f; validation best %.2f; %.1f trades an episode, %.0f %% won; "
        "%s transitions in the replay",
        generation,
        result.fitness.max(),
        result.fitness.mean(),
        result.validations.max(),
        result.trading.trades,
        100.0 * result.trading.win_rate,
        f"{state.transitions:,}",
    )
