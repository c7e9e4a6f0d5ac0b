"""Control groups that limit this process: version 1 and 2, from its own group up to the visible root."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from eigen_core.common.errors import InputError

logger = logging.getLogger(__name__)

_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USAGE_FILES = {1: "memory.usage_in_bytes", 2: "memory.current"}
# Version 1 writes "unlimited" as the largest multiple of a page below 2^63.
_UNLIMITED = 1 << 60
# What the kernel frees before it kills: files that were read or written, and its own caches.
_RECLAIMABLE = {
    1: ("total_active_file", "total_inactive_file"),
    2: ("active_file", "inactive_file", "slab_reclaimable"),
}


@dataclass(frozen=True)
class ControlGroup:
    """A control group that may limit memory or processor time.

    Attributes:
        version: of the interface.
        name: path of the group in its hierarchy, as `/proc/self/cgroup` gives it.
        folder: folder of its files.
    """

    version: Literal[1, 2]
    name: str
    folder: Path

    @property
    def limit_file(self) -> Path:
        """File that holds the limit."""
        return self.folder / _LIMIT_FILES[self.version]

    def limit(self) -> int | None:
        """Return the limit (bytes); None if the group has none of its own.

        Raises:
            InputError: the file is there and cannot be read or understood.
        """
        path = self.limit_file
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(
                f"the memory limit of control group {self.name} cannot be read from {path}: {error.strerror}. "
                "Make it readable, or set memory.limit_gb to what the run may take."
            ) from error
        if text == "max":
            return None
        if not re.fullmatch(r"-?[0-9]+", text):
            raise InputError(
                f"the memory limit of control group {self.name} is no number: {path} says '{text[:40]}'. "
                "Set memory.limit_gb to what the run may take."
            )
        value = int(text)
        # -1 sets no limit in version 1.
        return None if value == -1 or value >= _UNLIMITED else value

    def cores(self) -> float | None:
        """Return how many processor cores the group has the time of; None if it has no limit of its own.

        A limit that cannot be read or understood is none: it would cost time, and nothing else.
        """
        if self.version == 2:
            words = " ".join(_lines(self.folder / "cpu.max")).split()
        else:
            words = [*_lines(self.folder / "cpu.cfs_quota_us"), *_lines(self.folder / "cpu.cfs_period_us")]
        # Version 2 writes max where there is no limit, version 1 a quota of -1.
        if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
            return None
        return int(words[0]) / int(words[1])

    def taken(self) -> int | None:
        """Return what the group holds that the kernel cannot simply drop (bytes); None where that is not known."""
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
    """Find the groups of this process that have a controller, the innermost first, each followed by those above it.

    A container sees its own group as the root of the mount; the path in `/proc/self/cgroup` then leads outside and the
    mount's root stands for it.

    Args:
        root: folder that stands for the root of the file system.
        controller: of what is limited.
    """
    mounts = _mounts(root, controller)
    for version, name in _memberships(root, controller):
        if version in mounts:
            point, mount_root = mounts[version]
            yield from _upwards(version, PurePosixPath(name), mount_root, root / point.lstrip("/"))


def _memberships(root: Path, controller: str) -> Iterator[tuple[Literal[1, 2], str]]:
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, name = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number == "0" and not controllers:
            yield 2, name
        elif controller in controllers.split(","):
            yield 1, name


def _mounts(root: Path, controller: str) -> dict[int, tuple[str, str]]:
    """Where each version is mounted, and which part of its hierarchy: `{version: (mount point, root)}`."""
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
        # A group of version 1 can be set to leave out its children.
        if index > 0 and version == 1 and _lines(folder / "memory.use_hierarchy") == ["0"]:
            return
        if folder.is_dir():
            yield ControlGroup(version, str(names[min(index, len(names) - 1)]), folder)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError as error:
        logger.debug("%s cannot be read: %s.", path, error)
        return []
