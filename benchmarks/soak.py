"""Train many quickstart generations and fit a line to the resident memory: it must not grow.

`python -m benchmarks.soak [--generations 100] [--flow]`; the exit code is 1 if it grows by more than the limit.
"""

import argparse
import gc
import tempfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.isolated_prefect import isolated_prefect
from benchmarks.plain_run import is_plotted, run_generation
from benchmarks.results import Section, keep
from eigen_core.checkpoint import RunDirectory
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import start_training
from eigen_core.market import build_panel
from eigen_core.memory import release_free_memory
from eigen_core.records import GenerationRecord, Telemetry
from eigen_core.reporting.style import BLUE, INK, figure_file, generation_axis, value_axis
from eigen_core.reporting.units import BYTES_PER_MB

LIMIT_MB = 1.0
"""Most that the resident memory may grow over 100 generations, in the second half of the run (MB)."""

_FEWEST_GENERATIONS = 10
_COPIES = 20


@dataclass(frozen=True)
class Fit:
    """A least-squares line through the second half of the samples.

    Attributes:
        first: generation that it starts with.
        slope: MB per 100 generations; error: its standard error.
        line: its values, `[generations in the second half]` (MB).
    """

    first: int
    slope: float
    error: float
    line: NDArray[np.float64]

    @classmethod
    def of(cls, megabytes: NDArray[np.float64]) -> "Fit":
        """Fit the second half of one sample a generation."""
        start = len(megabytes) // 2
        y = megabytes[start:]
        x = np.arange(start + 1, len(megabytes) + 1, dtype=np.float64)
        centred = x - x.mean()
        slope = float(centred @ y / (centred @ centred))
        line = y.mean() + slope * centred
        residual = y - line
        error = float(np.sqrt(residual @ residual / max(len(y) - 2, 1) / (centred @ centred)))
        return cls(start + 1, 100.0 * slope, 100.0 * error, line)


class Sampler:
    """A training observer that samples this process at the end of every generation.

    Attributes:
        resident: resident memory after each generation (bytes).
        objects: live tensors and figures after each generation.
        records: the last record and telemetry.
    """

    def __init__(self, progress: Progress, generations: int) -> None:
        self.resident: list[int] = []
        self.objects: list[tuple[int, int]] = []
        self.records: tuple[GenerationRecord, Telemetry] | None = None
        self._progress = progress
        self._bar = progress.add_task("generations", total=generations)

    def started(self, generation: int, generations: int) -> None:
        """Do nothing."""

    def phase_started(self, generation: int, phase: str) -> None:
        """Do nothing."""

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:
        """Sample."""
        self.objects.append(_live_objects())
        release_free_memory()
        self.resident.append(psutil.Process().memory_info().rss)
        self.records = record, telemetry
        self._progress.advance(self._bar)
        # By hand: a thread that refreshes it makes tuples, which `gc.get_objects` may look at half-made.
        self._progress.refresh()


def _live_objects() -> tuple[int, int]:
    """Count the tensors and the figures that Python still holds."""
    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    return (
        sum(issubclass(kind, torch.Tensor) for kind in kinds),
        sum(issubclass(kind, Figure) for kind in kinds),
    )


def main() -> int:
    """Train, fit, show, keep; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--generations", type=int, default=100, help="generations to train (100)")
    parser.add_argument("--flow", action="store_true", help="go through the Prefect flow, not the plain functions")
    options = parser.parse_args()
    if options.generations < _FEWEST_GENERATIONS:
        parser.error(f"a line needs at least {_FEWEST_GENERATIONS} generations")
    torch.set_num_threads(1)
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="eigen-soak-") as store,
        Progress(console=console, auto_refresh=False) as progress,
    ):
        config = load_config("quickstart", [f"generations={options.generations}", f"checkpoint.store={store}"])
        sampler = Sampler(progress, options.generations)
        (_run_as_flow if options.flow else _run_plainly)(config, sampler)
    megabytes = np.array(sampler.resident, dtype=np.float64) / BYTES_PER_MB
    fit = Fit.of(megabytes)
    name = "soakflow" if options.flow else "soak"
    picture = Path(__file__).with_name(f"{name}.png")
    _plot(picture, megabytes, fit, "the Prefect flow" if options.flow else "plain functions")
    section = _section(sampler, megabytes, fit, picture, flow=options.flow)
    section.show(console)
    keep({name: section}, ALL_SECTIONS)
    return 0 if fit.slope <= LIMIT_MB else 1


def _run_plainly(config: Config, sampler: Sampler) -> None:
    state = start_training(config, build_panel(config)[0])
    directory = RunDirectory.create(Path(config.checkpoint.store), "soak", config.model_dump(mode="json"))
    with directory.lock():
        for generation in range(1, config.generations + 1):
            run_generation(state, directory, is_plotted(state, generation))
            sampler.generation_finished(state.history[-1], state.telemetry[-1])


def _run_as_flow(config: Config, sampler: Sampler) -> None:
    with isolated_prefect():
        from flows.observer import observed_by
        from flows.train import train_flow

        with observed_by(sampler):
            train_flow(config, "soak")


def _section(sampler: Sampler, megabytes: NDArray[np.float64], fit: Fit, picture: Path, *, flow: bool) -> Section:
    middle = len(megabytes) // 2
    assert sampler.records is not None
    tensors, figures = (list(counts) for counts in zip(*sampler.objects, strict=True))
    way = (
        "through the Prefect flow on its embedded server (a process of its own, not counted)"
        if flow
        else ("through the plain functions")
    )
    rows = [
        ["resident memory (MB)", f"{megabytes[0]:.2f}", f"{megabytes[middle]:.2f}", f"{megabytes[-1]:.2f}"],
        ["live tensors", f"{tensors[0]:,}", f"{tensors[middle]:,}", f"{tensors[-1]:,}"],
        ["live figures", f"{figures[0]:,}", f"{figures[middle]:,}", f"{figures[-1]:,}"],
    ]
    return Section(
        title=f"Resident memory over {len(megabytes)} generations, {'flow' if flow else 'plain functions'}",
        method=f"{len(megabytes)} generations of preset quickstart with checkpoints and plots, {way}; sampled at each "
        "generation's end after freed memory is given back.",
        columns=("after generation", "1", f"{middle + 1}", f"{len(megabytes)}"),
        rows=rows,
        remarks=(
            f"From generation {fit.first} on a least-squares line rises by {fit.slope:+.2f} ± {fit.error:.2f} MB per "
            f"100 generations (slope and standard error); the limit is {LIMIT_MB:g}: "
            f"{'kept' if fit.slope <= LIMIT_MB else 'exceeded'}.",
            f"History and telemetry, which are meant to grow, take {_record_bytes(*sampler.records) / 1e3:.1f} kB a "
            "generation of it.",
            f"![resident memory]({picture.name})",
        ),
    )


def _record_bytes(record: GenerationRecord, telemetry: Telemetry) -> float:
    """Return what keeping one generation's records takes (bytes)."""
    values = record.model_dump_json(), telemetry.model_dump_json()
    tracemalloc.start()
    kept = [
        (GenerationRecord.model_validate_json(values[0]), Telemetry.model_validate_json(values[1]))
        for _ in range(_COPIES)
    ]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(kept)


def _plot(path: Path, megabytes: NDArray[np.float64], fit: Fit, way: str) -> None:
    generations = np.arange(1, len(megabytes) + 1)
    story = (
        f"{len(megabytes)} generations of preset quickstart through {way}: {fit.slope:+.2f} ± {fit.error:.2f} MB per "
        f"100 generations since generation {fit.first}."
    )
    with figure_file(path, "Resident memory after each generation", story) as figure:
        axes = figure.add_axes((0.07, 0.115, 0.9, 0.695))
        axes.plot(generations, megabytes, "o", color=BLUE, markersize=3.5)
        axes.plot(generations[fit.first - 1 :], fit.line, color=INK, linewidth=1.4)
        generation_axis(axes, 1, len(megabytes))
        value_axis(axes, "Resident memory", "MB")


if __name__ == "__main__":
    raise SystemExit(main())
