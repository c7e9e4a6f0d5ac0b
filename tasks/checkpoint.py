"""The checkpoint phase as a Prefect task."""

from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunSession, Saved
from eigen_core.generation import TrainingState, remember_saved, snapshot
from eigen_core.memory import MemoryGuard
from tasks.phase import phase_task


@phase_task("checkpoint")
def checkpoint(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    """Commit the completed `generation` and send it on its way to a store elsewhere."""
    config = state.config
    with guard.phase("checkpoint", generation):
        saved = session.save(snapshot(state), config.model_dump(mode="json"), config.replay.compression)
    remember_saved(state, lambda: session.directory.load_tensors(saved.manifest, "population"))
    get_run_logger().info("generation %d: %s in %s", generation, saved_sentence(saved), session.directory.path)
    if (uploads := session.uploads()) is not None:
        get_run_logger().info("generation %d: %s", generation, uploads)


def saved_sentence(saved: Saved) -> str:
    """Return what a checkpoint wrote, and what compression saved on the replay's new transitions."""
    share = 1.0 - saved.ring_bytes / saved.ring_raw_bytes if saved.ring_raw_bytes else 0.0
    return (
        f"{saved.written_bytes / 1e6:.1f} MB written, of them replay {saved.ring_bytes / 1e6:.1f} MB "
        f"({100 * share:.0f} % saved)"
    )
