"""How much of a run's time was of use, and what interruptions have cost it.

Goodput is the time whose work checkpoints hold, as a share of all time in which the run was to train.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import AwareDatetime, Field

from eigen_core.checkpoint import RunLocation
from eigen_core.common.progress import checked_by
from eigen_core.common.records import Record
from eigen_core.training.journals import Journal

SIGN_OF_LIFE = "alive"
"""File in a run's folder that a training touches between its steps; only an interrupted one leaves it there."""
_TOUCH_SECONDS = 0.5

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Start(Record):
    """One time that a process began to train a run, and what became of the process before."""

    moment: AwareDatetime
    """When its first phase began (UTC)."""
    waited_seconds: Seconds
    """From the interruption of the process before, or else from the start of this process, to `moment`."""
    kept_seconds: Seconds = 0.0
    """Training of the process before up to its last checkpoint (seconds)."""
    lost_seconds: Seconds | None = None
    """Training after that (seconds); None: it was not interrupted."""


_STARTS = Journal("starts.json", Start, kept=2_000)


@dataclass(frozen=True)
class Goodput:
    """Use of a run's time, from its first start to its newest checkpoint.

    Attributes:
        useful_seconds: training whose result checkpoints hold.
        lost_seconds: training after a last checkpoint, which an interruption has lost.
        waiting_seconds: from each interruption, and from each start of a process, to the first phase.
        interruptions: processes that have ended without a request to.
        recovery_seconds: mean time from an interruption to the next first phase; None: there was none.
    """

    useful_seconds: float
    lost_seconds: float
    waiting_seconds: float
    interruptions: int
    recovery_seconds: float | None

    @property
    def share(self) -> float:
        """Goodput, 0 to 1."""
        return self.useful_seconds / (self.useful_seconds + self.lost_seconds + self.waiting_seconds)

    def __str__(self) -> str:
        if self.recovery_seconds is None:
            return f"goodput {self.share:.1%}, no interruption"
        times = "1 interruption" if self.interruptions == 1 else f"{self.interruptions} interruptions"
        return (
            f"goodput {self.share:.1%}: {times}, {self.lost_seconds:.1f} s of work lost, "
            f"{self.recovery_seconds:.1f} s to recover on average"
        )


def starts_of(location: RunLocation) -> list[Start]:
    """Return all times that a process began to train a run."""
    return _STARTS.read(location)


def goodput(starts: Sequence[Start], last_checkpoint: datetime | None) -> Goodput | None:
    """Return the goodput of a run; None if no work of it is known.

    Args:
        starts: all times that a process began to train it.
        last_checkpoint: when its newest manifest was written (UTC); None: there is none.
    """
    if not starts or last_checkpoint is None:
        return None
    useful = sum(start.kept_seconds for start in starts) + _between(starts[-1].moment, last_checkpoint)
    if useful <= 0.0:
        return None
    interrupted = [start for start in starts if start.lost_seconds is not None]
    waited = sum(start.waited_seconds for start in interrupted)
    return Goodput(
        useful_seconds=useful,
        lost_seconds=sum(start.lost_seconds or 0.0 for start in interrupted),
        waiting_seconds=sum(start.waited_seconds for start in starts),
        interruptions=len(interrupted),
        recovery_seconds=waited / len(interrupted) if interrupted else None,
    )


@contextmanager
def work_recorded(
    location: RunLocation, last_checkpoint: datetime | None, stop_requests: tuple[type[BaseException], ...]
) -> Iterator[list[Start]]:
    """Record that training begins now, and the time of its last step until the block ends.

    Yields all starts of the run.

    An interruption shows to the next process on this machine; on another one the time up to its start is not counted.

    Args:
        location: the run, which this process holds.
        last_checkpoint: when its newest manifest was written (UTC); None: there is none.
        stop_requests: what the block raises when it is stopped on request; all else is an interruption.
    """
    sign = location.root / location.name / SIGN_OF_LIFE
    starts = _STARTS.append(location, _start(sign, _STARTS.read(location), last_checkpoint))
    sign.touch()
    try:
        with checked_by(_touching(sign)):
            yield starts
    except stop_requests:
        sign.unlink(missing_ok=True)
        raise
    except BaseException:
        # The disk may be what failed: the time of the last step remains.
        with suppress(OSError):
            sign.touch()
        raise
    sign.unlink(missing_ok=True)


def _start(sign: Path, starts: list[Start], last_checkpoint: datetime | None) -> Start:
    now = datetime.now(UTC)
    own = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    if not starts:
        return Start(moment=now, waited_seconds=_between(own, now))
    before = starts[-1].moment
    kept = 0.0 if last_checkpoint is None else _between(before, last_checkpoint)
    try:
        interrupted = datetime.fromtimestamp(sign.stat().st_mtime, UTC)
    except FileNotFoundError:
        return Start(moment=now, waited_seconds=_between(own, now), kept_seconds=kept)
    lost = max(_between(before, interrupted) - kept, 0.0)
    return Start(moment=now, waited_seconds=_between(interrupted, now), kept_seconds=kept, lost_seconds=lost)


def _touching(sign: Path) -> Callable[[], None]:
    touched = time.monotonic()

    def touch() -> None:
        nonlocal touched
        if time.monotonic() - touched >= _TOUCH_SECONDS:
            touched = time.monotonic()
            sign.touch()

    return touch


def _between(earlier: datetime, later: datetime) -> float:
    """Seconds; none if the clock was set back."""
    return max((later - earlier).total_seconds(), 0.0)
