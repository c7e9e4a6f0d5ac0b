"""The command `eigen` under a memory limit, with a phase that takes memory outside the plan.

`python -m benchmarks.limited_training LIMITS COMMAND...`, where LIMITS is a file that `benchmarks.limits` writes.
"""

import atexit
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal

PHASES = ("evaluate", "train", "evolve", "checkpoint")

Way = Literal["steps", "one step"]
Content = Literal["array", "tensor"]


@dataclass(frozen=True)
class Appetite:
    """Memory that a phase takes beyond its need, and keeps.

    Attributes:
        way: in steps between which it reports progress, or in one.
        after: after the phase's own work, else before it.
        bytes, pieces: amount, and into how many pieces it is divided.
        seconds: time of each step.
    """

    phase: str
    way: Way
    content: Content
    after: bool
    bytes: int
    pieces: int
    seconds: float = 0.05


@dataclass(frozen=True)
class Limits:
    """Limits of the command.

    Attributes:
        address_space: RLIMIT_AS (bytes); None: unchanged.
        notes: file that gets the bytes held and the peak of the address space at the process's end.
    """

    address_space: int | None
    appetite: Appetite | None
    notes: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Limits":
        values = json.loads(path.read_text())
        appetite = values.pop("appetite")
        return cls(**values, appetite=None if appetite is None else Appetite(**appetite))


HELD: list[Any] = []
"""Arrays and tensors."""


def take(appetite: Appetite) -> None:
    import numpy as np
    import torch

    from eigen_core.common.progress import report_progress

    for piece in range(appetite.pieces):
        size = appetite.bytes // appetite.pieces
        is_array = appetite.content == "array"
        HELD.append(np.ones(size, np.uint8) if is_array else torch.ones(size, dtype=torch.uint8))
        if appetite.way == "steps":
            time.sleep(appetite.seconds)
            report_progress(appetite.phase, piece + 1, appetite.pieces)


def with_appetite(work: Callable[..., Any], appetite: Appetite) -> Callable[..., Any]:
    @wraps(work)
    def hungry(*args: Any) -> Any:  # noqa: ANN401 - any phase
        if not appetite.after:
            take(appetite)
        result = work(*args)
        if appetite.after:
            take(appetite)
        return result

    return hungry


def give(appetite: Appetite) -> Callable[[], None]:
    """Give a phase an appetite; return a function that removes it."""
    from eigen_core import generation
    from eigen_core.checkpoint.session import RunSession

    place, name = (RunSession, "save") if appetite.phase == "checkpoint" else (generation, appetite.phase)
    work = getattr(place, name)
    setattr(place, name, with_appetite(work, appetite))

    def undo() -> None:
        setattr(place, name, work)
        HELD.clear()

    return undo


def most_addresses() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmPeak:")[2].split()[0]) * 1024


def main(arguments: Sequence[str]) -> None:
    limits = Limits.read(Path(arguments[0]))
    if limits.address_space is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limits.address_space, limits.address_space))
    # Opened now: at the end there may be no memory left.
    notes = open(limits.notes, "w")  # noqa: SIM115 - open until the process ends
    atexit.register(lambda: print(sum(held.nbytes for held in HELD), most_addresses(), file=notes, flush=True))
    from flows.server.prefect_settings import prepare_environment

    prepare_environment()
    if limits.appetite is not None:
        give(limits.appetite)
    from flows.cli.app import app

    app(list(arguments[1:]), prog_name="eigen")


if __name__ == "__main__":
    main(sys.argv[1:])
