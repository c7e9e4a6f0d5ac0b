"""A server that is away is found out in seconds, and not asked again and again."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import prefect
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_CSRF_SUPPORT_ENABLED, temporary_settings

from flows.server import reporter as server_presence
from flows.server.reporter import REFUSALS, Pages, require_server, retry_once, server_is_there, wait_for_server


@pytest.fixture(autouse=True)
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that is bound and at which nothing listens yet."""
    monkeypatch.setattr(server_presence, "_silent_until", 0.0)
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        client = SimpleNamespace(api_url=f"http://127.0.0.1:{found.getsockname()[1]}/api/")
        monkeypatch.setattr(server_presence, "get_client", lambda **_: client)
        yield found


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_a_server_that_refuses_connections_is_asked_each_time(api: socket.socket) -> None:
    with pytest.raises(httpx.ConnectError, match="does not answer"):
        require_server()
    assert not server_is_there()
    server = HTTPServer(("127.0.0.1", 0), _Refusing, bind_and_activate=False)
    server.socket.close()
    server.socket = api
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # An answer is an answer, whatever it says.
    require_server()
    assert wait_for_server(0.0)
    server.shutdown()


def test_a_silent_server_is_asked_once_a_minute(api: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_presence, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(server_presence, "_POLL_SECONDS", 0.1)
    api.listen()
    assert not server_is_there()
    asked = Mock(return_value=False)
    monkeypatch.setattr(server_presence, "is_reachable", asked)
    assert not server_is_there()
    asked.assert_not_called()
    began = time.monotonic()
    assert not wait_for_server(0.3)
    assert time.monotonic() - began >= 0.3
    assert asked.call_count >= 2


class _Overloaded(BaseHTTPRequestHandler):
    """A server that says that it is well, and answers nothing else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(prefect.__version__).encode())

    def do_POST(self) -> None:
        time.sleep(60.0)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.mark.thorough
def test_a_page_waits_a_bounded_time_for_a_server_that_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_presence, "_CALL_SECONDS", 0.5)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Overloaded)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    began = time.monotonic()
    api = f"http://127.0.0.1:{server.server_port}/api"
    settings = {PREFECT_API_URL: api, PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False}
    with temporary_settings(settings), retry_once(), pytest.raises(REFUSALS):
        Pages().show_markdown("key", "text", "description")
    assert 0.5 <= time.monotonic() - began < 50.0
    server.shutdown()
    server.server_close()
