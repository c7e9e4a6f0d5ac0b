"""A training that is killed or disturbed again and again, or whose server is away, ends like one that is not."""

import random
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
from operated import BUSY_SECONDS, GENERATIONS, Operated, Undisturbed, outcome

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
    with operated.without_trigger():
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
