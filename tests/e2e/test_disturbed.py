"""A training that is disturbed again and again, in whatever way, ends like one that is not.

For the night; the other tests of this folder are its short forms, one disturbance each.
"""

import random
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
from operated import RESUMED_SECONDS, Operated, Undisturbed, outcome

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.housekeeping import verify_run

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
