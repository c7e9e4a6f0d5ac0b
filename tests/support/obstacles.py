"""What can be in the place of a file without being one."""

import os
import shutil
import socket
from pathlib import Path


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


def _lost_link(path: Path) -> None:
    path.symlink_to("nothing-of-this-name")


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _empty_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def _link_to_folder(path: Path) -> None:
    path.symlink_to("/usr")


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


OBSTACLES = {
    "circle of links": _circle,
    "link to nothing": _lost_link,
    "link to a device without end": _endless,
    "link to an empty device": _empty_device,
    "FIFO": os.mkfifo,
    "folder": _full_folder,
    "link to a folder": _link_to_folder,
    "socket": _socket,
    "terabyte of zeros": _huge,
}
"""Name -> puts one at a path where nothing is."""


def replace_by(path: Path, obstacle: str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    OBSTACLES[obstacle](path)
