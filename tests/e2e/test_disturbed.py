"""A training that is killed or disturbed again and again, or whose server is away, ends like one that is not."""

import random
import shutil
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
from operated import BUSY_SECONDS, GENERATIONS, RESUMED_SECONDS, Operated, Undisturbed, outcome

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.housekeeping import verify_run
from flows.server.deploying import SILENT_SECONDS

_DISTURBANCES = 40
_GENERATIONS = 2 * _DISTURBANCES
_RUN = "disturbed"
_LONGEST_PAUSE_SECONDS = 3.0


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        if process.is_running():
            process.kill()


def kill_flow(operated: Operated) -> None:
    """The trigger brings it back."""
    kill(*operated.engines())


def stop_flow(operated: Operated) -> None:
    """Asked to stop by another process than the worker."""
    for engine in operated.engines():
        engine.terminate()


def kill_parts(operated: Operated, parts: tuple[str, ...], *, flow: bool = False) -> None:
    """Kill server, worker or both, with the flow's process or without, and start them again."""
    engines = operated.engines() if flow else []
    kill(*(operated.process(part) for part in parts), *engines)
    operated.up()


def take_down(operated: Operated) -> None:
    """As before the machine is serviced."""
    operated.down()
    operated.up()


def suspend(operated: Operated) -> None:
    """Suspend and resume it as its page does."""
    running = [found for found in operated.flow_runs(_RUN) if found["state"]["type"] == "RUNNING"]
    engines = operated.engines()
    for found in running:
        operated.suspend(found["id"])
        psutil.wait_procs(engines, timeout=60)
        if operated.flow_run(found["id"])["state"]["name"] == "Suspended":
            operated.ask(f"flow_runs/{found['id']}/resume")


_WAYS: dict[str, Callable[[Operated], None]] = {
    "flow killed": kill_flow,
    "flow told to stop": stop_flow,
    "worker killed": partial(kill_parts, parts=("worker",)),
    "server killed": partial(kill_parts, parts=("server",)),
    "worker and flow killed": partial(kill_parts, parts=("worker",), flow=True),
    "server and flow killed": partial(kill_parts, parts=("server",), flow=True),
    "all killed": partial(kill_parts, parts=("server", "worker"), flow=True),
    "eigen down": take_down,
    "suspended": suspend,
}


@pytest.mark.slow
def test_a_training_that_is_disturbed_ends_like_one_that_is_not(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    drawn = random.Random(1)
    seconds: dict[str, list[float]] = {}
    operated.submit(_RUN, settings, _GENERATIONS)
    operated.wait_for_generation(_RUN, 1, RESUMED_SECONDS)
    for _ in range(_DISTURBANCES):
        time.sleep(drawn.uniform(0, _LONGEST_PAUSE_SECONDS))
        if operated.generation(_RUN) >= _GENERATIONS - 1:
            break
        way = drawn.choice(list(_WAYS))
        begun = time.monotonic()
        _WAYS[way](operated)
        operated.wait_for_generation(_RUN, min(operated.generation(_RUN) + 1, _GENERATIONS), RESUMED_SECONDS)
        seconds.setdefault(way, []).append(time.monotonic() - begun)
    operated.wait_for_generation(_RUN, _GENERATIONS, RESUMED_SECONDS)
    operated.wait(RESUMED_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status(_RUN)) == undisturbed.outcome(_GENERATIONS)
    assert verify_run(str(operated.store), _RUN, deep=True).damages == ()
    assert not RunDirectory.open(operated.store, _RUN).is_locked()
    assert not operated.engines()
    assert not operated.is_resuming()
    for way, found in seconds.items():
        measured(f"{way}, {len(found)} times: next generation after {min(found):.1f} to {max(found):.1f} s")


def kill_engine(operated: Operated, run: str) -> tuple[int, float]:
    """Kill the process that trains a run; return the newest generation of the run and the time."""
    operated.engine().kill()
    killed = time.monotonic()
    generation = operated.generation(run)
    assert generation < GENERATIONS
    return generation, killed


@pytest.mark.thorough
def test_a_killed_training_is_resumed_by_the_trigger_and_without_it_by_the_schedule(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    launched = time.monotonic()
    number = operated.launch("killed", ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation("killed", 1)
    measured(f"launched: first generation after {time.monotonic() - launched:.1f} s")
    generation, killed = kill_engine(operated, "killed")
    assert operated.wait_for_end(number) == "Crashed"
    crashed = time.monotonic() - killed
    operated.wait_for_generation("killed", generation + 1, RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    measured(f"flow killed -9: known as crashed after {crashed:.1f} s, next generation after {resumed:.1f} s")
    cause = operated.flow_runs("killed")[-1]["created_by"]
    assert (cause["type"], cause["display_value"]) == ("AUTOMATION", "resume-after-crash")

    assert operated.is_resuming()
    with operated.without_trigger():
        generation, _ = kill_engine(operated, "killed")
        operated.wait(60, operated.is_idle, "the end of the flow run")
        number, asked = operated.ask_by_schedule(), time.monotonic()
        operated.wait_for_generation("killed", generation + 1, RESUMED_SECONDS)
        measured(f"flow killed -9, no trigger: next generation {time.monotonic() - asked:.1f} s after its schedule")
        assert operated.finish("killed", resumes=2) == ["Crashed", "Crashed", "Completed"]
    assert operated.flow_runs("killed")[-1]["id"] == number
    assert outcome(operated.status("killed")) == undisturbed.outcome(GENERATIONS)
    assert not operated.is_resuming()


@pytest.mark.thorough
def test_a_training_killed_before_it_has_a_file_is_trained_and_one_that_was_cancelled_is_not(
    operated: Operated, settings: list[str], undisturbed: Undisturbed
) -> None:
    cancelled = operated.submit("unwanted", settings, 1_000)
    operated.wait_for_generation("unwanted", 1)
    operated.cancel(cancelled)
    assert operated.wait_for_end(cancelled) == "Cancelled"
    operated.wait(60, operated.is_idle, "the end of the flow run")
    left = operated.generation("unwanted")

    number = operated.launch("early", ["--generations", "2", *settings])
    operated.wait(BUSY_SECONDS, lambda: bool(operated.engines()), "its process", every=0.01)
    operated.engine().kill()
    assert not (operated.store / "early").exists()
    assert operated.wait_for_end(number) == "Crashed"
    operated.wait_for_generation("early", 2, RESUMED_SECONDS)
    operated.wait(BUSY_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status("early")) == undisturbed.outcome(2)
    assert operated.generation("unwanted") == left
    assert not operated.is_resuming()
    shutil.rmtree(operated.store / "unwanted")


@pytest.mark.thorough
def test_a_training_killed_with_its_worker_is_resumed_once_the_worker_is_back(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    number = operated.submit("both", settings, GENERATIONS)
    operated.wait_for_generation("both", 2)
    worker, engine = operated.process("worker"), operated.engine()
    worker.kill()
    engine.kill()
    killed = time.monotonic()
    generation = operated.generation("both")
    assert generation < GENERATIONS
    assert operated.flow_run(number)["state"]["name"] == "Running"
    operated.up()
    assert operated.process("worker").pid != worker.pid
    back = time.monotonic() - killed
    # It did not take until its heartbeats were missed.
    assert operated.flow_run(number)["state"]["name"] == "Crashed"
    operated.wait_for_generation("both", generation + 1, RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    assert operated.finish("both") == ["Crashed", "Completed"]
    assert outcome(operated.status("both")) == undisturbed.outcome(GENERATIONS)
    measured(f"flow and worker killed -9: `eigen up` is done after {back:.1f} s, next generation after {resumed:.1f} s")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_training_killed_after_its_last_checkpoint_plays_its_holdout(
    operated: Operated, settings: list[str], measured: Callable[[str], None]
) -> None:
    generations = 2
    with_holdout = [setting.replace("market.holdout_days=0", "market.holdout_days=50") for setting in settings]
    number = operated.submit("played", with_holdout, generations)
    operated.wait_for_generation("played", generations)
    # The plots are drawn between the last checkpoint and the holdout.
    operated.engine().kill()
    killed = time.monotonic()
    assert operated.wait_for_end(number) == "Crashed"
    manifests = sorted((operated.store / "played" / "manifests").glob("*.json"))
    status = operated.status("played")
    assert (status.state, status.generation, status.holdout) == ("unfinished", generations, None)
    assert operated.finish("played") == ["Crashed", "Completed"]
    measured(f"killed after the last checkpoint: the holdout is played after {time.monotonic() - killed:.1f} s")
    status = operated.status("played")
    assert status.state == "finished"
    assert status.holdout is not None
    assert sorted((operated.store / "played" / "manifests").glob("*.json")) == manifests


# That a training goes on without its server is seen in `test_side_by_side.py` too.

_MANY_GENERATIONS = 1_000
# A minute's waiting of Prefect's client, for each of two things in a generation, would leave fewer.
_GENERATIONS_AWAY = 2
_SECONDS_AWAY = 110.0


@pytest.mark.parametrize(
    ("away", "watched"),
    [
        pytest.param(15.0, 0.0, id="quarter minute"),
        pytest.param(120.0, SILENT_SECONDS + 60.0, id="two minutes", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_training_goes_on_without_its_server(
    operated: Operated, settings: list[str], measured: Callable[[str], None], away: float, watched: float
) -> None:
    number = operated.submit("away", settings, _MANY_GENERATIONS)
    operated.wait_for_generation("away", 1)
    first, began = operated.generation("away"), time.monotonic()
    time.sleep(away)
    before = (operated.generation("away") - first) / (time.monotonic() - began)
    engine = operated.engine()
    operated.process("server").kill()
    first, killed = operated.generation("away"), time.monotonic()
    operated.wait_for_generation("away", first + _GENERATIONS_AWAY, _SECONDS_AWAY)
    time.sleep(max(killed + away - time.monotonic(), 0.0))
    done, took = operated.generation("away") - first, time.monotonic() - killed
    operated.up()
    measured(f"server away for {took:.0f} s: {before / (done / took):.2f} times as long for a generation as before")
    time.sleep(watched)
    assert operated.engine() == engine
    # A server that comes back to much work may miss heartbeats all the same: the training sets that right.
    operated.wait(120, lambda: operated.states(number)[-1] == "Running", "the state of a flow run that trains")
    measured(f"server away for {took:.0f} s: taken for crashed {operated.states(number).count('Crashed')} times")
    operated.cancel(number)
    assert operated.wait_for_end(number) == "Cancelled"
    operated.wait(120, lambda: not engine.is_running(), "the end of a process that was cancelled")
    operated.forget(number)
    shutil.rmtree(operated.store / "away")
