"""Times and memory of work in this process, and of another process."""

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

from eigen_core.machine.memory_usage import peak_resident_bytes, release_free_memory, reset_peak


@dataclass(frozen=True)
class Times:
    """Times of repetitions of the same work (seconds), in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    def over(self, other: "Times") -> float:
        """Return the median over rounds of the ratio to `other`, which was measured next to it in each round."""
        return median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_turns(works: Mapping[str, Callable[[], object]], rounds: int, warm_ups: int = 1) -> dict[str, Times]:
    """Measure several works in turns, `rounds` times each, after rounds that are not counted (`warm_ups`)."""
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
    """Do some work and return by how much resident memory was higher at its peak than before (MB)."""
    gc.collect()
    release_free_memory()
    before = psutil.Process().memory_info().rss
    if not reset_peak():
        raise RuntimeError("the peak of the resident memory can only be measured on Linux")
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


_SAMPLE_SECONDS = 0.05
# Adding up the shares of a process takes milliseconds for each GB.
_CHILDREN_SECONDS = 0.5
# A new process shows the memory of its parent until it runs its own program.
_STARTING_SECONDS = 1.0
_KIB = 1024


def peak_bytes(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command and return the peak of the resident memory of its process and its children (bytes).

    Memory is sampled 20 times a second; pages that children share are divided among them.

    Raises:
        subprocess.CalledProcessError: it failed; its output is a note of the error.
    """
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    highest, children, looked = 0, 0, 0.0
    # Its output is short and fits into the pipe.
    while process.poll() is None:
        now = time.time()
        if now - looked >= _CHILDREN_SECONDS:
            children, looked = _children_bytes(process.pid), now
        status = _entries(Path(f"/proc/{process.pid}/status"))
        if "VmRSS" in status:
            highest = max(highest, max(status["VmRSS"], status["VmHWM"]) + children)
        time.sleep(_SAMPLE_SECONDS)
    output = process.stdout.read()
    process.stdout.close()
    if process.returncode != 0:
        error = subprocess.CalledProcessError(process.returncode, list(command), output)
        error.add_note(output)
        raise error
    return highest


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
