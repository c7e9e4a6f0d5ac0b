"""What can be in the place of a file without being one."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def _socket(path: Path) -> None:
    # The path of a socket is short, and its folder may be deep.
    before = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("s")
        os.rename("s", path.name)
    finally:
        os.fchdir(before)
        os.close(before)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


OBSTACLES: dict[str, Callable[[Path], None]] = {
    "circle of links": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing-of-this-name"),
    "link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "link to an empty device": lambda path: path.symlink_to("/dev/null"),
    "FIFO": os.mkfifo,
    "folder": _full_folder,
    "link to a folder": lambda path: path.symlink_to("/usr"),
    "socket": _socket,
    "terabyte of zeros": _huge,
}
"""Name -> puts one at a path where nothing is."""


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace_by(path: Path, obstacle: str) -> None:
    remove(path)
    OBSTACLES[obstacle](path)
