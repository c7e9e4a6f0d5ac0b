"""Generations as the training flow runs them, without Prefect: the same functions, checkpoints and plots.

A flow lets its plots be drawn beside the next generation; here they are waited for.
"""

import psutil

from benchmarks.measure import seconds_of
from eigen_core.checkpoint import RunDirectory
from eigen_core.generation import TrainingState, evaluate, evolve, record_telemetry, snapshot, train
from eigen_core.memory import peak_resident_bytes, release_free_memory, reset_peak
from eigen_core.records import Telemetry
from eigen_core.reporting.drawing import Drawing

PHASES = ("evaluate", "train", "evolve", "checkpoint", "plot")


def run_generation(state: TrainingState, directory: RunDirectory, plotted: bool) -> dict[str, float]:
    """Run the next generation, commit it to `directory`, plot it if it is to be `plotted`.

    Returns the time of each of `PHASES` (seconds); 0 for `plot` if it is not plotted.
    """
    reset_peak()
    seconds = {
        "evaluate": seconds_of(lambda: evaluate(state)),
        "train": seconds_of(lambda: train(state)),
        "evolve": seconds_of(lambda: evolve(state)),
    }
    release_free_memory()
    telemetry = Telemetry(
        generation=state.generation,
        evaluate_seconds=seconds["evaluate"],
        train_seconds=seconds["train"],
        evolve_seconds=seconds["evolve"],
        rss_bytes=psutil.Process().memory_info().rss,
        rss_peak_bytes=peak_resident_bytes(),
    )
    record_telemetry(state, telemetry)
    seconds["checkpoint"] = seconds_of(lambda: _save(state, directory))
    record_telemetry(state, telemetry.model_copy(update={"checkpoint_seconds": seconds["checkpoint"]}))
    seconds["plot"] = 0.0
    if plotted:
        seconds["plot"] = seconds_of(lambda: _plot(state, directory))
    return seconds


def _plot(state: TrainingState, directory: RunDirectory) -> None:
    drawing = Drawing()
    drawing.begin(state.history, state.telemetry, state.learner.curves)
    drawing.write(directory.plots)
    drawing.stop()


def _save(state: TrainingState, directory: RunDirectory) -> None:
    directory.save(snapshot(state))
    settings = state.config.checkpoint
    directory.clean(settings.keep_last, settings.keep_every)
