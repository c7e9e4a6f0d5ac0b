"""Several machines: of trainings at once one trains; it outlives its server; one in a bucket survives a kill."""

import json
import shutil
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from gcs_emulator import GcsEmulator
from operated import BUSY_SECONDS, GENERATIONS, Operated, Undisturbed, outcome

from eigen_core.config.model import CheckpointConfig
from eigen_core.housekeeping import verify_run
from eigen_core.runs.handle import Run, status_of

pytestmark = pytest.mark.thorough

_ENOUGH = 1_000


@pytest.fixture
def other_machine(operated: Operated, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A second worker, which knows the server by its address alone."""
    with Operated(tmp_path_factory.mktemp("other"), api=operated.api) as found:
        found.up()
        # It may have asked for something to resume.
        operated.wait(60, operated.is_idle, "the end of all flow runs")
        yield found


def test_of_two_launches_at_once_one_trains(
    operated: Operated, other_machine: Operated, settings: list[str], undisturbed: Undisturbed
) -> None:
    first = operated.launch("first", ["--generations", str(_ENOUGH), *settings])
    # Past the check of `eigen launch`, to the worker that has nothing else to do.
    second = operated.run_deployment("-p", "run=second")
    assert operated.wait_for_end(second) == "Cancelled"
    # The one that trains was not cancelled.
    assert operated.is_resuming()
    machines = (operated, other_machine)
    assert not any((machine.store / "second").exists() for machine in machines)
    # Either worker may have been the first to ask, and its process may not have begun to write yet.
    trained = operated.wait(
        120, lambda: next((machine for machine in machines if (machine.store / "first").exists()), None), "run first"
    )
    trained.wait_for_generation("first", GENERATIONS)
    assert operated.flow_run(first)["state"]["name"] == "Running"
    operated.cancel(first)
    assert operated.wait_for_end(first) == "Cancelled"
    operated.wait(60, operated.is_idle, "the end of all flow runs")
    assert outcome(trained.status("first"))[:GENERATIONS] == undisturbed.outcome(GENERATIONS)
    # The next crash, of whatever run, would go on with it.
    shutil.rmtree(trained.store / "first")


def test_a_training_lets_others_train_while_it_is_suspended_and_goes_on_without_its_server(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    number = operated.submit("served", settings, GENERATIONS)
    operated.wait_for_generation("served", 1)
    engine = operated.engine()
    # Held until the server knows it, so that it cannot be faster.
    engine.suspend()
    operated.suspend(number)
    engine.resume()
    told = time.monotonic()
    psutil.wait_procs([engine], timeout=60)
    measured(f"suspended, and the process has ended: {time.monotonic() - told:.1f} s")
    assert not engine.is_running()
    assert operated.flow_run(number)["state"]["name"] == "Suspended"
    generation = operated.generation("served")
    assert operated.is_resuming()
    operated.ask(f"flow_runs/{number}/resume")

    operated.wait_for_generation("served", generation + 1)
    engine, server = operated.engine(), operated.process("server")
    engine.suspend()
    server.kill()
    psutil.wait_procs([server], timeout=30)
    generation = operated.generation("served")
    engine.resume()
    # A minute's waiting of Prefect's client, for each of two things in a generation, would take longer.
    operated.wait_for_generation("served", generation + 1, 110.0)
    # So that it does not end before there is a server again.
    engine.suspend()
    killed = time.monotonic()
    operated.up()
    engine.resume()
    assert operated.process("server").pid != server.pid
    measured(f"server killed -9: it answers again after {time.monotonic() - killed:.1f} s")
    # No other process has taken its place; it may have ended since.
    assert {process.pid for process in operated.engines()} <= {engine.pid}
    assert operated.wait_for_end(number) == "Completed"
    assert [found["id"] for found in operated.flow_runs("served")] == [number]
    assert outcome(operated.status("served")) == undisturbed.outcome(GENERATIONS)


@pytest.fixture
def elsewhere(
    operated: Operated, gcs_bucket: str, gcs_emulator: GcsEmulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    """A worker that keeps its runs in a bucket; the other one of its server has a break."""
    environment = {"EIGEN_STORE": f"{gcs_bucket}/runs", "STORAGE_EMULATOR_HOST": gcs_emulator.url}
    folder = tmp_path_factory.mktemp("elsewhere")
    with operated.worker_paused(), Operated(folder, api=operated.api, environment=environment) as found:
        found.up()
        yield found


def test_a_killed_training_in_a_bucket_goes_on_to_the_same_bits(
    elsewhere: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    run = "bucket"
    store = elsewhere.environment["EIGEN_STORE"]
    settings_there = CheckpointConfig(store=store)
    # Until it has run out, no other process takes over what a killed one has left.
    lease = ("--set", "checkpoint.lease_seconds=30")
    said = elsewhere.eigen("launch", "--run", run, "--generations", str(GENERATIONS), *settings, *lease).stdout
    assert "The run fits" in said

    def generation() -> int:
        return status_of(store, run).generation if Run(settings_there, run).exists else 0

    elsewhere.wait(BUSY_SECONDS, lambda: generation() >= 1, "generation 1 in the bucket")
    elsewhere.engine().kill()
    killed = time.monotonic()
    known = generation()
    assert known < GENERATIONS
    elsewhere.wait(BUSY_SECONDS, lambda: generation() > known, "the next generation in the bucket")
    resumed = time.monotonic() - killed
    assert elsewhere.finish(run) == ["Crashed", "Completed"]
    assert verify_run(store, run, deep=True).damages == ()
    status = json.loads(elsewhere.eigen("status", "--json").stdout)
    assert (status["run"]["run"], status["run"]["state"], status["run"]["store"]) == (run, "finished", store)
    assert outcome(status_of(store, run)) == undisturbed.outcome(GENERATIONS)
    # Without what this machine has of it, too.
    (local,) = elsewhere.store.rglob(f"runs/{run}")
    local.rename(elsewhere.folder / "gone")
    assert outcome(status_of(store, run)) == undisturbed.outcome(GENERATIONS)
    measured(f"flow killed -9, runs in a bucket: next generation is there after {resumed:.1f} s")
