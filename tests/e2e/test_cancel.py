"""A training that is cancelled in any phase leaves a valid checkpoint and no lock, and goes on with it."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from operated import PHASES, Operated, Undisturbed, outcome

from eigen_core.checkpoint import RunDirectory
from flows.housekeeping import verify_run

_ENOUGH = 1_000
_SIGTERM = 15


def is_told_to_stop(process: psutil.Process) -> bool:
    """Whether a process that is held has a SIGTERM waiting for it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (_SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.parametrize(
    "phases", [pytest.param(PHASES[1::2], id="two"), pytest.param(PHASES, id="each", marks=pytest.mark.slow)]
)
def test_a_training_cancelled_in_a_phase_is_whole_and_goes_on(
    operated: Operated,
    settings: list[str],
    undisturbed: Undisturbed,
    measured: Callable[[str], None],
    phases: tuple[str, ...],
) -> None:
    run = f"cancelled-{len(phases)}"
    names, times = [], []
    for phase in phases:
        # Each launch goes on with what the cancelled one before has left.
        number = operated.launch(run, ["--generations", str(_ENOUGH), *settings])
        before = operated.generation(run)
        operated.wait_for_generation(run, before + 1)
        engine = operated.hold_in(phase)
        whole = operated.generation(run)
        operated.cancel(number)
        operated.wait(60, lambda engine=engine: is_told_to_stop(engine), f"SIGTERM in {phase}", every=0.01)
        told = time.monotonic()
        engine.resume()
        psutil.wait_procs([engine], timeout=30)
        times.append(f"{phase} {time.monotonic() - told:.1f} s")
        assert not engine.is_running(), phase
        assert operated.wait_for_end(number) == "Cancelled"
        # In the checkpoint phase, the generation may have been committed before the signal was heard.
        assert operated.generation(run) in (whole, whole + (phase == "checkpoint")), phase
        assert verify_run(str(operated.store), run, deep=True).damages == ()
        assert not RunDirectory.open(operated.store, run).is_locked()
        names.append(operated.flow_run(number)["name"])
    assert len(set(names)) == len(phases), names
    generations = operated.generation(run) + 1
    operated.eigen("resume", run, "--generations", str(generations), server=True)
    assert operated.status(run).state == "finished"
    assert outcome(operated.status(run)) == undisturbed.outcome(generations)
    measured(f"cancelled, and the process has ended: {', '.join(times)}")
