"""Goodput under kills: a training under server and worker whose process is killed again and again.

`python -m benchmarks.goodput [--minutes 5 15 60] [--kills 2]` kills once in so many minutes, and takes the sum of all.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.operated_training import Operated
from benchmarks.results import Section, keep, require_idle
from eigen_core.checkpoint.integrity import CONFIG_NAME, LOCK_NAME
from eigen_core.checkpoint.location import RunLocation
from eigen_core.config.model import CheckpointConfig
from eigen_core.training.journals import Goodput
from eigen_core.training.runs import status_of

_RUN = "goodput"
_POLL_SECONDS = 0.2
_GOAL = "The goal is at least 95 % at one kill in 15 minutes."


def run(minutes: Sequence[float] = (1.0,), kills: int = 5) -> Section:
    measured = {each: _train_under_kills(60.0 * each, kills) for each in minutes}
    rows = [_row(f"{each:g} min, {kills} kills", found) for each, found in measured.items()]
    return Section(
        title="Goodput under kills",
        method="Preset quickstart under server and worker; the process that trains is killed (SIGKILL) once in so many "
        "minutes, and the deployment's trigger resumes the run. Goodput: the time whose work checkpoints hold, as a "
        "share of all from the run's first start on.",
        columns=("one kill in", "goodput", "lost a kill: s", "to recover: s", "the same at 15 min", "at 60 min"),
        rows=rows,
        remarks=(
            "The last two columns are computed: what a kill has lost and what its recovery took, as a share of 15 and "
            "of 60 minutes. Half a generation is lost on average; one of quickstart takes about 2 s.",
            _GOAL,
        ),
    )


def _row(rate: str, found: Goodput) -> tuple[str, ...]:
    lost = found.lost_seconds / found.interruptions
    recovery = found.recovery_seconds or 0.0
    computed = [f"{1.0 - (lost + recovery) / (60.0 * minutes):.1%}" for minutes in (15, 60)]
    return (rate, f"{found.share:.1%}", f"{lost:.1f}", f"{recovery:.1f}", *computed)


def _train_under_kills(seconds: float, kills: int) -> Goodput:
    """Return the goodput of a training whose process is killed `kills` times, so many seconds apart."""
    with tempfile.TemporaryDirectory(prefix="eigen-goodput-") as folder, Operated(Path(folder)) as operated:
        operated.launch("quickstart", _RUN, ("generations=100000", "reporting.plot_every=0"))
        folder_of_run = operated.store / _RUN
        _wait_for_generation_after(folder_of_run, 0)
        for _ in range(kills):
            time.sleep(seconds)
            holder = json.loads((folder_of_run / LOCK_NAME).read_text())["pid"]
            os.kill(holder, signal.SIGKILL)
            _wait_for_generation_after(folder_of_run, _newest(folder_of_run))
        time.sleep(seconds)
        found = status_of(str(operated.store), _RUN).goodput
    assert found is not None
    if found.interruptions != kills:
        raise RuntimeError(f"{kills} kills were {found.interruptions} interruptions")
    return found


def _newest(folder: Path) -> int:
    """The newest complete generation of a run in its folder; 0: none."""
    if not (folder / CONFIG_NAME).exists():
        return 0
    newest = RunLocation.of(CheckpointConfig(store=str(folder.parent)), folder.name).local.newest_manifest()
    return 0 if newest is None else newest.generation


def _wait_for_generation_after(folder: Path, generation: int) -> None:
    while _newest(folder) <= generation:
        time.sleep(_POLL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0, 15.0, 60.0])
    parser.add_argument("--kills", type=int, default=2)
    arguments = parser.parse_args()
    require_idle(["goodput"])
    section = run(arguments.minutes, arguments.kills)
    section.show(Console())
    keep({"goodput": section}, ALL_SECTIONS)


if __name__ == "__main__":
    main()
