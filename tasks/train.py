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
        "train %d: %d gradient steps an agent, %s, %s",
        generation,
        statistics["gradient_steps"],
        ", ".join(f"{curve.label} {statistics[curve.name]:.4g}" for curve in state.learner.curves),
        took(guard, "train", generation),
    )
