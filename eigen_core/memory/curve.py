"""The memory over time in bounded memory: peaks are kept, times become coarser."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """The memory at a moment, or the highest in a stretch that begins there.

    Attributes:
        seconds: since the curve began.
        host: resident memory of the processes (bytes).
        device: allocated on the device (bytes); 0 without one.
    """

    seconds: float
    host: int
    device: int


class Curve:
    """The last points, and the whole course in at most `capacity` stretches with the peak of each.

    Args:
        capacity: points kept of the whole course, and again of its end.

    Raises:
        ValueError: the capacity is below 2.
    """

    def __init__(self, capacity: int = 1_024) -> None:
        if capacity < 2:
            raise ValueError(f"a curve of {capacity} points shows nothing: at least 2 are needed.")
        self._capacity = capacity
        self._recent: deque[Point] = deque(maxlen=capacity)
        self._course: list[Point] = []
        self._stride = 1
        self._in_last = 0

    def add(self, point: Point) -> None:
        """Append a point; times must not fall."""
        self._recent.append(point)
        if self._course and self._in_last < self._stride:
            self._course[-1] = _peak([self._course[-1], point])
            self._in_last += 1
            return
        if len(self._course) == self._capacity:
            self._course = [_peak(self._course[index : index + 2]) for index in range(0, self._capacity, 2)]
            self._stride *= 2
        self._course.append(point)
        self._in_last = 1

    @property
    def recent(self) -> tuple[Point, ...]:
        """The last points, as they were added."""
        return tuple(self._recent)

    @property
    def course(self) -> tuple[Point, ...]:
        """The whole course: the peak of each stretch, at the time at which the stretch began."""
        return tuple(self._course)


def _peak(points: Sequence[Point]) -> Point:
    return Point(points[0].seconds, max(point.host for point in points), max(point.device for point in points))
