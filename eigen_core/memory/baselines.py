"""What lived at earlier moments, to see what has grown since."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from eigen_core.memory.census import Census, take_census
from eigen_core.memory.usage import own_resident_bytes, process_bytes

# Counting all objects of a process takes a third of a second: no more than this share of the time goes into it.
_SHARE = 0.002


@dataclass(frozen=True)
class Start:
    """The process before the run took anything.

    Attributes:
        own: its resident memory (bytes).
        files: what of it are libraries and mapped files (bytes).
        census: the objects by type.
    """

    own: int
    files: int
    census: Census


@dataclass(frozen=True)
class Baseline:
    """What lived when a generation began.

    Attributes:
        generation: that generation.
        census: the objects by type.
    """

    generation: int
    census: Census


class Baselines:
    """Counts the objects when generations begin: the last time that was affordable, and once early in the run.

    The early one is of the second generation that is seen, when everything has been loaded and built. Until then, the
    process before the run is what there is to compare with.

    Args:
        clock: seconds that only grow.
        count: how objects are counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, count: Callable[[], Census] = take_census) -> None:
        self._clock = clock
        self._count = count
        self._start: Start | None = None
        self._seen: list[int] = []
        self._early: Baseline | None = None
        self._last: Baseline | None = None
        self._next_time = -float("inf")

    def start(self) -> None:
        """The run begins: what is there is the process itself."""
        own, files = own_resident_bytes(), process_bytes("RssFile")
        self._start = Start(own, files, self._counted())

    @property
    def of_process(self) -> Start | None:
        """The process before the run; None if that was not looked at."""
        return self._start

    def begin(self, generation: int) -> None:
        """A phase of `generation` begins; the first one of each generation may be counted."""
        if generation in self._seen[-1:]:
            return
        self._seen = [*self._seen[:1], generation]
        second = self._early is None and len(self._seen) == 2
        if not second and self._clock() < self._next_time:
            return
        self._last = Baseline(generation, self._counted())
        if second:
            self._early = self._last

    def _counted(self) -> Census:
        before = self._clock()
        census = self._count()
        after = self._clock()
        self._next_time = after + (after - before) / _SHARE
        return census

    @property
    def taken(self) -> tuple[Baseline, ...]:
        """The newest one first, then the early one if it is another."""
        if self._last is None and self._start is not None and self._seen:
            return (Baseline(self._seen[0], self._start.census),)
        known = (self._last, self._early if self._early is not self._last else None)
        return tuple(baseline for baseline in known if baseline is not None)
