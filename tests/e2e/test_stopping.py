"""A training that is cancelled or stopped in any phase is whole, and goes on with it."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
from operated import BUSY_SECONDS, GENERATIONS, Operated, Undisturbed, is_told_to_stop, outcome

from eigen_core.housekeeping import verify_run
from eigen_core.runs.handle import Run

pytestmark = pytest.mark.thorough


def assert_shown(operated: Operated, run: str, number: str) -> None:
    """What runs, and how far it is, is told while a run is trained; a second `eigen up` starts nothing."""
    again = operated.up()
    assert again.stdout.count("runs already") == 2
    assert f"{operated.pages}\n" in again.stdout
    assert "deployments" not in again.stderr
    status = json.loads(operated.eigen("status", "--json").stdout)
    assert status["up"]
    assert (status["server"]["api"], status["server"]["version"]) == (operated.api, "3.8.8")
    assert status["worker"]["folder"] == str(operated.folder)
    assert status["flow_run"]["active"]
    assert status["flow_run"]["page"] == f"{operated.pages}/runs/flow-run/{number}"
    assert status["schedule"]["active"]
    assert (status["run"]["run"], status["run"]["state"]) == (run, "running")
    assert status["run"]["generation"] >= 1


def assert_whole(operated: Operated, run: str, generation: int) -> None:
    """Nothing trains the run, which is undamaged up to this generation."""
    assert operated.generation(run) == generation
    assert verify_run(str(operated.store), run, deep=True).damages == ()
    assert not Run.open(str(operated.store), run).is_running()


def assert_down(operated: Operated, run: str) -> None:
    """Nothing runs, and what was trained is told all the same."""
    assert operated.down().startswith("No server or worker of `eigen up` runs")
    ended = operated.try_eigen("status", "--json")
    status = json.loads(ended.stdout)
    assert (ended.returncode, status["up"], status["server"], status["worker"]["running"]) == (1, False, None, False)
    assert (status["run"]["run"], status["run"]["state"]) == (run, "unfinished")


def test_a_training_that_was_stopped_in_a_phase_is_whole_and_goes_on(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    run = "stopped"
    operated.submit(run, settings, GENERATIONS)
    operated.wait_for_generation(run, 1, BUSY_SECONDS)
    engine = operated.hold_in("checkpoint")
    whole = operated.whole_after("checkpoint")
    number = operated.flow_runs(run)[-1]["id"]
    assert_shown(operated, run, number)
    with ThreadPoolExecutor(1) as other:
        down = other.submit(operated.down)
        operated.wait(BUSY_SECONDS, partial(is_told_to_stop, engine), "SIGTERM", every=0.01)
        told = time.monotonic()
        engine.resume()
        psutil.wait_procs([engine], timeout=BUSY_SECONDS)
        measured(f"stopped in checkpoint, and the process has ended: {time.monotonic() - told:.1f} s")
        said = down.result()
    assert "killed" not in said
    assert "was asked to stop" in said
    assert_whole(operated, run, whole)
    assert_down(operated, run)
    up = time.monotonic()
    operated.up()
    assert operated.flow_run(number)["state"]["name"] == "Crashed"
    operated.wait_for_generation(run, whole + 1, BUSY_SECONDS)
    measured(f"`eigen down` in checkpoint, `eigen up`: next generation after {time.monotonic() - up:.1f} s")
    assert operated.finish(run) == ["Crashed", "Completed"]
    assert outcome(operated.status(run)) == undisturbed.outcome(GENERATIONS)


def test_a_training_cancelled_in_a_phase_is_whole_and_is_not_resumed_by_the_crash_of_another(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    run = "cancelled"
    number = operated.submit(run, settings, 1_000)
    operated.wait_for_generation(run, 1)
    engine = operated.hold_in("train")
    whole = operated.whole_after("train")
    operated.cancel(number)
    operated.wait(60, partial(is_told_to_stop, engine), "SIGTERM", every=0.01)
    told = time.monotonic()
    engine.resume()
    psutil.wait_procs([engine], timeout=30)
    measured(f"cancelled in train, and the process has ended: {time.monotonic() - told:.1f} s")
    assert not engine.is_running()
    assert operated.wait_for_end(number) == "Cancelled"
    # Who cancels a training does not want it back.
    operated.wait(30, lambda: not operated.is_resuming(), "the schedule to be off")
    assert_whole(operated, run, whole)
    operated.wait(30, operated.is_idle, "the end of what was asked for")
    assert len(operated.flow_runs(run)) == 1
    assert outcome(operated.status(run)) == undisturbed.outcome(whole)

    # Killed before it has a file: the trigger trains it, and it alone.
    number = operated.launch("early", ["--generations", "2", *settings])
    operated.wait(BUSY_SECONDS, lambda: bool(operated.engines()), "its process", every=0.01)
    operated.engine().kill()
    assert not (operated.store / "early").exists()
    assert operated.wait_for_end(number) == "Crashed"
    operated.wait_for_generation("early", 2, BUSY_SECONDS)
    operated.wait(BUSY_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status("early")) == undisturbed.outcome(2)
    assert operated.generation(run) == whole
    assert not operated.is_resuming()
    shutil.rmtree(operated.store / run)
