"""The machine of a run: memory limits, use, guard, reports; threads, chunk sizes, profiles, GPUs, reproducibility."""

from eigen_core.machine.allocation import SharedTensor, lazy_zeros, shared_memory_check, shared_zeros, shares_memory
from eigen_core.machine.limits import DeviceLimit, HostLimit, device_limit, host_limits
from eigen_core.machine.memory_guard import MemoryGuard, MemoryGuardError
from eigen_core.machine.memory_report import MemoryReport, install_report_signal, report_markdown, write_report
from eigen_core.machine.memory_usage import (
    DeviceUsage,
    PhaseUsage,
    Usage,
    device_bytes,
    headroom_bytes,
    peak_resident_bytes,
    release_free_memory,
    reset_peak,
    tune_allocator,
)

__all__ = [
    "DeviceLimit",
    "DeviceUsage",
    "HostLimit",
    "MemoryGuard",
    "MemoryGuardError",
    "MemoryReport",
    "PhaseUsage",
    "SharedTensor",
    "Usage",
    "device_bytes",
    "device_limit",
    "headroom_bytes",
    "host_limits",
    "install_report_signal",
    "lazy_zeros",
    "peak_resident_bytes",
    "release_free_memory",
    "report_markdown",
    "reset_peak",
    "shared_memory_check",
    "shared_zeros",
    "shares_memory",
    "tune_allocator",
    "write_report",
]
