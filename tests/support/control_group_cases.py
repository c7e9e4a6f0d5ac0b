"""File systems with control groups."""

from collections.abc import Mapping
from pathlib import Path

VERSION_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
VERSION_2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def system(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """A file system with /proc and control groups; `files` are relative to /sys/fs/cgroup."""
    own = root / "proc/self"
    own.mkdir(parents=True)
    own.joinpath("cgroup").write_text(groups)
    own.joinpath("mountinfo").write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{mounts}")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
