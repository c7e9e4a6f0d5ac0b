"""Of several trainings at once one trains, and a training outlives its server."""

import time
from collections.abc import Callable, Iterator

import pytest
from operated import GENERATIONS, Operated, Undisturbed, outcome


@pytest.fixture
def other_machine(operated: Operated, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A second worker, which knows the server by its address alone."""
    found = Operated(tmp_path_factory.mktemp("other"), api=operated.api)
    try:
        found.up()
        # It may have asked for something to resume.
        operated.wait(60, operated.is_idle, "the end of all flow runs")
        yield found
    finally:
        found.kill_all()


def test_of_two_launches_at_once_one_trains(
    operated: Operated, other_machine: Operated, settings: list[str], undisturbed: Undisturbed
) -> None:
    options = ["--generations", str(GENERATIONS), *settings]
    first = operated.launch("first", options)
    refused = operated.try_eigen("launch", "--run", "second", *options)
    assert refused.returncode == 2
    assert "one at a time" in refused.stderr
    # Past the check of `eigen launch`, to the worker that has nothing else to do.
    second = operated.run_deployment("-p", "run=second")
    assert operated.wait_for_end(second) == "Cancelled"
    # Nobody has cancelled the one that trains.
    assert operated.is_resuming()
    assert operated.wait_for_end(first) == "Completed"
    machines = (operated, other_machine)
    assert not any((machine.store / "second").exists() for machine in machines)
    # Either worker may have been the first to ask.
    (trained,) = [machine for machine in machines if (machine.store / "first").exists()]
    assert outcome(trained.status("first")) == undisturbed.outcome(GENERATIONS)


def test_a_training_goes_on_while_its_server_is_killed_and_started_again(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    number = operated.launch("served", ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation("served", 1)
    engine, server = operated.engine(), operated.process("server")
    server.kill()
    killed = time.monotonic()
    operated.up()
    assert operated.process("server").pid != server.pid
    measured(f"server killed -9: it answers again after {time.monotonic() - killed:.1f} s")
    assert [process.pid for process in operated.engines()] == [engine.pid]
    assert operated.wait_for_end(number) == "Completed"
    assert outcome(operated.status("served")) == undisturbed.outcome(GENERATIONS)
