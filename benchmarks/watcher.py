"""What the memory guard costs: its watching thread, the marks of phases, and whole generations with and without it."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.measure import Times
from benchmarks.plain_run import PHASES, run_generation
from benchmarks.results import Section
from eigen_core.checkpoint import RunDirectory
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, start_training
from eigen_core.market import build_panel
from eigen_core.memory import MemoryGuard, host_limits

_WATCHED_SECONDS = 30.0
_GENERATIONS = 12
_BLOCKS = 200
# As large as Prefect's embedded server.
_CHILD = "block = bytearray(b'\\1') * 220_000_000; print('ready', flush=True); input()"


def run() -> Section:
    """Watch an idle process, mark empty phases, and train by turns with and without the guard."""
    config = load_config("quickstart", ["evaluation.slices=4"])
    state = start_training(config, build_panel(config)[0])
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as name, _child():
        directory = RunDirectory.create(Path(name), "run", config.model_dump(mode="json"))
        without, guarded = _by_turns(state, directory)
        generation = without.median
        watching = _watching_share(state)
        marking = len(PHASES) * _marking_seconds(state) / generation
    rows = [
        ["watching, 5 times a second, with a child process", f"{100 * watching:.2f} %"],
        [f"marking {len(PHASES)} phases, of a generation of {generation:.2f} s", f"{100 * marking:.2f} %"],
        ["together", f"{100 * (watching + marking):.2f} %"],
        ["whole generations by turns, with over without", f"{100 * (guarded.over(without) - 1):+.1f} %"],
    ]
    return Section(
        title="What the memory guard costs",
        method="Preset quickstart with 4 slices. Watching: processor time of a process that does nothing else for "
        f"{_WATCHED_SECONDS:.0f} s, as a share of that time. Marking: beginning and ending a phase, peaks reset, "
        f"{_BLOCKS} times. Last row: {_GENERATIONS} generations each by turns in one process, the "
        "middle ratio; it wanders by more than the others add up to.",
        columns=("", "share of the time"),
        rows=rows,
        remarks=("The goal is less than 1 % of a generation.",),
    )


@contextmanager
def _child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield
        finally:
            child.communicate(b"\n")


def _guard(state: TrainingState, *, watch: bool = True) -> MemoryGuard:
    memory = state.config.memory
    return MemoryGuard(host_limits(memory), memory, watch=watch)


def _by_turns(state: TrainingState, directory: RunDirectory) -> tuple[Times, Times]:
    """Run generations without a guard and with one, which is entered before their time counts."""
    without, guarded = [], []
    for turn in range(1 + _GENERATIONS):
        plain = sum(run_generation(state, directory, plotted=False).values())
        with _guard(state) as guard:
            watched = _guarded_seconds(guard, state, directory)
        if turn > 0:
            without.append(plain)
            guarded.append(watched)
    return Times(tuple(without)), Times(tuple(guarded))


def _guarded_seconds(guard: MemoryGuard, state: TrainingState, directory: RunDirectory) -> float:
    with guard.phase("generation", state.generation + 1):
        return sum(run_generation(state, directory, plotted=False).values())


def _watching_share(state: TrainingState) -> float:
    with _guard(state):
        began = time.process_time()
        time.sleep(_WATCHED_SECONDS)
        return (time.process_time() - began) / _WATCHED_SECONDS


def _marking_seconds(state: TrainingState) -> float:
    guard = _guard(state, watch=False)
    times = []
    with guard:
        for _ in range(_BLOCKS):
            began = time.perf_counter()
            with guard.phase("train", 1):
                pass
            times.append(time.perf_counter() - began)
    return median(times)
