"""Train 300 small generations with everything on and fit a line to the resident memory: it must not grow.

`python -m benchmarks.soak [--generations 300]` runs the training flow on its own Prefect server, with memory guard,
plots every fifth generation, checkpoints, and uploads to another folder. The exit code is 1 if the memory grows by more
than the limit, or if the number of environments, populations or figures changes.

CPython's table of interned strings (each part of a path is one) grows once, by 4 MB, after some 80 generations. When it
is filled again later, resident memory may change by 1 MB. With fewer than 200 generations the growth may fall into the
second half.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, starmap
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks.results import Section, publish, require_idle
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.snapshot import LoadedGeneration
from eigen_core.checkpoint.store import LocalStore, Progress as StoreProgress, has_content
from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.config import CheckpointConfig, Config
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState
from eigen_core.machine.memory_usage import release_free_memory
from eigen_core.networks.population import Population
from eigen_core.reporting.style import BLUE, INK, figure_file, generation_axis, value_axis
from eigen_core.runs.listener import Listener, observed_by
from eigen_core.task.market import MarketTask
from eigen_core.trading.environment import TradingEnvironment
from flows.server.prefect_settings import prepare_environment

LIMIT_MB = 1.0
"""Largest growth of the resident memory over 100 generations, in the second half of the run (MB)."""

COUNTED: Mapping[str, type] = {
    "environments": TradingEnvironment,
    "tasks": MarketTask,
    "populations": Population,
    "training states": TrainingState,
    "loaded generations": LoadedGeneration,
    "figures": Figure,
    "tensors": torch.Tensor,
}
"""Kinds of objects whose number must not grow, by their names in the table."""

COUNT_EVERY = 10
"""Generations between two counts."""

RUN = "soak"

_SETTINGS = (
    "device=cpu",
    "threads=1",
    "market.window=20",
    "trading.trading_bars=30",
    "trading.settlement_bars=10",
    "trading.holding_bars=10",
    "network.scales=[1, 5]",
    "network.channels=8",
    "network.embedding=4",
    "network.queries=2",
    "network.head_width=8",
    "population.size=4",
    "population.group_size=2",
    "replay.capacity=2000",
    "replay.minimum=200",
    "learner.gradient_steps=4",
    "learner.batch_size=16",
    "evaluation.slices=2",
    "evaluation.lowest=1",
    "evaluation.validation_slices=1",
    "evaluation.validation_lowest=1",
)
_FEWEST_GENERATIONS = 2 * COUNT_EVERY


@dataclass(frozen=True)
class Fit:
    """A least-squares line through the second half of the samples.

    Attributes:
        first: its first generation.
        slope, error: slope and its standard error (MB per 100 generations).
        line: its values (MB).
    """

    first: int
    slope: float
    error: float
    line: NDArray[np.float64]

    @classmethod
    def of(cls, megabytes: NDArray[np.float64]) -> "Fit":
        start = len(megabytes) // 2
        x = np.arange(start + 1, len(megabytes) + 1, dtype=np.float64)
        (slope, height), covariance = np.polyfit(x, megabytes[start:], 1, cov=True)
        return cls(start + 1, 100.0 * slope, 100.0 * covariance[0, 0] ** 0.5, slope * x + height)


class Sampler(Listener):
    """Samples this process at the end of every generation.

    Attributes:
        resident: resident memory of this process after each generation (bytes).
        counts: live objects of the kinds `COUNTED`, every `count_every` generations; a count takes a third of a second.
    """

    def __init__(self, progress: Progress, generations: int, count_every: int = COUNT_EVERY) -> None:
        self.resident: list[int] = []
        self.counts: dict[int, dict[str, int]] = {}
        self._count_every = count_every
        self._progress = progress
        self._bar = progress.add_task("generations", total=generations)

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:  # noqa: ARG002
        if record.generation % self._count_every == 0:
            self.counts[record.generation] = live_counts()
        release_free_memory()
        self.resident.append(psutil.Process().memory_info().rss)
        self._progress.advance(self._bar)
        self._progress.refresh()

    @property
    def megabytes(self) -> NDArray[np.float64]:
        return np.array(self.resident, dtype=np.float64) / 1e6


def live_counts() -> dict[str, int]:
    """Count the live objects of the kinds `COUNTED`, by their names."""
    gc.collect()
    # Lazily: Python ends another thread with a SystemError if it fills a tuple that the list of objects refers to.
    kinds = Counter(map(type, chain.from_iterable(starmap(gc.get_objects, [()]))))
    return {
        name: sum(count for kind, count in kinds.items() if issubclass(kind, counted))
        for name, counted in COUNTED.items()
    }


def changing_counts(counts: Mapping[int, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each kind whose number changed between counts, by generation."""
    sentences = []
    for name in COUNTED:
        course = {generation: found[name] for generation, found in counts.items()}
        first, last = min(course), max(course)
        if len(set(course.values())) > 1:
            sentences.append(
                f"The number of live {name} changes: {course[first]} after generation {first}, {course[last]} after "
                f"generation {last}, {min(course.values())} to {max(course.values())} between."
            )
    return sentences


def soak_config(generations: int, folder: Path) -> Config:
    """Return the configuration of a small training with all files in `folder`."""
    places = (f"checkpoint.store={folder / 'store'}", f"checkpoint.local={folder / 'local'}")
    return load_config("ddpg", [*_SETTINGS, f"generations={generations}", *places])


class _RemoteFolder(LocalStore):
    """A folder that trainings treat as a remote store."""

    def put_file(self, name: str, path: Path, moved: StoreProgress | None = None) -> None:
        self.put(name, path.read_bytes())
        if moved is not None:
            moved(path.stat().st_size)

    def fetch(self, name: str, path: Path, moved: StoreProgress | None = None) -> None:
        raise NotImplementedError

    def holds(self, name: str, path: Path) -> bool:
        return has_content(self, name, path.read_bytes())


@contextmanager
def uploading_to_a_folder() -> Iterator[None]:
    """Let trainings inside the block treat a store that is a folder as a remote one, with uploads to it."""

    def location(settings: CheckpointConfig, name: str) -> RunLocation:
        root = Path(settings.local)
        return RunLocation(name, _RemoteFolder(Path(settings.store)), root, remote=True)

    with patch.object(RunLocation, "of", location):
        yield


def soak(config: Config, sampler: Sampler) -> None:
    from flows.server.flows import train_flow

    with uploading_to_a_folder(), observed_by(sampler):
        train_flow(config, RUN)


@contextmanager
def _isolated_prefect() -> Iterator[None]:
    """Let flows inside the block run on a server whose database is removed afterwards."""
    if "prefect" in sys.modules:
        raise RuntimeError("Prefect was imported before its environment could be set: it would use the user's.")
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "ERROR"
    prepare_environment()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--generations", type=int, default=300, help="generations to train (300)")
    options = parser.parse_args()
    require_idle(["soak"])
    if options.generations < _FEWEST_GENERATIONS:
        parser.error(f"a line needs at least {_FEWEST_GENERATIONS} generations")
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="eigen-soak-") as folder,
        _isolated_prefect(),
        # Refreshed by hand: a thread would take memory.
        Progress(console=console, auto_refresh=False) as progress,
    ):
        sampler = Sampler(progress, options.generations)
        soak(soak_config(options.generations, Path(folder)), sampler)
    fit = Fit.of(sampler.megabytes)
    complaints = changing_counts(sampler.counts)
    picture = Path(__file__).with_name("soak.png")
    _plot(picture, sampler.megabytes, fit)
    publish("soak", _section(sampler, fit, complaints, picture))
    return 0 if fit.slope <= LIMIT_MB and not complaints else 1


def _section(sampler: Sampler, fit: Fit, complaints: Sequence[str], picture: Path) -> Section:
    resident = sampler.megabytes
    counted = sorted(sampler.counts)
    # The last counted generation before the second half.
    middle = max(generation for generation in counted if generation <= max(fit.first, counted[0]))
    shown = (counted[0], middle, counted[-1])
    rows = [
        ["resident memory (MB)", *(f"{resident[generation - 1]:.2f}" for generation in shown)],
        *([f"live {name}", *(f"{sampler.counts[generation][name]:,}" for generation in shown)] for name in COUNTED),
    ]
    return Section(
        title=f"Resident memory over {len(resident)} generations",
        method=f"{len(resident)} small generations through the Prefect flow with everything on: tasks, artifacts, "
        "memory guard, plots every fifth generation, checkpoints, uploads to another folder; sampled at each "
        f"generation's end after freed memory is given back, without the server; counted every {COUNT_EVERY}.",
        columns=("after generation", *(str(generation) for generation in shown)),
        rows=rows,
        remarks=(
            f"From generation {fit.first} on a least-squares line rises by {fit.slope:+.2f} ± {fit.error:.2f} MB per "
            f"100 generations (slope and standard error); the limit is {LIMIT_MB:g}: "
            f"{'kept' if fit.slope <= LIMIT_MB else 'exceeded'}.",
            *(complaints or ["The live counts are the same at all generations at which they were taken."]),
            f"![resident memory]({picture.name})",
        ),
    )


def _plot(path: Path, megabytes: NDArray[np.float64], fit: Fit) -> None:
    generations = np.arange(1, len(megabytes) + 1)
    story = (
        f"{len(megabytes)} small generations with everything on, without Prefect's server: {fit.slope:+.2f} ± "
        f"{fit.error:.2f} MB per 100 generations since generation {fit.first}."
    )
    with figure_file(path, "Resident memory after each generation", story) as figure:
        axes = figure.add_axes((0.07, 0.115, 0.9, 0.695))
        axes.plot(generations, megabytes, "o", color=BLUE, markersize=3.5)
        axes.plot(generations[fit.first - 1 :], fit.line, color=INK, linewidth=1.4)
        generation_axis(axes, 1, len(megabytes))
        value_axis(axes, "Resident memory", "MB")


if __name__ == "__main__":
    raise SystemExit(main())
