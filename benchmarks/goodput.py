"""Goodput of a training under server and worker whose process is killed repeatedly.

`python -m benchmarks.goodput [--minutes 5 15 60] [--kills 2]` kills at each of these intervals (minutes).
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.overhead import launch, server_and_worker
from benchmarks.results import Section, publish, require_idle
from eigen_core.runs.journals import Goodput

_RUN = "goodput"
_RECOVERY_SECONDS = 600.0
_GOAL = "The goal is at least 95 % at one kill in 15 minutes."


def run(minutes: Sequence[float] = (1.0,), kills: int = 5) -> Section:
    measured = {each: _train_under_kills(60.0 * each, kills) for each in minutes}
    rows = [_row(f"{each:g} min, {kills} kills", found) for each, found in measured.items()]
    return Section(
        title="Goodput under kills",
        method="Preset quickstart under server and worker; the process that trains is killed (SIGKILL) once in so many "
        "minutes, and the deployment's trigger resumes the run. Goodput: time of saved work, as a share of all time "
        "since the run's first start.",
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
    """Return the goodput of a training whose process is killed `kills` times, `seconds` apart."""
    with tempfile.TemporaryDirectory(prefix="eigen-goodput-") as folder, server_and_worker(Path(folder)) as operated:
        launch(
            operated, "quickstart", _RUN, ("generations=100000", "checkpoint.keep_every=0", "reporting.plot_every=0")
        )
        operated.wait_for_generation(_RUN, 1)
        for _ in range(kills):
            time.sleep(seconds)
            operated.engine().kill()
            operated.wait_for_generation(_RUN, operated.generation(_RUN) + 1, _RECOVERY_SECONDS)
        time.sleep(seconds)
        found = operated.status(_RUN).goodput
    assert found is not None
    if found.interruptions != kills:
        raise RuntimeError(f"{kills} kills were {found.interruptions} interruptions")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0, 15.0, 60.0])
    parser.add_argument("--kills", type=int, default=2)
    arguments = parser.parse_args()
    require_idle(["goodput"])
    publish("goodput", run(arguments.minutes, arguments.kills))


if __name__ == "__main__":
    main()
