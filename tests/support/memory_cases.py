"""A memory that tests set by hand."""

from dataclasses import dataclass

from memory_store import Clock

from eigen_core.config.model import MemoryConfig
from eigen_core.machine.limits import DeviceLimit, HostLimit
from eigen_core.machine.memory_guard import MemoryGuard
from eigen_core.machine.memory_report import MemoryReport
from eigen_core.machine.memory_usage import DeviceUsage, SystemMeter, Usage

MB = 1_000_000
LIMIT = 1_000 * MB


def host_bytes() -> int:
    return SystemMeter(()).read().host


@dataclass
class HandMeter(SystemMeter):
    own: int = 100 * MB
    children: int = 0
    others: int = 0
    device: DeviceUsage | None = None
    kept_peak: int = 0
    resets: int = 0
    readings: int = 0

    def read(self) -> Usage:
        self.readings += 1
        return Usage(self.own, self.children, (self.own + self.children + self.others,), self.device)

    def peaks(self) -> tuple[int, DeviceUsage | None]:
        return self.kept_peak, None

    def reset_peaks(self) -> None:
        self.resets += 1


def bare_report(reason: str = "a test") -> MemoryReport:
    return MemoryReport("2026-01-01T00:00:00+00:00", reason, nearest="nothing", usage=Usage(0, 0, ()))


class QuickGuard(MemoryGuard):
    def report(self, reason: str) -> MemoryReport:
        # Measuring takes long in a process full of tests.
        return bare_report(reason)


def hand_guard(
    meter: HandMeter,
    clock: Clock | None = None,
    memory: MemoryConfig | None = None,
    *,
    watch: bool = False,
    measures: bool = False,
    limits: tuple[HostLimit, ...] = (HostLimit(LIMIT, "a limit for tests", "run"),),
    device_limit: DeviceLimit | None = None,
) -> MemoryGuard:
    """A guard over `meter` that looks only when told to; its reports are empty unless it `measures`."""
    kind, clock = MemoryGuard if measures else QuickGuard, clock or Clock()
    return kind(limits, memory or MemoryConfig(), device_limit=device_limit, meter=meter, clock=clock, watch=watch)
