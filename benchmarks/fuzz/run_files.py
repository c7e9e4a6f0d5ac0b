"""A file or folder of a run is replaced by what is no file, or by too large a one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.small_run import copied, resumed
from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.local import LocalStore


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


_OBSTACLES: dict[str, Callable[[Path], None]] = {
    "circle of links": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "link to an empty device": lambda path: path.symlink_to("/dev/null"),
    "link to a folder": lambda path: path.symlink_to("/usr/share"),
    "link to itself elsewhere": lambda path: path.symlink_to(path.parent),
    "FIFO": os.mkfifo,
    "folder": _full_folder,
    "terabyte of zeros": _huge,
    "empty file": lambda path: path.touch(),
}


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    """Replace one file of a run, or one of its folders, and go on with the run."""
    run = copied(folder)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    paths = [*files, run / "lock", run / "blobs", run / "manifests"]
    path = paths[int(generator.integers(len(paths)))]
    obstacle = list(_OBSTACLES)[int(generator.integers(len(_OBSTACLES)))]
    name = path.relative_to(run).as_posix()
    may_refuse = path in paths[len(files) :] or name in _needed_by_all(run)
    if path.exists():
        # Not removed: a folder may have much in it.
        path.rename(folder / "before")
    _OBSTACLES[obstacle](path)
    treatment, fault = resumed(folder)
    if treatment == "refused" and not may_refuse:
        fault = "it is refused although a generation is whole"
    return Outcome(f"{name.partition('/')[0]} replaced", treatment, fault and f"{obstacle} at {name}: {fault}")


def _needed_by_all(run: Path) -> set[str]:
    """Return the names of the blobs without which no generation is whole."""
    found = RunContents(LocalStore(run.parent), run.name).manifests()
    return set.intersection(*(set(manifest.blobs) for manifest in found))
