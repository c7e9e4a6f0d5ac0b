"""The checkpoint phase as a Prefect task."""

from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunDirectory
from eigen_core.generation import TrainingState, snapshot
from tasks.phase import phase_task


@phase_task("checkpoint")
def checkpoint(state: TrainingState, run: RunDirectory, generation: int) -> int:
    """Save the completed `generation`, remove those that need not stay, and return the bytes written."""
    manifest = run.save(snapshot(state))
    settings = state.config.checkpoint
    removed = run.apply_retention(settings.keep_last, settings.keep_every, manifest.champion_generation)
    written = sum(entry.bytes for entry in manifest.files)
    get_run_logger().info(
        "generation %d: %.1f MB in %d files at %s; removed %s",
        generation,
        written / 1e6,
        len(manifest.files) + 1,
        run.path,
        ", ".join(map(str, removed)) or "none",
    )
    return written
