"""How much memory a run may take, and who says so."""

import logging
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
import torch

from eigen_core.config.sections import MemoryConfig
from eigen_core.errors import InputError
from eigen_core.memory.control_groups import ControlGroup, control_groups
from eigen_core.units import BYTES_PER_GB, size

logger = logging.getLogger(__name__)

LimitKind = Literal["run", "group", "address_space", "machine"]


@dataclass(frozen=True)
class HostLimit:
    """A bound on the memory of the host.

    Attributes:
        bytes: the bound.
        origin: who sets it, in words: "control group /docker/1f2e (memory.max)".
        kind: what counts against it. `run`: this process and its children; `group`: all processes of a control group;
            `machine`: all processes; `address_space`: the addresses of this process, whether memory is behind them or
            not.
        group: the control group, of kind `group`.
    """

    bytes: int
    origin: str
    kind: LimitKind
    group: ControlGroup | None = None

    def __str__(self) -> str:
        return f"{size(self.bytes)} ({self.origin})"


@dataclass(frozen=True)
class DeviceLimit:
    """The memory of a GPU.

    Attributes:
        bytes: what the driver says the device has.
        origin: the device's name, in words.
        device: the device.
    """

    bytes: int
    origin: str
    device: torch.device

    def __str__(self) -> str:
        return f"{size(self.bytes)} ({self.origin})"


@dataclass(frozen=True)
class HostLimits:
    """Every bound that was found, the smallest first; there is always one."""

    limits: tuple[HostLimit, ...]

    @property
    def smallest(self) -> HostLimit:
        """The bound that counts."""
        return self.limits[0]


def host_limits(
    memory: MemoryConfig, root: Path = Path("/"), address_space: int | None = None, physical: int | None = None
) -> HostLimits:
    """Find every bound on the host: control groups, RLIMIT_AS, physical memory, `memory.limit_gb`.

    A limit of the user's own that is above what the machine allows is logged as a warning and has no effect.

    Args:
        memory: settings of the run.
        root: folder that stands for the root of the file system.
        address_space: stands for RLIMIT_AS (bytes); None: asked of the system.
        physical: stands for the memory of the machine (bytes); None: asked of the system.

    Raises:
        InputError: a limit is zero or negative, or a control group's cannot be read while
            `memory.limit_gb` gives no other.
    """
    given = _given_limit(memory)
    found = [_physical_limit(root, physical), *_address_space_limit(address_space)]
    found += _group_limits(root, optional=given is not None)
    for limit in found:
        if limit.bytes <= 0:
            raise InputError(
                f"the memory limit from {limit.origin} is {limit.bytes} bytes: nothing can run under it. Raise it."
            )
    machine = min(found, key=lambda limit: limit.bytes)
    if given is not None:
        if given.bytes > machine.bytes:
            _warn_once(f"memory.limit_gb {memory.limit_gb:g} is above what the machine allows, {machine}: that counts.")
        found.append(given)
    return HostLimits(tuple(sorted(found, key=lambda limit: limit.bytes)))


@cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)


def device_limit(device: torch.device) -> DeviceLimit | None:
    """Return what the driver says of a GPU; None for the CPU.

    Raises:
        InputError: the driver does not answer.
    """
    if device.type != "cuda":
        return None
    try:
        _, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
    except RuntimeError as error:
        raise InputError(
            f"the driver does not say how much memory {device} has: {str(error).splitlines()[0]}. "
            "Check the driver with nvidia-smi, or use device cpu."
        ) from error
    return DeviceLimit(int(total), f"{name}, as its driver says", device)


def _given_limit(memory: MemoryConfig) -> HostLimit | None:
    if memory.limit_gb is None:
        return None
    return HostLimit(max(int(memory.limit_gb * BYTES_PER_GB), 1), "memory.limit_gb", "run")


def _physical_limit(root: Path, physical: int | None) -> HostLimit:
    if physical is None:
        physical = memory_of_machine(root)[0]
    return HostLimit(physical, "physical memory", "machine")


def memory_of_machine(root: Path = Path("/")) -> tuple[int, int]:
    """Return the physical memory and how much of it the system calls available (bytes).

    Raises:
        InputError: the system does not say.
    """
    path = root / "proc/meminfo"
    try:
        entries = [line.split() for line in path.read_text().splitlines()]
    except OSError as error:
        if root == Path("/") and isinstance(error, FileNotFoundError):
            machine = psutil.virtual_memory()
            return int(machine.total), int(machine.available)
        raise InputError(
            f"the memory of this machine is not known: {path} cannot be read: {error.strerror}. Make it readable."
        ) from error
    known = {entry[0]: int(entry[1]) * 1024 for entry in entries if len(entry) >= 2 and entry[1].isdigit()}
    if "MemTotal:" not in known:
        raise InputError(f"the memory of this machine is not known: {path} has no line MemTotal.")
    total = known["MemTotal:"]
    return total, known.get("MemAvailable:", known.get("MemFree:", total))


def _address_space_limit(given: int | None) -> Sequence[HostLimit]:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0] if given is None else given
    if soft == resource.RLIM_INFINITY:
        return ()
    return (HostLimit(soft, "address space of the process, RLIMIT_AS, ulimit -v", "address_space"),)


def _group_limits(root: Path, *, optional: bool) -> list[HostLimit]:
    limits = []
    for group in control_groups(root):
        try:
            limit = group.limit()
        except InputError as error:
            if not optional:
                raise
            logger.warning("%s", error)
            continue
        if limit is not None:
            origin = f"control group {group.name}, {group.limit_file.name}"
            limits.append(HostLimit(limit, origin, "group", group))
    return limits
