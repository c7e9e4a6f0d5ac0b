"""Counts of the objects at earlier moments, to measure growth."""

import time
from collections.abc import Callable
from typing import NamedTuple

from eigen_core.memory.objects import ObjectCounts, count_objects
from eigen_core.memory.process import own_resident_bytes, process_bytes

# Counting all objects of a process takes about a second: at most this share of the time is spent on it.
_SHARE = 0.002


class Start(NamedTuple):
    """The process before the run.

    Attributes:
        own: its resident memory (bytes).
        files: the part of it that is libraries and mapped files (bytes).
        counts: the objects by type.
    """

    own: int
    files: int
    counts: ObjectCounts


class Baseline(NamedTuple):
    """The objects by type when a generation began."""

    generation: int
    counts: ObjectCounts


class Baselines:
    """Counts the objects when generations begin: as often as is affordable, and once early in the run.

    The early count is of the second generation that begins, when all has been loaded and built. Until then growth is
    measured against the process before the run.

    Args:
        clock: seconds that only grow.
        count: function that counts the objects.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, count: Callable[[], ObjectCounts] = count_objects
    ) -> None:
        self._clock = clock
        self._count = count
        self.of_process: Start | None = None
        """The process before the run; None if `start` was not called."""
        self._generation: int | None = None
        self._begun = 0
        self._early: Baseline | None = None
        self._newest: Baseline | None = None
        self._next_time = -float("inf")

    def start(self) -> None:
        """Count the objects of the process before the run."""
        own, files = own_resident_bytes(), process_bytes("RssFile")
        self.of_process = Start(own, files, self._counted())

    def begin(self, generation: int) -> None:
        """Note that a phase of `generation` begins; the first one of each generation may count the objects."""
        if generation == self._generation:
            return
        self._generation = generation
        self._begun += 1
        if self._begun == 2 or self._clock() >= self._next_time:
            self._newest = Baseline(generation, self._counted())
        if self._begun == 2:
            self._early = self._newest
        elif self._begun == 1 and self._newest is None and self.of_process is not None:
            self._newest = Baseline(generation, self.of_process.counts)

    def _counted(self) -> ObjectCounts:
        before = self._clock()
        counts = self._count()
        after = self._clock()
        self._next_time = after + (after - before) / _SHARE
        return counts

    @property
    def taken(self) -> tuple[Baseline, ...]:
        """The newest one first, then the early one if it is another."""
        known = (self._newest, self._early if self._early is not self._newest else None)
        return tuple(baseline for baseline in known if baseline is not None)
