"""How much memory a run may take and takes: limits, guard, reports."""

from eigen_core.machine.allocation import unwritten_zeros
from eigen_core.machine.course import PhaseUsage
from eigen_core.machine.guard import MemoryGuard, MemoryGuardError
from eigen_core.machine.limits import (
    DeviceLimit,
    HostLimit,
    HostLimits,
    device_limit,
    host_limits,
)
from eigen_core.machine.process import (
    peak_resident_bytes,
    release_free_memory,
    reset_peak,
    tune_allocator,
)
from eigen_core.machine.report import MemoryReport, report_markdown, write_report
from eigen_core.machine.report_signal import install_report_signal
from eigen_core.machine.shared import SharedTensor, shared_probe, shared_zeros, shares_memory
from eigen_core.machine.usage import DeviceUsage, Usage, device_bytes, headroom_bytes, host_bytes

__all__ = [
    "DeviceLimit",
    "DeviceUsage",
    "HostLimit",
    "HostLimits",
    "MemoryGuard",
    "MemoryGuardError",
    "MemoryReport",
    "PhaseUsage",
    "SharedTensor",
    "Usage",
    "device_bytes",
    "device_limit",
    "headroom_bytes",
    "host_bytes",
    "host_limits",
    "install_report_signal",
    "peak_resident_bytes",
    "release_free_memory",
    "report_markdown",
    "reset_peak",
    "shared_probe",
    "shared_zeros",
    "shares_memory",
    "tune_allocator",
    "unwritten_zeros",
    "write_report",
]
