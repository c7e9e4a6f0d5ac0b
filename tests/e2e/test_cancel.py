"""A training that is cancelled in any phase leaves a valid checkpoint and no lock, and goes on with it."""

import shutil
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
from operated import PHASES, Operated, Undisturbed, is_told_to_stop, outcome

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.housekeeping import verify_run

pytestmark = pytest.mark.thorough

_ENOUGH = 1_000


@pytest.mark.parametrize(
    "phases", [pytest.param(PHASES[1:2], id="one"), pytest.param(PHASES, id="each", marks=pytest.mark.slow)]
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
        # Each flow run goes on with what the cancelled one before has left.
        number = operated.submit(run, settings, _ENOUGH)
        before = operated.generation(run)
        operated.wait_for_generation(run, before + 1)
        engine = operated.hold_in(phase)
        whole = operated.whole_after(phase)
        operated.cancel(number)
        operated.wait(60, partial(is_told_to_stop, engine), f"SIGTERM in {phase}", every=0.01)
        told = time.monotonic()
        engine.resume()
        psutil.wait_procs([engine], timeout=30)
        times.append(f"{phase} {time.monotonic() - told:.1f} s")
        assert not engine.is_running(), phase
        assert operated.wait_for_end(number) == "Cancelled"
        # Who cancels a training does not want it back.
        operated.wait(30, lambda: not operated.is_resuming(), "the schedule to be off")
        assert operated.generation(run) == whole, phase
        assert verify_run(str(operated.store), run, deep=True).damages == ()
        assert not RunDirectory.open(operated.store, run).is_locked()
        names.append(operated.flow_run(number)["name"])
    assert len(set(names)) == len(phases), names
    operated.wait(30, operated.is_idle, "the end of what was asked for")
    assert len(operated.flow_runs(run)) == len(phases)
    history = outcome(operated.status(run))
    assert len(history) >= len(phases)
    assert history == undisturbed.outcome(len(history))
    # The next crash, of whatever run, would go on with it.
    shutil.rmtree(operated.store / run)
    measured(f"cancelled, and the process has ended: {', '.join(times)}")
