"""Memory limits of a run: those of control groups, RLIMIT_AS, physical memory, settings (`MemoryConfig`) and a GPU."""

import logging
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal, Self

import psutil
import torch

from eigen_core.common.errors import InputError
from eigen_core.common.text import BYTES_PER_GB, percent, size
from eigen_core.config.model import MemoryConfig

logger = logging.getLogger(__name__)

_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USAGE_FILES = {1: "memory.usage_in_bytes", 2: "memory.current"}
# Version 1 writes "unlimited" as the largest multiple of a page below 2^63.
_UNLIMITED = 1 << 60
# The kernel frees these before it kills: files that were read or written, and its own caches.
_RECLAIMABLE = {
    1: ("total_active_file", "total_inactive_file"),
    2: ("active_file", "inactive_file", "slab_reclaimable"),
}


@dataclass(frozen=True)
class ControlGroup:
    """A control group that may limit memory or processor time.

    `version` is that of Linux's interface (cgroup v1 or v2), `name` the path of the group in its hierarchy
    (`/proc/self/cgroup`), and `folder` has the group's files.
    """

    version: Literal[1, 2]
    name: str
    folder: Path

    @property
    def limit_file(self) -> Path:
        return self.folder / _LIMIT_FILES[self.version]

    def limit(self) -> int | None:
        """Return the memory limit (bytes), None if the group has none; `InputError` if its file cannot be read."""
        path = self.limit_file
        try:
            text = path.read_text().strip()
            if text == "max":
                return None
            value = int(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"the memory limit of control group {self.name} cannot be read from {path} ({error}): set "
                "memory.limit_gb to the memory that the run may use (GB)."
            ) from error
        # -1 sets no limit in version 1.
        return None if value == -1 or value >= _UNLIMITED else value

    def has(self, process: int) -> bool:
        """Return whether a process, by its number, is in this group or in one below it."""
        return any(
            version == self.version and PurePosixPath(name).is_relative_to(self.name)
            for version, name in _memberships(Path("/"), "memory", str(process))
        )

    def cores(self) -> float | None:
        """Return the limit of processor time, in cores; None if the group has none, or if it cannot be read."""
        if self.version == 2:
            words = " ".join(_lines(self.folder / "cpu.max")).split()
        else:
            words = [*_lines(self.folder / "cpu.cfs_quota_us"), *_lines(self.folder / "cpu.cfs_period_us")]
        # Version 2 writes max where there is no limit, version 1 a quota of -1.
        if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
            return None
        return int(words[0]) / int(words[1])

    def used(self) -> int | None:
        """Return the memory in use by the group that the kernel cannot reclaim (bytes); None if it cannot be read."""
        try:
            usage = int(self.folder.joinpath(_USAGE_FILES[self.version]).read_text())
            statistics = self.folder.joinpath("memory.stat").read_text()
        except (OSError, ValueError) as error:
            logger.debug("The memory of control group %s is not known: %s.", self.name, error)
            return None
        wanted = _RECLAIMABLE[self.version]
        entries = (line.split() for line in statistics.splitlines())
        reclaimable = sum(int(entry[1]) for entry in entries if len(entry) == 2 and entry[0] in wanted)
        return max(usage - reclaimable, 0)


def control_groups(root: Path = Path("/"), controller: Literal["memory", "cpu"] = "memory") -> Iterator[ControlGroup]:
    """Yield the control groups of this process that have `controller`: each innermost one, then its parents.

    `root` is the root folder of the file system. A container may see its own group as the topmost: if the path in
    `/proc/self/cgroup` leads outside of the mounted folder, the group is that of this folder.
    """
    mounts = _mounts(root, controller)
    for version, name in _memberships(root, controller):
        if version in mounts:
            point, mount_root = mounts[version]
            yield from _upwards(version, PurePosixPath(name), mount_root, root / point.lstrip("/"))


def _memberships(root: Path, controller: str, process: str = "self") -> Iterator[tuple[Literal[1, 2], str]]:
    for line in _lines(root / "proc" / process / "cgroup"):
        number, controllers, name = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number == "0" and not controllers:
            yield 2, name
        elif controller in controllers.split(","):
            yield 1, name


def _mounts(root: Path, controller: str) -> dict[int, tuple[str, str]]:
    """Return mount point and mounted group of each cgroup version: `{2: ("/sys/fs/cgroup", "/")}`."""
    found: dict[int, tuple[str, str]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        # man 5 proc_pid_mountinfo: optional fields end with a dash.
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        mount_root, point = (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) for text in fields[3:5])
        if kind[0] == "cgroup2":
            found.setdefault(2, (point, mount_root))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            found.setdefault(1, (point, mount_root))
    return found


def _upwards(version: Literal[1, 2], path: PurePosixPath, mount_root: str, point: Path) -> Iterator[ControlGroup]:
    inside = PurePosixPath(".")
    if ".." not in path.parts and path.is_relative_to(mount_root):
        inside = path.relative_to(mount_root)
    names = [path, *path.parents]
    for index, part in enumerate([inside, *inside.parents]):
        folder = point / part
        if folder.is_dir():
            yield ControlGroup(version, str(names[min(index, len(names) - 1)]), folder)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError as error:
        logger.debug("%s cannot be read: %s.", path, error)
        return []


@cache
def warn_once(sentence: str) -> None:
    """Log a warning, the same sentence only once in a process."""
    logger.warning("%s", sentence)


LimitKind = Literal["run", "group", "address_space", "machine"]


@dataclass(frozen=True)
class Limit:
    """A limit on memory (bytes), and its origin: "control group /docker/1f2e (memory.max)", or the name of a GPU."""

    bytes: int
    origin: str

    def __str__(self) -> str:
        return f"{size(self.bytes)} ({self.origin})"


@dataclass(frozen=True)
class HostLimit(Limit):
    """A limit on the memory of the host.

    Its kind `run` counts this process and its children, `group` all processes of a control group, `machine` all
    processes, `address_space` the addresses of this process, whether memory is behind them or not.
    """

    kind: LimitKind
    group: ControlGroup | None = None


@dataclass(frozen=True)
class DeviceLimit(Limit):
    """The memory of a GPU, as its driver reports it."""

    device: torch.device


@dataclass(frozen=True)
class Pressure(Limit):
    """Use of a limit: memory `counted` against it, and its soft and hard line (bytes; see `MemoryConfig`)."""

    counted: int
    soft: int
    hard: int

    @classmethod
    def on(cls, limit: Limit, counted: int, memory: MemoryConfig) -> Self:
        return cls(limit.bytes, limit.origin, counted, int(limit.bytes * memory.soft), int(limit.bytes * memory.hard))

    @property
    def share(self) -> float:
        """`counted` as a share of the limit."""
        return self.counted / self.bytes

    def __str__(self) -> str:
        return f"{size(self.counted)} of {super().__str__()}, {percent(self.share, 0)}"


def host_limits(memory: MemoryConfig, root: Path = Path("/")) -> tuple[HostLimit, ...]:
    """Return all limits of the host, the smallest first: control groups, RLIMIT_AS, physical memory, `memory.limit_gb`.

    A `memory.limit_gb` above the smallest other limit has no effect and is logged as a warning. `InputError` if a limit
    is zero or negative, or a control group's cannot be read and `memory.limit_gb` is empty. `root`: of the file system.
    """
    found = [HostLimit(int(psutil.virtual_memory().total), "physical memory", "machine")]
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        found.append(HostLimit(addresses, "address space of the process, RLIMIT_AS, ulimit -v", "address_space"))
    for group in control_groups(root):
        try:
            limit_of_group = group.limit()
        except InputError as error:
            # With neither limit known, the kernel would kill the run.
            if memory.limit_gb is None:
                raise
            warn_once(str(error))
            continue
        if limit_of_group is not None:
            origin = f"control group {group.name}, {group.limit_file.name}"
            found.append(HostLimit(limit_of_group, origin, "group", group))
    for limit in found:
        if limit.bytes <= 0:
            raise InputError(
                f"the memory limit from {limit.origin} is {limit.bytes} bytes: nothing can run under it. Raise it."
            )
    if memory.limit_gb is not None:
        given = HostLimit(max(int(memory.limit_gb * BYTES_PER_GB), 1), "memory.limit_gb", "run")
        machine = min(found, key=lambda limit: limit.bytes)
        if given.bytes > machine.bytes:
            warn_once(f"memory.limit_gb {memory.limit_gb:g} is ignored, since it is above {machine}.")
        found.append(given)
    return tuple(sorted(found, key=lambda limit: limit.bytes))


def proc_entries(path: Path) -> dict[str, int]:
    """Return the entries of a file in /proc with lines such as "Pss: 12 kB", by name (bytes); may raise `OSError`."""
    entries = (line.split() for line in path.read_text().splitlines())
    return {entry[0].rstrip(":"): int(entry[1]) * 1024 for entry in entries if len(entry) == 3 and entry[2] == "kB"}


def device_limit(device: torch.device) -> DeviceLimit | None:
    """Return the memory of a GPU; None for the CPU. Raises `InputError` if its driver does not answer."""
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
