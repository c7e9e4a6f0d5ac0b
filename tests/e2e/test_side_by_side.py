"""Of trainings at once one trains; it outlives its server; one in a bucket survives a kill; alerts and logs of all."""

import json
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from queue import Queue
from typing import Any

import psutil
import pytest
from gcs_emulator import GcsEmulator
from operated import BUSY_SECONDS, GENERATIONS, Operated, Undisturbed, outcome
from operation_cases import serving

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


@pytest.fixture
def calls() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    heard: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with serving(Handler) as server:
        yield f"{server}/hook", heard


def assert_logged(operated: Operated, run: str) -> None:
    """The log of a run has its phases, and names its flow run."""
    lines = operated.eigen("logs", run).stdout.splitlines()
    assert lines[0].startswith(f"{run} gen 1-")
    assert f"{operated.pages}/runs/flow-run/" in lines[0]
    assert any("evaluate 1: " in line for line in lines)
    moments = [line[:19] for line in lines[1:] if line[:2] == "20"]
    assert moments == sorted(moments)


def test_an_address_is_called_when_a_training_ends_in_a_way_that_matters(
    operated: Operated, settings: list[str], calls: tuple[str, "Queue[dict[str, Any]]"]
) -> None:
    url, heard = calls
    assert "127.0.0.1 is called" in operated.eigen("alerts", url).stdout
    with operated.worker_paused():
        number = operated.submit("alerted", settings, 1)
        operated.ask(f"flow_runs/{number}/set_state", state={"type": "CANCELLED", "name": "Cancelled"}, force=True)
        message = 'generation 1 <twice> "ended"'
        for name in ("Blocked", "Blocked", "MemoryGuard"):
            state = {"type": "FAILED", "name": name, "message": message}
            operated.ask(f"flow_runs/{number}/set_state", state=state, force=True)
        called = [heard.get(timeout=120.0) for _ in range(2)]
    page, ends = f"{operated.pages}/runs/flow-run/{number}", ("Blocked", "MemoryGuard")
    shared = {"flow_run": "alerted", "message": message, "seconds": 0.0, "generation": None, "page": page}
    assert called == [{**shared, "state": name, "text": f"alerted: {name}. {message}"} for name in ends]
    assert operated.wait_for_end(operated.submit("reported", settings, 1), 120) == "Completed"
    reported = heard.get(timeout=120.0)
    assert (reported["state"], reported["generation"], heard.queue) == ("Completed", 1, deque())
    assert reported["seconds"] > 0
    assert reported["message"].startswith("Run reported is complete after generation 1. The champion is ")
    said = r"reported gen 1-1 \(1 done\): Completed after 0:\d\d:\d\d, generation 1 is on disk\. Run reported is "
    assert re.match(said, reported["text"])
    assert_logged(operated, "reported")
    assert "No address is called" in operated.eigen("alerts", "--off").stdout


def test_a_preset_and_a_number_of_generations_are_enough(operated: Operated, measured: Callable[[str], None]) -> None:
    asked = time.monotonic()
    number = operated.run_deployment("-p", 'config={"preset": "quickstart", "generations": 2}')
    operated.wait(120, operated.is_resuming, "the schedule to be on while it trains", every=0.5)
    assert operated.wait_for_end(number, 300) == "Completed"
    measured(f"prefect deployment run of 2 generations of quickstart: finished after {time.monotonic() - asked:.1f} s")
    tags = operated.flow_run(number)["tags"]
    (run,) = (tag.removeprefix("run:") for tag in tags if tag.startswith("run:"))
    assert run.startswith("quickstart-")
    status = operated.status(run)
    assert (status.state, status.generation, status.config.preset) == ("finished", 2, "quickstart")
    assert verify_run(str(operated.store), run, deep=True).damages == ()
    assert not operated.is_resuming()


def test_the_log_of_a_run_that_a_command_has_trained(operated: Operated, undisturbed: Undisturbed) -> None:
    assert_logged(operated, undisturbed.NAME)
