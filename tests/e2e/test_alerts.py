"""Calls, log and database of a training that nobody watches, also one begun with Prefect's own command."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest
from operated import BUSY_SECONDS, GENERATIONS, PHASES, Operated, Undisturbed

from eigen_core.housekeeping import verify_run

pytestmark = pytest.mark.thorough


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

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_is_called_when_a_training_ends_in_a_way_that_matters(
    operated: Operated, settings: list[str], calls: tuple[str, "Queue[dict[str, Any]]"]
) -> None:
    url, heard = calls
    assert "127.0.0.1 is called" in operated.eigen("alerts", url).stdout
    with operated.worker_paused():
        number = operated.submit("alerted", settings, 1)
        operated.ask(f"flow_runs/{number}/set_state", state={"type": "CANCELLED", "name": "Cancelled"}, force=True)
        message = 'generation 1 <twice> "ended"'
        blocked = {"type": "FAILED", "name": "Blocked", "message": message}
        operated.ask(f"flow_runs/{number}/set_state", state=blocked, force=True)
        called = heard.get(timeout=120.0)
    assert called == {
        "text": f"alerted: Blocked. {message}",
        "flow_run": "alerted",
        "state": "Blocked",
        "page": f"{operated.pages}/runs/flow-run/{number}",
    }
    assert "No address is called" in operated.eigen("alerts", "--off").stdout
    assert heard.empty()


def test_the_log_of_a_run_is_printed_with_its_flow_run(operated: Operated, undisturbed: Undisturbed) -> None:
    lines = operated.eigen("logs", undisturbed.NAME).stdout.splitlines()
    assert lines[0].startswith(f"{undisturbed.NAME} gen 1-")
    assert f"{operated.pages}/runs/flow-run/" in lines[0]
    assert any("evaluate 1: " in line for line in lines)
    assert [line[:19] for line in lines[1:] if line[:2] == "20"] == sorted(
        line[:19] for line in lines[1:] if line[:2] == "20"
    )


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


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('{"preset": "huge"}', "'config.preset'.* 'huge' is not one of"),
        ('{"learner": {"batchsize": 3}}', r"'config.learner'.* \('batchsize' was unexpected\)"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_begins(operated: Operated, config: str, sentence: str) -> None:
    before = len(operated.asked_for())
    refused = operated.prefect("deployment", "run", "train/gpu", "-p", f"config={config}", fails=True)
    said = " ".join(f"{refused.stdout} {refused.stderr}".split())
    assert re.search(sentence, said)
    assert "Traceback" not in said
    assert len(operated.asked_for()) == before


def test_values_that_do_not_fit_together_end_the_flow_run_with_the_sentence_of_our_validation(
    operated: Operated,
) -> None:
    number = operated.run_deployment("-p", 'config={"replay": {"capacity": 100, "minimum": 200}}')
    assert operated.wait_for_end(number) == "Failed"
    message = operated.flow_run(number)["state"]["message"]
    assert "replay.capacity 100 is below replay.minimum 200: learning would never start" in message


def test_what_task_runs_say_already_is_not_kept_a_second_time_as_events(
    operated: Operated, undisturbed: Undisturbed
) -> None:
    assert undisturbed.outcome(GENERATIONS)
    (number,) = [flow_run["id"] for flow_run in operated.flow_runs(Undisturbed.NAME)]
    of_run = {"id": {"any_": [number]}}
    task_runs = operated.ask("task_runs/filter", flow_runs=of_run)
    assert len(task_runs) >= len(PHASES) * GENERATIONS
    assert {task_run["state_type"] for task_run in task_runs} == {"COMPLETED"}

    def events(kind: str) -> list[Any]:
        wanted = {"any_resource": {"id": [f"prefect.flow-run.{number}"]}, "event": {"prefix": [f"prefect.{kind}."]}}
        found: list[Any] = operated.ask("events/filter", filter=wanted)["events"]
        return found

    operated.wait(BUSY_SECONDS, lambda: not events("task-run"), "the events of task runs are gone", every=2.0)
    assert events("flow-run")
