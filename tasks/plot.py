"""The plots of a run as a Prefect task. A picture that cannot be drawn must not stop a training: it is not retried."""

from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunDirectory
from eigen_core.generation import TrainingState
from eigen_core.reporting.plots import write_plots
from tasks.artifacts import publish_plots
from tasks.phase import phase_task


@phase_task("plot", retried=False)
def plot(state: TrainingState, run: RunDirectory, generation: int) -> None:
    """Draw all figures of the run up to `generation` into its folder of plots, and show them."""
    paths = write_plots(state.history, state.telemetry, run.plots)
    publish_plots(run.name, state.history, paths)
    get_run_logger().info("generation %d: %d plots in %s", generation, len(paths), run.plots)
