"""What Prefect costs: generations of the training flow against the same generations as plain functions."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.isolated_prefect import isolated_prefect
from benchmarks.measure import seconds_of
from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.records import GenerationRecord, Telemetry
from eigen_core.run import train_run
from eigen_core.training.listener import Listener, observed_by

if TYPE_CHECKING:
    from eigen_core.training.goodput import Start
    from eigen_core.training.listener import Training

_GENERATIONS = 6
_SHORT = ("learner.gradient_steps=1", "evaluation.slices=2", "evaluation.validation_slices=2")
_CASES: tuple[tuple[str, tuple[str, ...], int], ...] = (("short generations", _SHORT, 3), ("quickstart", (), 2))
"""Name, settings and turns that count."""


@dataclass(frozen=True)
class Course:
    """How one run went.

    Attributes:
        generations: time of each generation, from the end of the one before it (seconds).
        before: time from the call to the first generation (seconds).
        after: time from the end of the last generation to the return (seconds).
        weights: hash of the last population.
    """

    generations: tuple[float, ...]
    before: float
    after: float
    weights: str


class Clock(Listener):
    """Notes when generations end."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ends: list[float] = []
        self.weights = ""

    def begun(self, training: "Training", starts: "Sequence[Start]") -> None:  # noqa: ARG002 - a listener's interface
        """Note when the first generation begins."""
        self.ends = [time.perf_counter()]

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:  # noqa: ARG002 - as above
        """Note when a generation ends."""
        self.ends.append(time.perf_counter())
        self.weights = record.weights_sha256

    def course(self) -> Course:
        """Return what was noted; call it when the run has returned."""
        seconds = tuple(np.diff(self.ends).tolist())
        return Course(seconds, self.ends[0] - self.began, time.perf_counter() - self.ends[-1], self.weights)


def run() -> Section:
    """Run the same generations by turns, as plain functions and as the flow."""
    rows = []
    with isolated_prefect():
        importing = seconds_of(_import_flow)
        with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as store:
            _take_turns(_config(_SHORT, f"{store}/warm-up"), 1)
            for name, assignments, turns in _CASES:
                plain, flow = _take_turns(_config(assignments, f"{store}/{name}"), turns)
                rows.append([name, *_cells(plain, flow)])
    return Section(
        title="Orchestration",
        method=f"{_GENERATIONS} generations of preset quickstart, or of one with 1 gradient step and 2 episodes of a "
        "kind, on the bundled prices with checkpoints and without plots, as the Prefect flow and by "
        "`eigen_core.run.train_run` alone, 2 or 3 times by turns after a warm-up; a "
        "generation's time runs from the end of the one before it, and what is shown is the mean over the generations "
        "of the least over the turns.",
        columns=(
            "seconds",
            "plain generation",
            "flow generation",
            "difference",
            "share",
            "flow: start",
            "flow: end",
            "same weights",
        ),
        rows=rows,
        remarks=(
            f"Beside that, once a process: {importing:.1f} s to import the flow. The goal is a difference of at most "
            "0.5 s or 2 %.",
        ),
    )


def _import_flow() -> None:
    import flows.training  # noqa: F401 - the import is what is measured


def _config(assignments: Sequence[str], store: str) -> Config:
    return load_config(
        "quickstart",
        [*assignments, "reporting.plot_every=0", f"generations={_GENERATIONS}", f"checkpoint.store={store}"],
    )


def _take_turns(config: Config, turns: int) -> tuple[list[Course], list[Course]]:
    plain, flow = [], []
    for turn in range(turns):
        plain.append(run_plainly(config, f"plain-{turn}"))
        flow.append(run_as_flow(config, f"flow-{turn}"))
    return plain, flow


def _cells(plain: Sequence[Course], flow: Sequence[Course]) -> list[str]:
    without, within = (_generation_seconds(courses) for courses in (plain, flow))
    difference = within - without
    return [
        f"{without:.3f}",
        f"{within:.3f}",
        f"{difference:+.3f}",
        f"{100 * difference / without:+.1f} %",
        f"{median(course.before for course in flow):.2f}",
        f"{median(course.after for course in flow):.2f}",
        "yes" if len({course.weights for course in (*plain, *flow)}) == 1 else "no",
    ]


def _generation_seconds(courses: Sequence[Course]) -> float:
    """Mean over the generations of the least over the courses (seconds)."""
    return float(np.min([course.generations for course in courses], axis=0).mean())


def run_plainly(config: Config, name: str) -> Course:
    """Train a new run without Prefect."""
    clock = Clock()
    train_run(config, name, listeners=[clock])
    return clock.course()


def run_as_flow(config: Config, name: str) -> Course:
    """Train a new run by the flow; Prefect must be ready."""
    from flows.train import train_flow

    clock = Clock()
    with observed_by(clock):
        train_flow(config, name)
    return clock.course()
