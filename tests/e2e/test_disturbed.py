"""A training that is killed, cancelled, stopped or disturbed again and again ends like one that is not."""

import json
import random
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
    operated.wait_for_generation(_RUN, 1, BUSY_SECONDS)
    for _ in range(_DISTURBANCES):
        time.sleep(drawn.uniform(0, _LONGEST_PAUSE_SECONDS))
        if operated.generation(_RUN) >= _GENERATIONS - 1:
            break
        way = drawn.choice(list(_WAYS))
        begun = time.monotonic()
        _WAYS[way](operated)
        operated.wait_for_generation(_RUN, min(operated.generation(_RUN) + 1, _GENERATIONS), BUSY_SECONDS)
        seconds.setdefault(way, []).append(time.monotonic() - begun)
    operated.wait_for_generation(_RUN, _GENERATIONS, BUSY_SECONDS)
    operated.wait(BUSY_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status(_RUN)) == undisturbed.outcome(_GENERATIONS)
    assert verify_run(str(operated.store), _RUN, deep=True).damages == ()
    assert not Run.open(str(operated.store), _RUN).is_running()
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
    # A server that has not seen the flow run start sees it crash.
    operated.engine().suspend()
    kill_parts(operated, ("server",))
    generation, killed = kill_engine(operated, "killed")
    assert operated.wait_for_end(number) == "Crashed"
    crashed = time.monotonic() - killed
    operated.wait_for_generation("killed", generation + 1, BUSY_SECONDS)
    resumed = time.monotonic() - killed
    measured(f"flow killed -9: known as crashed after {crashed:.1f} s, next generation after {resumed:.1f} s")
    cause = operated.flow_runs("killed")[-1]["created_by"]
    assert (cause["type"], cause["display_value"]) == ("AUTOMATION", "resume-after-crash")

    assert operated.is_resuming()
    (trigger,) = operated.ask("automations/filter", automations={"name": {"any_": ["resume-after-crash"]}})
    with operated.patched(f"automations/{trigger['id']}", "enabled", False):
        generation, _ = kill_engine(operated, "killed")
        operated.wait(60, operated.is_idle, "the end of the flow run")
        number, asked = operated.ask_by_schedule(), time.monotonic()
        operated.wait_for_generation("killed", generation + 1, BUSY_SECONDS)
        measured(f"flow killed -9, no trigger: next generation {time.monotonic() - asked:.1f} s after its schedule")
        assert operated.finish("killed", resumes=2) == ["Crashed", "Crashed", "Completed"]
    assert operated.flow_runs("killed")[-1]["id"] == number
    assert outcome(operated.status("killed")) == undisturbed.outcome(GENERATIONS)
    assert not operated.is_resuming()


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
    operated.wait_for_generation("both", generation + 1, BUSY_SECONDS)
    resumed = time.monotonic() - killed
    assert operated.finish("both") == ["Crashed", "Completed"]
    assert outcome(operated.status("both")) == undisturbed.outcome(GENERATIONS)
    measured(f"flow and worker killed -9: `eigen up` is done after {back:.1f} s, next generation after {resumed:.1f} s")


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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

    # Killed at once, on most machines before it has a file: the trigger trains it, and it alone.
    number = operated.launch("early", ["--generations", "2", *settings])
    operated.wait(BUSY_SECONDS, lambda: bool(operated.engines()), "its process", every=0.01)
    operated.engine().kill()
    assert operated.wait_for_end(number) == "Crashed"
    operated.wait_for_generation("early", 2, BUSY_SECONDS)
    operated.wait(BUSY_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status("early")) == undisturbed.outcome(2)
    assert operated.generation(run) == whole
    assert not operated.is_resuming()
    shutil.rmtree(operated.store / run)
