"""Processes, servers and folders that operations meet: short-lived, on this machine alone."""

import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flows.server.state_directory import LocalProcess, ProcessRecord, StateDirectory

ROOT = Path(__file__).parents[2]


def digest(folder: Path) -> dict[str, str]:
    """All that is in a folder, to be compared before and after a command that should change nothing."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


@contextmanager
def sleeping(*code: str) -> Iterator[subprocess.Popen[str]]:
    lines = [*code, "print('ready', flush=True)", "import time", "time.sleep(60)"]
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server on this machine whose requests `handler` answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listening() -> Iterator[tuple[str, list[Any]]]:
    """An address (host and port) that answers nothing, and the connections to it."""
    connections: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):  # at the end
                while True:
                    connections.append(server.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", connections
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def answering(answers: Mapping[str, object] | None = None) -> Iterator[str]:
    """The URL of an API that answers these paths, and that it is well."""
    known = {"/api/health": True, "/api/admin/version": "3.8.8", **(answers or {})}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in known
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(known.get(self.path)).encode())

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        yield f"{url}/api"


def record_of(
    home: StateDirectory, pid: int, api: str = "http://127.0.0.1:1/api", store: str | None = None
) -> ProcessRecord:
    log, folder = home.path / "some.log", home.path.parent
    return ProcessRecord(process=LocalProcess.of(pid), api=api, log=log, folder=folder, store=store)
