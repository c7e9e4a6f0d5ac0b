"""The memory of each phase, and the prediction for the next phase of the same name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eigen_core.memory.usage import DeviceUsage, Usage

# A prediction is made from this many phases of the name, the newest.
_REMEMBERED = 3


@dataclass(frozen=True)
class PhaseUsage:
    """The memory of a phase (bytes; times in seconds since the guard was made).

    Attributes:
        phase, generation: name and generation.
        began, ended: when; `ended` is the present for a phase under way.
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
        self._peak = self._allocated = self._reserved = 0
        self.note(usage)

    def note(self, usage: Usage) -> None:
        """Add a reading."""
        self._last = usage
        self.note_peaks(usage.own, usage.device)

    def note_peaks(self, own: int | None, device: DeviceUsage | None) -> None:
        """Add peaks that the system has kept: of this process, of the device."""
        if own is not None:
            self._peak = max(self._peak, own + self._last.children)
        if device is not None:
            self._allocated = max(self._allocated, device.allocated)
            self._reserved = max(self._reserved, device.reserved)

    def until(self, now: float) -> PhaseUsage:
        """Return the memory of the phase until `now`, by the last reading."""
        return PhaseUsage(
            phase=self.name,
            generation=self.generation,
            began=self._began,
            ended=now,
            start_bytes=self._start.host,
            peak_bytes=self._peak,
            end_bytes=self._last.host,
            device_start_bytes=self._start.device.allocated if self._start.device else 0,
            device_end_bytes=self._last.device.allocated if self._last.device else 0,
            device_allocated_peak=self._allocated,
            device_reserved_peak=self._reserved,
        )


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
