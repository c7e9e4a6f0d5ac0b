"""Calls, log and database of a training that nobody watches, also one begun with Prefect's own command."""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from queue import Queue
from typing import Any

import pytest
from operated import Operated, Undisturbed
from operation_cases import serving

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
