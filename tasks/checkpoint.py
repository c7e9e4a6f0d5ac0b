"""The checkpoint phase as a Prefect task."""

from prefect.logging import get_run_logger
from pydantic import JsonValue

from eigen_core.checkpoint import Compression, RunSession, Saved, Snapshot
from eigen_core.config.stored import stored_values
from eigen_core.generation import TrainingState, remember_saved, snapshot
from eigen_core.memory import MemoryGuard
from eigen_core.units import size
from tasks.phase import phase_task, took


@phase_task("checkpoint")
def checkpoint(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    """Commit the completed `generation` and send it on its way to a store elsewhere."""
    with guard.phase("checkpoint", generation):
        saved = session.save(*_parts(state))
    remember_saved(state, lambda: session.directory.load_tensors(saved.manifest, "population"))
    uploads = session.uploads()
    get_run_logger().info(
        "checkpoint %d: %s%s, %s",
        generation,
        saved_sentence(saved),
        "" if uploads is None else f", {uploads}",
        took(guard, "checkpoint", generation),
    )


def checkpoint_before_end(state: TrainingState, session: RunSession) -> None:
    """Commit a completed generation on this machine, if that has not been done, in a process that was asked to stop."""
    saved = session.save_before_end(*_parts(state))
    if saved is not None:
        get_run_logger().info("checkpoint %d, before the end: %s", state.generation, saved_sentence(saved))


def _parts(state: TrainingState) -> tuple[Snapshot, dict[str, JsonValue], Compression]:
    config = state.config
    return snapshot(state), stored_values(config), config.replay.compression


def saved_sentence(saved: Saved) -> str:
    """Return what a checkpoint wrote, and what compression saved on the replay's new transitions."""
    return (
        f"{size(saved.written_bytes)} written, {size(saved.ring_bytes)} of them new transitions "
        f"(compression saved {100 * saved.ring_share_saved:.0f} %)"
    )
