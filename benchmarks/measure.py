"""Timing: warm up, take turns, keep all times."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Times:
    """Times of the same work done several times (seconds), in their order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle time (seconds)."""
        return median(self.seconds)

    @property
    def least(self) -> float:
        """The shortest time (seconds)."""
        return min(self.seconds)

    def over(self, other: "Times") -> float:
        """How many times as long as `other` this took: the middle of the ratios of each round.

        The two of a round were measured one after the other, so that a machine that slows down slows both.
        """
        return median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long `work` takes (seconds)."""
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
