"""The number of threads that compute, chosen by timing gradient steps."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from eigen_core.machine.limits import control_groups

logger = logging.getLogger(__name__)

# Timed steps with each number of threads; the first one only warms up.
_STEPS = 6


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many processor cores this process may use: one of a container often has fewer than the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = (group.cores() for group in control_groups(root, "cpu"))
    return min([cores, *(math.ceil(share) for share in given if share is not None)])


@contextmanager
def computing_threads(chosen: int) -> Iterator[None]:
    """Let torch compute with `chosen` threads inside the block; 0: as many as before, at most one for each usable core.

    The number of threads is restored afterwards.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(chosen or min(before, usable_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadTrial:
    """Times gradient steps with all threads and with one by turns, and then keeps the faster number.

    Bits do not depend on it. Only the shortest time is used: a busy machine makes steps longer, never shorter.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        most = torch.get_num_threads()
        self._clock = clock
        self._took: dict[int, list[float]] = {most: [], 1: []}
        self._chosen = most == 1
        self._began = 0.0

    def begin(self) -> None:
        self._began = self._clock()

    def step(self) -> None:
        """Record the end of a step, and set the number of threads of the next one."""
        if self._chosen:
            return
        now = self._clock()
        self._took[torch.get_num_threads()].append(now - self._began)
        # By turns: other load of the machine makes steps of all counts longer.
        fewest = min(self._took, key=lambda count: len(self._took[count]))
        if len(self._took[fewest]) < _STEPS:
            torch.set_num_threads(fewest)
        else:
            self._choose()
        self._began = self._clock()

    def _choose(self) -> None:
        least = {count: min(took[1:]) for count, took in self._took.items()}
        best = min(least, key=lambda count: (least[count], count))
        torch.set_num_threads(best)
        self._chosen = True
        most, one = (1e3 * seconds for seconds in least.values())
        logger.info(
            "threads: %d, since a gradient step takes %.1f ms with %d threads and %.1f ms with one",
            best,
            most,
            max(least),
            one,
        )
