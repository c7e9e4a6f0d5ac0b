"""The plots of a run as a Prefect task. A picture that cannot be drawn must not stop a training: it is not retried."""

from pathlib import Path

from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunSession
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from eigen_core.reporting.plots import write_plots
from eigen_core.units import size
from tasks.phase import phase_task, took


@phase_task("plot", retried=False)
def plot(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> list[Path]:
    """Draw all figures of the run up to `generation`, keep them in the store and return their paths."""
    folder = session.directory.plots
    with guard.phase("plot", generation), session.replacing_plots() as paths:
        paths += write_plots(state.history, state.telemetry, folder, state.learner.curves)
    bytes_written = sum(path.stat().st_size for path in paths)
    get_run_logger().info(
        "plot %d: %d plots, %s, in %s, %s",
        generation,
        len(paths),
        size(bytes_written),
        folder,
        took(guard, "plot", generation),
    )
    return paths
