"""The command `eigen` in a process of its own, under a limit, with a phase that takes memory that no plan knows.

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
    """What a phase takes beyond its need, and keeps.

    Attributes:
        phase: which phase.
        way: in steps between which it reports progress, or in one.
        content: arrays or tensors.
        after: when its own work is done; else before it.
        bytes: how much.
        pieces: in so many pieces.
        seconds: what each step takes.
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
    """Under what the command runs.

    Attributes:
        address_space: RLIMIT_AS (bytes); None: as it is.
        appetite: what a phase takes beyond its need; None: nothing.
        notes: file that tells, at the process's end, what it has held and how many addresses it had at most.
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


class Ballast:
    def __init__(self, size: int, content: Content) -> None:
        import numpy as np
        import torch

        kinds: dict[str, Callable[[], object]] = {
            "array": lambda: np.ones(size, np.uint8),
            "tensor": lambda: torch.ones(size, dtype=torch.uint8),
        }
        self.content = kinds[content]()
        self.size = size


HELD: list[Ballast] = []


def take(appetite: Appetite) -> None:
    from eigen_core.common.progress import report_progress

    for piece in range(appetite.pieces):
        HELD.append(Ballast(appetite.bytes // appetite.pieces, appetite.content))
        if appetite.way == "steps":
            time.sleep(appetite.seconds)
            report_progress(appetite.phase, piece + 1, appetite.pieces)


def with_appetite(work: Callable[..., Any], appetite: Appetite) -> Callable[..., Any]:
    @wraps(work)
    def hungry(*args: Any) -> Any:  # noqa: ANN401 - whatever the phase takes and gives
        if not appetite.after:
            take(appetite)
        result = work(*args)
        if appetite.after:
            take(appetite)
        return result

    return hungry


def give(appetite: Appetite) -> Callable[[], None]:
    """Give a phase an appetite; return what takes it away again."""
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
    atexit.register(lambda: print(sum(ballast.size for ballast in HELD), most_addresses(), file=notes, flush=True))
    from flows.server.environment import prepare_environment

    prepare_environment()
    if limits.appetite is not None:
        give(limits.appetite)
    from flows.cli.app import app

    app(list(arguments[1:]), prog_name="eigen")


if __name__ == "__main__":
    main(sys.argv[1:])
