"""The holdout days as a Prefect task: played once, when a run has all its generations."""

from prefect.logging import get_run_logger

from eigen_core.generation import TrainingState, hold_out
from eigen_core.memory import MemoryGuard
from eigen_core.records import HoldoutResult
from tasks.phase import phase_task, took


@phase_task("holdout")
def holdout(state: TrainingState, guard: MemoryGuard, generation: int) -> HoldoutResult | None:
    """Play the champion of `generation` and random agents on the holdout days; None without holdout days."""
    with guard.phase("holdout", generation):
        result = hold_out(state)
    if result is not None:
        get_run_logger().info(
            "holdout %d: %d episodes, champion's reward %.2f, random agents' %.2f, %s",
            generation,
            len(result.slices),
            result.champion_reward,
            result.random_reward,
            took(guard, "holdout", generation),
        )
    return result
