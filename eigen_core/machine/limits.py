"""The limits on the memory of a run, and where each comes from."""

import logging
import resource
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self

import psutil
import torch

from eigen_core.common.errors import InputError
from eigen_core.common.text import BYTES_PER_GB, size
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.control_groups import ControlGroup, control_groups
from eigen_core.machine.process import proc_entries

logger = logging.getLogger(__name__)

LimitKind = Literal["run", "group", "address_space", "machine"]


@dataclass(frozen=True)
class Limit:
    """A limit on memory.

    Attributes:
        bytes: the limit.
        origin: where it comes from, in words: "control group /docker/1f2e (memory.max)", or the name of a GPU.
    """

    bytes: int
    origin: str

    def __str__(self) -> str:
        return f"{size(self.bytes)} ({self.origin})"


@dataclass(frozen=True)
class HostLimit(Limit):
    """A limit on the memory of the host.

    Attributes:
        kind: what counts against it. `run`: this process and its children; `group`: all processes of a control group;
            `machine`: all processes; `address_space`: the addresses of this process, whether memory is behind them or
            not.
        group: the control group, of kind `group`.
    """

    kind: LimitKind
    group: ControlGroup | None = None


@dataclass(frozen=True)
class DeviceLimit(Limit):
    """The memory of a GPU, as its driver reports it."""

    device: torch.device


@dataclass(frozen=True)
class HostLimits:
    """Every limit that was found, the smallest first; there is always one."""

    limits: tuple[HostLimit, ...]

    @property
    def smallest(self) -> HostLimit:
        """The smallest limit."""
        return self.limits[0]


@dataclass(frozen=True)
class Pressure(Limit):
    """A reading of the memory against a limit (bytes).

    Attributes:
        counted: what counts against it.
        soft, hard: where its soft and its hard line are.
    """

    counted: int
    soft: int
    hard: int

    @classmethod
    def on(cls, limit: Limit, counted: int, memory: MemoryConfig) -> Self:
        """Return the pressure of `counted` bytes on a limit."""
        return cls(limit.bytes, limit.origin, counted, int(limit.bytes * memory.soft), int(limit.bytes * memory.hard))

    @property
    def share(self) -> float:
        """Counted memory, as a share of the limit."""
        return self.counted / self.bytes

    def __str__(self) -> str:
        return f"{size(self.counted)} of {super().__str__()}, {self.share:.0%}"


def host_limits(
    memory: MemoryConfig, root: Path = Path("/"), address_space: int | None = None, physical: int | None = None
) -> HostLimits:
    """Find every limit of the host: control groups, RLIMIT_AS, physical memory, `memory.limit_gb`.

    A `memory.limit_gb` above what the machine allows is logged as a warning and has no effect.

    Args:
        memory: settings of the run.
        root: folder that stands for the root of the file system.
        address_space: stands for RLIMIT_AS (bytes); None: of the system.
        physical: stands for the memory of the machine (bytes); None: of the system.

    Raises:
        InputError: a limit is zero or negative, or a control group's cannot be read while
            `memory.limit_gb` gives no other.
    """
    total = memory_of_machine(root)[0] if physical is None else physical
    found = [HostLimit(total, "physical memory", "machine")]
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0] if address_space is None else address_space
    if addresses != resource.RLIM_INFINITY:
        found.append(HostLimit(addresses, "address space of the process, RLIMIT_AS, ulimit -v", "address_space"))
    found += _group_limits(root, optional=memory.limit_gb is not None)
    for limit in found:
        if limit.bytes <= 0:
            raise InputError(
                f"the memory limit from {limit.origin} is {limit.bytes} bytes: nothing can run under it. Raise it."
            )
    if memory.limit_gb is not None:
        given = HostLimit(max(int(memory.limit_gb * BYTES_PER_GB), 1), "memory.limit_gb", "run")
        machine = min(found, key=lambda limit: limit.bytes)
        if given.bytes > machine.bytes:
            _warn_once(f"memory.limit_gb {memory.limit_gb:g} is above what the machine allows, {machine}: that counts.")
        found.append(given)
    return HostLimits(tuple(sorted(found, key=lambda limit: limit.bytes)))


@cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)


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


def memory_of_machine(root: Path = Path("/")) -> tuple[int, int]:
    """Return the physical memory, and how much of it is available as the system reports it (bytes).

    Raises:
        InputError: the system does not report it.
    """
    path = root / "proc/meminfo"
    try:
        known = proc_entries(path)
    except OSError as error:
        if root == Path("/") and isinstance(error, FileNotFoundError):
            machine = psutil.virtual_memory()
            return int(machine.total), int(machine.available)
        raise InputError(
            f"the memory of this machine is not known: {path} cannot be read: {error.strerror}. Make it readable."
        ) from error
    if "MemTotal" not in known:
        raise InputError(f"the memory of this machine is not known: {path} has no line MemTotal.")
    total = known["MemTotal"]
    return total, known.get("MemAvailable", known.get("MemFree", total))


def device_limit(device: torch.device) -> DeviceLimit | None:
    """Return the memory of a GPU; None for the CPU.

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
