"""The memory of each phase, and the prediction for the next phase of the same name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from eigen_core.memory.usage import DeviceUsage, Usage

# A prediction is made from this many phases of the name, the newest.
_REMEMBERED = 3
_NO_DEVICE = DeviceUsage(0, 0, 0)


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
