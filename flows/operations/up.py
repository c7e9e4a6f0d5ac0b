"""Bringing everything up with one command."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eigen_core.errors import InputError
from flows.endings import Stopped
from flows.operations.deploying import client_of, deploy, is_deployed, is_up_to_date, require_pool
from flows.operations.environment import api_at, ui_of
from flows.operations.home import Home, Part, Record
from flows.operations.lost import report_lost
from flows.operations.processes import last_lines
from flows.operations.server import Listening, Server, configured_api, known_server, start_server, wanted_port
from flows.operations.supervisor import ensure_supervisor
from flows.operations.worker import begin_worker, wait_for_worker, worker_name

Say = Callable[[str], None]
Only = Literal["server", "worker"]

# A service that starts beside another one waits until that has started.
_PATIENCE_SECONDS = 180.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Up:
    """What runs.

    Attributes:
        server: the server, started here or elsewhere.
        server_record: its process, None if it is elsewhere.
        worker: the worker of this folder, None if there is to be none.
        worker_began: it was started just now.
    """

    server: Server
    server_record: Record | None
    worker: Record | None
    worker_began: bool

    @property
    def ui(self) -> str:
        """Address of the pages."""
        return ui_of(self.server.api)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What of it runs as processes of this folder."""
        server: tuple[Part, ...] = () if self.server_record is None else ("server",)
        return server if self.worker is None else (*server, "worker")


def bring_up(
    home: Home,
    environ: Mapping[str, str],
    listening: Listening,
    say: Say,
    *,
    only: Only | None = None,
    patient: bool = False,
    supervised: bool = False,
) -> Up:
    """Start what is missing of server, deployments and worker, and return when all of it is ready.

    Args:
        home: where it is remembered.
        environ: the environment of the processes, beside what they need.
        listening: where the server listens; its port if none was asked for: that of PREFECT_API_URL, else the one it
            had last, else 4200.
        say: called with what is being done.
        only: start this part alone; a worker needs a server that answers.
        patient: wait for another `eigen up` that is at work.
        supervised: start what restarts server and worker, too, if that does not run.

    Raises:
        InputError: the port is taken, another `eigen up` is at work, or the server elsewhere does not answer.
        Stopped: a process ended, or was not ready in time.
    """
    with home.alone(_PATIENCE_SECONDS if patient or home.running("supervisor") is not None else 0.0):
        brought = _brought(home, environ, listening, say, only)
        if supervised:
            ensure_supervisor(home, environ, brought.server.api, anew=brought.server.began or brought.worker_began)
        return brought


def _brought(home: Home, environ: Mapping[str, str], listening: Listening, say: Say, only: Only | None) -> Up:
    server = known_server(home, environ) if only == "worker" else _server(home, environ, listening, say)
    record = home.running("server")
    record = record if record is not None and record.api == server.api else None
    if only == "server":
        return Up(server, record, None, worker_began=False)
    with client_of(server.api) as client:
        running = home.running("worker")
        if running is not None:
            # A server that is busy with a training is not asked to take again what it has.
            if not is_deployed(client):
                say("bringing the deployments")
                deploy(server.api)
            return Up(server, record, running, worker_began=False)
        up_to_date = is_up_to_date(client)
        say("starting the worker" + ("" if up_to_date else ", bringing the deployments"))
        # All that the worker needs: it comes up while Prefect loads the flows for the rest.
        require_pool(client)
        # Before the new worker is there to begin anything.
        report_lost(client, home.read("worker"), worker_name(home))
        worker, started = begin_worker(home, environ, server.api, Path.cwd())
        try:
            if not up_to_date:
                deploy(server.api)
            wait_for_worker(client, home, worker, started)
        except BaseException:
            # Whatever ends this, Ctrl-C too, leaves no worker behind that is not remembered.
            started.stop()
            home.forget("worker")
            raise
    return Up(server, record, worker, worker_began=True)


def watch(home: Home, parts: tuple[Part, ...], stopping: Callable[[], bool]) -> None:
    """Return when `stopping` says so.

    Raises:
        Stopped: one of the parts has ended by itself.
    """
    while not stopping():
        for part in parts:
            record = home.read(part)
            if record is None or not record.process.is_alive():
                said = "" if record is None else " ".join(last_lines(record.log, 1))
                raise Stopped(f"The {part} has ended. It said: {said or 'nothing'}. Its log is {home.log(part)}.")
        time.sleep(_POLL_SECONDS)


def _server(home: Home, environ: Mapping[str, str], listening: Listening, say: Say) -> Server:
    port = listening.port
    record = home.running("server")
    if record is not None:
        if port is not None and record.api != api_at(port):
            raise InputError(
                f"A server runs here already, at {ui_of(record.api)}: leave out --port, or stop it with `eigen down`."
            )
        return known_server(home, environ)
    at = wanted_port(port, configured_api(environ), environ, home.port())
    if at is None:
        return known_server(home, environ)
    say("starting the server")
    return Server(start_server(home, environ, at, listening).api, ours=True, began=True)
