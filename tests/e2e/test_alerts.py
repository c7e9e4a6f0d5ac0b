"""What a user learns of a training without watching it: calls to an address, and its log."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest
from operated import Operated, Undisturbed

pytestmark = pytest.mark.thorough


@pytest.fixture
def calls() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    """An address, and what it is sent."""
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
