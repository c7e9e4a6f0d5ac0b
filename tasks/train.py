"""The train phase as a Prefect task."""

from prefect.logging import get_run_logger

from eigen_core import generation as phases
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from tasks.phase import phase_task, took


@phase_task("train")
def train(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Let every agent of `generation` learn from the replay, once that holds enough transitions."""
    with guard.phase("train", generation):
        statistics = phases.train(state)
    logger = get_run_logger()
    if statistics is None:
        logger.info(
            "train %d: nothing to learn from yet, %s transitions of the %s that learning begins with, %s",
            generation,
            f"{state.transitions:,}",
            f"{state.config.replay.minimum:,}",
            took(guard, "train", generation),
        )
        return
    logger.info(
        "train %d: %d gradient steps an agent, critic loss %.4g, actor loss %.4g, gradient norms %.3g and %.3g, %s",
        generation,
        statistics.gradient_steps,
        statistics.critic_loss,
        statistics.actor_loss,
        statistics.critic_gradient_norm,
        statistics.actor_gradient_norm,
        took(guard, "train", generation),
    )
