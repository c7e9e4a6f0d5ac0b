"""A file or folder of a run is replaced by a link, a device or a huge file."""

from pathlib import Path

import numpy as np
from obstacles import OBSTACLES

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.small_run import copied, resumed
from eigen_core.checkpoint.integrity import is_verified
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store import LocalStore


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    """Replace a file or a folder of a run, and resume the run."""
    run = copied(folder)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    paths = [*files, run / "lock", run / "blobs", run / "manifests"]
    path = paths[int(generator.integers(len(paths)))]
    obstacle = list(OBSTACLES)[int(generator.integers(len(OBSTACLES)))]
    name = path.relative_to(run).as_posix()
    is_foreign = obstacle not in ("folder", "terabyte of zeros") and not is_verified(name)
    may_refuse = is_foreign or path in paths[len(files) :] or name in _needed_by_all(run)
    if path.exists():
        path.rename(folder / "before")
    OBSTACLES[obstacle](path)
    treatment, fault = resumed(folder)
    if treatment == "refused" and not may_refuse:
        fault = "it is refused although a generation is whole"
    return Outcome(f"{name.partition('/')[0]} replaced", treatment, fault and f"{obstacle} at {name}: {fault}")


def _needed_by_all(run: Path) -> set[str]:
    """Return the names of the blobs that every generation needs."""
    found = RunContents(LocalStore(run.parent), run.name).manifests()
    return set.intersection(*(set(manifest.blobs) for manifest in found))
