"""A training that is cancelled or stopped in any phase is whole, and goes on with it."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
from operated import BUSY_SECONDS, GENERATIONS, PHASES, Operated, Undisturbed, is_told_to_stop, outcome

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


def assert_down(operated: Operated, run: str) -> None:
    """Nothing runs, and what was trained is told all the same."""
    assert operated.down().startswith("No server or worker of `eigen up` runs")
    ended = operated.try_eigen("status", "--json")
    status = json.loads(ended.stdout)
    assert (ended.returncode, status["up"], status["server"], status["worker"]["running"]) == (1, False, None, False)
    assert (status["run"]["run"], status["run"]["state"]) == (run, "unfinished")


@pytest.mark.parametrize(
    ("phases", "generations"),
    [
        pytest.param(PHASES[3:], GENERATIONS, id="one"),
        pytest.param(PHASES, 3 * GENERATIONS, id="each", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_was_stopped_in_a_phase_is_whole_and_goes_on(
    operated: Operated,
    settings: list[str],
    undisturbed: Undisturbed,
    measured: Callable[[str], None],
    phases: tuple[str, ...],
    generations: int,
) -> None:
    run = f"stopped-{len(phases)}"
    operated.submit(run, settings, generations)
    times = []
    for phase in phases:
        operated.wait_for_generation(run, operated.generation(run) + 1, BUSY_SECONDS)
        engine = operated.hold_in(phase)
        whole = operated.whole_after(phase)
        number = operated.flow_runs(run)[-1]["id"]
        if phase == phases[0]:
            assert_shown(operated, run, number)
        with ThreadPoolExecutor(1) as other:
            down = other.submit(operated.down)
            operated.wait(BUSY_SECONDS, partial(is_told_to_stop, engine), f"SIGTERM in {phase}", every=0.01)
            told = time.monotonic()
            engine.resume()
            psutil.wait_procs([engine], timeout=BUSY_SECONDS)
            times.append(f"{phase} {time.monotonic() - told:.1f} s")
            said = down.result()
        assert "killed" not in said
        assert operated.generation(run) == whole, phase
        assert f"its last checkpoint is generation {whole} of" in said
        assert verify_run(str(operated.store), run, deep=True).damages == ()
        assert not Run.open(str(operated.store), run).is_running()
        if phase == phases[0]:
            assert_down(operated, run)
        up = time.monotonic()
        operated.up()
        assert operated.flow_run(number)["state"]["name"] == "Crashed"
        operated.wait_for_generation(run, whole + 1, BUSY_SECONDS)
        measured(f"`eigen down` in {phase}, `eigen up`: next generation after {time.monotonic() - up:.1f} s")
    resumes = len(phases)
    assert operated.finish(run, resumes) == ["Crashed"] * resumes + ["Completed"]
    assert outcome(operated.status(run)) == undisturbed.outcome(generations)
    measured(f"stopped, and the process has ended: {', '.join(times)}")


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
        assert not Run.open(str(operated.store), run).is_running()
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
