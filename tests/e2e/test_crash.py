"""A launched training is killed, and goes on by itself to the bits of one that nobody disturbed."""

import time
from collections.abc import Callable

import pytest
from operated import GENERATIONS, Operated, Undisturbed, outcome

_RESUMED_SECONDS = 300.0
"""From a kill to the next completed generation, at most: that of a machine with other things to do."""


def finish(operated: Operated, run: str) -> list[str]:
    """Wait until a run is finished, and return the names of the states of its flow runs."""
    numbers = operated.wait(_RESUMED_SECONDS, lambda: [row["id"] for row in operated.flow_runs(run)][1:], "a resume")
    assert operated.wait_for_end(numbers[-1]) == "Completed"
    return [row["state"]["name"] for row in operated.flow_runs(run)]


def test_a_killed_training_is_resumed_by_the_trigger(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    launched = time.monotonic()
    number = operated.launch("killed", ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation("killed", 1)
    began = time.monotonic() - launched
    operated.wait_for_generation("killed", 2)
    operated.engine().kill()
    killed = time.monotonic()
    assert operated.wait_for_end(number) == "Crashed"
    crashed = time.monotonic() - killed
    generation = operated.generation("killed")
    assert generation < GENERATIONS
    operated.wait_for_generation("killed", generation + 1, _RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    assert finish(operated, "killed") == ["Crashed", "Completed"]
    cause = operated.flow_runs("killed")[-1]["created_by"]
    assert (cause["type"], cause["display_value"]) == ("AUTOMATION", "resume-after-crash")
    assert outcome(operated.status("killed")) == undisturbed.outcome(GENERATIONS)
    measured(f"launched, and a generation is complete: {began:.1f} s")
    measured(f"flow killed -9: known as crashed after {crashed:.1f} s, next generation after {resumed:.1f} s")


@pytest.mark.slow
def test_a_training_killed_with_its_worker_is_resumed_once_the_worker_is_back(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    number = operated.launch("both", ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation("both", 2)
    worker, engine = operated.process("worker"), operated.engine()
    worker.kill()
    engine.kill()
    killed = time.monotonic()
    generation = operated.generation("both")
    assert generation < GENERATIONS
    operated.up()
    assert operated.process("worker").pid != worker.pid
    back = time.monotonic() - killed
    assert operated.flow_run(number)["state"]["name"] == "Running"
    assert operated.wait_for_end(number) == "Crashed"
    crashed = time.monotonic() - killed
    operated.wait_for_generation("both", generation + 1, _RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    assert finish(operated, "both") == ["Crashed", "Completed"]
    assert outcome(operated.status("both")) == undisturbed.outcome(GENERATIONS)
    measured(
        f"flow and worker killed -9: worker back after {back:.1f} s, known as crashed after {crashed:.1f} s, next "
        f"generation after {resumed:.1f} s"
    )
