"""What each phase took, and what the next of its kind will take."""

from collections import deque
from dataclasses import dataclass

from eigen_core.memory.usage import DeviceUsage, Usage

# So many of the newest phases of a kind say what the next one takes.
_REMEMBERED = 3


@dataclass(frozen=True)
class PhaseUsage:
    """What a phase took (bytes; times in seconds since the guard was made).

    Attributes:
        phase, generation: which.
        began, ended: when; `ended` is the present for a phase under way.
        start_bytes, peak_bytes, end_bytes: resident memory of the processes at its beginning, at most, at its end.
        device_start_bytes, device_end_bytes: in tensors on the device; 0 without one.
        device_allocated_peak, device_reserved_peak: most in tensors, most taken by torch.
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


class OpenPhase:
    """A phase under way.

    Args:
        name, generation: which.
        began: when (seconds since the guard was made).
        usage: the memory at its beginning.
    """

    def __init__(self, name: str, generation: int, began: float, usage: Usage) -> None:
        self.name = name
        self.generation = generation
        self._began = began
        self._start = self._last = usage
        self._peak = usage.host
        self._allocated = self._reserved = 0
        self.note(usage)

    def note(self, usage: Usage) -> None:
        """Take note of a reading."""
        self._last = usage
        self._peak = max(self._peak, usage.host)
        if usage.device is not None:
            self._allocated = max(self._allocated, usage.device.allocated)
            self._reserved = max(self._reserved, usage.device.reserved)

    def note_peaks(self, own: int | None, device: DeviceUsage | None) -> None:
        """Take note of peaks that the system has kept: of this process, of the device."""
        if own is not None:
            self._peak = max(self._peak, own + self._last.children)
        if device is not None:
            self._allocated = max(self._allocated, device.allocated)
            self._reserved = max(self._reserved, device.reserved)

    def so_far(self, now: float) -> PhaseUsage:
        """What it has taken until `now`."""
        return self.ended(now, self._last)

    def ended(self, now: float, usage: Usage) -> PhaseUsage:
        """What it has taken if it ends with this reading."""
        self.note(usage)
        return PhaseUsage(
            phase=self.name,
            generation=self.generation,
            began=self._began,
            ended=now,
            start_bytes=self._start.host,
            peak_bytes=self._peak,
            end_bytes=usage.host,
            device_start_bytes=self._start.device.allocated if self._start.device else 0,
            device_end_bytes=usage.device.allocated if usage.device else 0,
            device_allocated_peak=self._allocated,
            device_reserved_peak=self._reserved,
        )


class PhaseHistory:
    """The newest phases that have ended.

    Args:
        capacity: phases kept.
    """

    def __init__(self, capacity: int = 512) -> None:
        self._phases: deque[PhaseUsage] = deque(maxlen=capacity)
        self._newest: dict[str, deque[PhaseUsage]] = {}

    def add(self, phase: PhaseUsage) -> None:
        """Append a phase that has ended."""
        self._phases.append(phase)
        self._newest.setdefault(phase.phase, deque(maxlen=_REMEMBERED)).append(phase)

    @property
    def phases(self) -> tuple[PhaseUsage, ...]:
        """The phases, in the order of their ends."""
        return tuple(self._phases)

    def growth(self, name: str) -> tuple[int, int]:
        """Return how far the next phase of this name will rise above its beginning, on host and device (bytes).

        What a phase takes and gives back is the most of the last ones. What it takes and keeps is the least of them:
        the first ones keep libraries and caches that are loaded only once, a leak keeps as much every time.
        """
        newest = self._newest.get(name, ())
        if not newest:
            return 0, 0
        host = max(phase.peak_bytes - phase.end_bytes for phase in newest)
        host += max(min(phase.end_bytes - phase.start_bytes for phase in newest), 0)
        device = max(phase.device_allocated_peak - phase.device_end_bytes for phase in newest)
        device += max(min(phase.device_end_bytes - phase.device_start_bytes for phase in newest), 0)
        return host, device
