"""What a process and its children take of the memory over time, seen from outside."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

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
