"""The plots of a run as a Prefect task. A picture that cannot be drawn must not stop a training: it is not retried."""

from prefect.logging import get_run_logger

from eigen_core.checkpoint import RunSession
from eigen_core.generation import TrainingState
from eigen_core.memory import MemoryGuard
from eigen_core.reporting.plots import write_plots
from tasks.artifacts import link_to_run, publish_plots
from tasks.phase import phase_task


@phase_task("plot", retried=False)
def plot(state: TrainingState, session: RunSession, guard: MemoryGuard, generation: int) -> None:
    """Draw all figures of the run up to `generation` into its folder of plots, keep them in the store and show them."""
    folder = session.directory.plots
    with guard.phase("plot", generation):
        paths = write_plots(state.history, state.telemetry, folder)
        session.keep_plots(paths)
        publish_plots(session.name, state.history, paths, link_to_run(session.place.store.url, session.name))
    get_run_logger().info("generation %d: %d plots in %s", generation, len(paths), folder)
