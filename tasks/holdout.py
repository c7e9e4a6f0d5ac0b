"""The holdout days as a Prefect task: played once, when a run has all its generations."""

from prefect.logging import get_run_logger

from eigen_core.generation import TrainingState, hold_out
from eigen_core.memory import MemoryGuard
from eigen_core.records import HoldoutResult
from tasks.phase import phase_task


@phase_task("holdout")
def holdout(state: TrainingState, guard: MemoryGuard, generation: int) -> HoldoutResult | None:
    """Play the champion of `generation` and random agents on the holdout days; None without holdout days."""
    with guard.phase("holdout", generation):
        result = hold_out(state)
    if result is not None:
        get_run_logger().info(
            "generation %d: on the holdout days the champion earns %.4g, random agents %.4g",
            generation,
            result.champion_reward,
            result.random_reward,
        )
    return result
