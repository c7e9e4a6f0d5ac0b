"""Times and memory of a piece of work, and of a process watched from outside."""

import gc
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar

import psutil
import torch

from eigen_core.machine import peak_resident_bytes, release_free_memory, reset_peak


@dataclass(frozen=True)
class Times:
    """Times of the same work done several times (seconds), in their order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    def over(self, other: "Times") -> float:
        """How many times as long as `other` this took: the middle of the ratios of each round.

        The two of a round were measured one after the other, so that a machine that slows down slows both.
        """
        return median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_turns(works: Mapping[str, Callable[[], object]], rounds: int, warm_ups: int = 1) -> dict[str, Times]:
    """Measure several works in one process, each once a round: A B A B ...

    Args:
        works: what to measure, by name.
        rounds: times kept of each.
        warm_ups: rounds before them that are not kept.
    """
    kept: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warm_ups + rounds):
        for name, work in works.items():
            gc.collect()
            taken = seconds_of(work)
            if turn >= warm_ups:
                kept[name].append(taken)
    return {name: Times(tuple(times)) for name, times in kept.items()}


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def extra_resident_mb(work: Callable[[], object]) -> float:
    """Do some work and return by how much resident memory was higher at its peak than before (MB).

    Raises:
        RuntimeError: the system cannot tell the peak of a part of a process.
    """
    gc.collect()
    release_free_memory()
    before = psutil.Process().memory_info().rss
    if not reset_peak():
        raise RuntimeError("the peak of the resident memory can be measured on Linux alone")
    result = work()
    extra = (peak_resident_bytes() - before) / 1e6
    del result
    return extra


def in_own_process(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """Call a module's function in a new process with one torch thread and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_one_thread) as process:
        return process.submit(function, *arguments, **named).result()


def _one_thread() -> None:
    torch.set_num_threads(1)


_LOOK_SECONDS = 0.05
# Summing up the shares of a process takes milliseconds for each GB.
_CHILDREN_SECONDS = 0.5
# Until a new process has its own program it shows the memory of the one that started it.
_STARTING_SECONDS = 1.0
_KIB = 1024


@dataclass(frozen=True)
class Sample:
    """One look.

    Attributes:
        moment: seconds since 1970.
        own: resident memory of the process (bytes).
        peak: its highest since the process last let its peak start again (bytes).
        children: resident memory of its descendants, each page that several hold divided among them (bytes).
    """

    moment: float
    own: int
    peak: int
    children: int


def watched(command: Sequence[str], environment: Mapping[str, str]) -> list[Sample]:
    """Run a command to its end and return what it took, about 20 looks a second.

    Raises:
        subprocess.CalledProcessError: it failed; its output is shown with the error.
    """
    samples: list[Sample] = []
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    children, looked = 0, 0.0
    # What it prints is short and stays in the pipe until it has ended.
    while process.poll() is None:
        now = time.time()
        if now - looked >= _CHILDREN_SECONDS:
            children, looked = _children_bytes(process.pid), now
        status = _entries(Path(f"/proc/{process.pid}/status"))
        if "VmRSS" in status:
            samples.append(Sample(now, status["VmRSS"], status["VmHWM"], children))
        time.sleep(_LOOK_SECONDS)
    output = process.stdout.read()
    process.stdout.close()
    if process.returncode != 0:
        error = subprocess.CalledProcessError(process.returncode, list(command), output)
        error.add_note(output)
        raise error
    return samples


def highest(samples: Sequence[Sample]) -> int:
    """Return the most that a process and its children took together (bytes)."""
    return max(max(sample.own, sample.peak) + sample.children for sample in samples)


def _children_bytes(pid: int) -> int:
    try:
        children = psutil.Process(pid).children(recursive=True)
        running = [child.pid for child in children if time.time() - child.create_time() > _STARTING_SECONDS]
    except psutil.NoSuchProcess:
        return 0
    return sum(_entries(Path(f"/proc/{child}/smaps_rollup")).get("Pss", 0) for child in running)


def _entries(path: Path) -> dict[str, int]:
    """Read lines such as "Pss: 12 kB" (bytes); nothing if the process has ended."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {line[0].rstrip(":"): int(line[1]) * _KIB for line in lines if len(line) == 3 and line[2] == "kB"}
