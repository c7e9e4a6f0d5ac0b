"""The evolve phase as a Prefect task."""

from collections import Counter

from prefect.logging import get_run_logger

from eigen_core import generation as phases
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from tasks.phase import phase_task, took


@phase_task("evolve")
def evolve(state: TrainingState, guard: MemoryGuard, generation: int) -> None:
    """Breed the next population and complete `generation`."""
    with guard.phase("evolve", generation):
        record = phases.evolve(state)
    origins = Counter(lineage.origin for lineage in record.descent)
    get_run_logger().info(
        "evolve %d: %s, mutation rate %.3g (std %.3g), champion %.2f (agent %d of generation %d), weights %s, %s",
        generation,
        ", ".join(f"{count} {origin}" for origin, count in origins.items()),
        record.mutation_rate,
        record.mutation_std,
        record.champion_validation,
        record.champion_agent,
        record.champion_generation,
        record.weights_sha256[:12],
        took(guard, "evolve", generation),
    )
