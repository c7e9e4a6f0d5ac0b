"""The memory over time, kept in bounded memory: the whole course, each phase, and a prediction for the next one."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from eigen_core.machine.usage import DeviceUsage, Usage

# A prediction is made from this many phases of the name, the newest.
_REMEMBERED = 3
_NO_DEVICE = DeviceUsage(0, 0, 0)


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


@dataclass
class PhaseUsage:
    """The memory of a phase (bytes; times in seconds since the guard was made).

    Attributes:
        phase, generation: name and generation.
        began, ended: when; `ended` is the last reading for a phase under way.
        start_bytes, peak_bytes, end_bytes: resident memory of the processes at its beginning, at most, at its end.
        device_start_bytes, device_end_bytes: in tensors on the device; 0 without one.
        device_allocated_peak, device_reserved_peak: most in tensors, most held by torch.
    """

    phase: str
    generation: int
    began: float
    ended: float
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    device_start_bytes: int = 0
    device_end_bytes: int = 0
    device_allocated_peak: int = 0
    device_reserved_peak: int = 0

    @classmethod
    def begin(cls, phase: str, generation: int, now: float, usage: Usage) -> Self:
        """Return a phase that begins with this reading."""
        begun = cls(phase, generation, now, now, usage.host, usage.host, usage.host)
        begun.device_start_bytes = (usage.device or _NO_DEVICE).allocated
        begun.note(now, usage)
        return begun

    def note(self, now: float, usage: Usage) -> None:
        """Add a reading."""
        self.ended, self.end_bytes = now, usage.host
        self.device_end_bytes = (usage.device or _NO_DEVICE).allocated
        self.note_peaks(usage.host, usage.device)

    def note_peaks(self, host: int, device: DeviceUsage | None) -> None:
        """Add peaks of the host's resident memory and of the device."""
        self.peak_bytes = max(self.peak_bytes, host)
        if device is not None:
            self.device_allocated_peak = max(self.device_allocated_peak, device.allocated)
            self.device_reserved_peak = max(self.device_reserved_peak, device.reserved)


def expected_growth(ended: Iterable[PhaseUsage], name: str) -> tuple[int, int]:
    """Return how far the next phase of a name will rise above its beginning, on host and device (bytes).

    What a phase allocates and frees is the most of the newest ones. What it keeps is the least of them: the first ones
    keep libraries and caches that are loaded only once, a leak keeps as much every time.

    Args:
        ended: the phases so far, oldest first.
        name: of the phase.
    """
    newest = [phase for phase in ended if phase.phase == name][-_REMEMBERED:]
    return (
        _growth([(phase.start_bytes, phase.peak_bytes, phase.end_bytes) for phase in newest]),
        _growth([(p.device_start_bytes, p.device_allocated_peak, p.device_end_bytes) for p in newest]),
    )


def _growth(phases: Sequence[tuple[int, int, int]]) -> int:
    if not phases:
        return 0
    return max(peak - end for _, peak, end in phases) + max(min(end - start for start, _, end in phases), 0)
