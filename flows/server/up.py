"""Starting server, deployments and worker with one command."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient

from eigen_core.checkpoint.store import store_from_environment
from eigen_core.common.errors import InputError, Stopped
from flows.server import servers
from flows.server.deployments import Say, client_of, deploy, is_up_to_date
from flows.server.flow_runs import POOL, last_heartbeat, report_lost, running_flow_run
from flows.server.prefect_settings import api_at, ui_of, worker_environment
from flows.server.state_directory import (
    COMPONENTS,
    Component,
    LocalProcess,
    ProcessRecord,
    StateDirectory,
    end_of_log,
    wait_until,
)

# A service that starts beside another one waits until that has started.
_LOCK_TIMEOUT_SECONDS = 180.0
_WORKER_SECONDS = 120.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class UpResult:
    """The server (None: elsewhere), the worker (None: not wanted), and the components just started (`began`)."""

    api: str
    server: ProcessRecord | None
    worker: ProcessRecord | None
    began: tuple[Component, ...] = ()

    @property
    def components(self) -> tuple[Component, ...]:
        """Components whose processes `eigen up` has started here, now or before."""
        return tuple(part for part in COMPONENTS if getattr(self, part) is not None)


def bring_up(
    home: StateDirectory,
    environ: Mapping[str, str],
    listening: servers.ListenOptions,
    say: Say,
    *,
    only: Component | None = None,
) -> UpResult:
    """Start what is missing of server, deployments and worker, and return when all are ready.

    Args:
        environ: environment variables of the processes, to which each one's own settings are added.
        listening: where the server listens; without a port: see `wanted_port`.
        only: start this component alone; a worker needs a server that answers.
    """
    # Before the folder is made: a refused command must not leave one.
    port = _port_of_missing_server(home, environ, listening.port, only)
    if port is not None:
        servers.require_startable(environ, port, listening)
    with home.locked(_LOCK_TIMEOUT_SECONDS):
        began: tuple[Component, ...] = ()
        # Another `eigen up` may have started it before it released the lock.
        port = _port_of_missing_server(home, environ, listening.port, only)
        if port is not None:
            say("starting the server")
            servers.start_server(home, environ, port, listening.host)
            began = ("server",)
        api, server, worker = servers.known_server(home, environ), home.running("server"), None
        server = server if server is not None and server.api == api else None
        if only != "server":
            with client_of(api) as client:
                # Do not deploy again without need: the server may be busy with a training.
                if not is_up_to_date(client):
                    say("creating the deployments")
                    deploy(api)
                worker = home.running("worker")
                if worker is None:
                    say("starting the worker")
                    worker, began = _start_worker(client, home, environ, api), (*began, "worker")
        return UpResult(api, server, worker, began)


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def watch(home: StateDirectory, components: tuple[Component, ...], stopping: Callable[[], bool]) -> None:
    """Return when `stopping()` is true, or after `eigen down`; raise `Stopped` if a component has ended by itself."""
    while not stopping():
        ended = next((component for component in components if home.running(component) is None), None)
        if ended is not None:
            # `eigen down` removes at its end the records of what it stopped.
            with home.locked(_LOCK_TIMEOUT_SECONDS):
                if home.read(ended) is None:
                    return
            raise Stopped(f"The {ended} has ended. {end_of_log(home.log(ended))}")
        time.sleep(_POLL_SECONDS)


def _port_of_missing_server(
    home: StateDirectory, environ: Mapping[str, str], port: int | None, only: Component | None
) -> int | None:
    """Return the port at which to start a server; None if one runs here, is elsewhere, or is not wanted."""
    server, worker = home.running("server"), home.running("worker")
    for component, record in (("server", server), ("worker", worker)):
        # A worker, and its training, wait for the server at its former port.
        if record is not None and port is not None and record.api != api_at(port):
            where = ui_of(record.api)
            raise InputError(
                f"A {component} runs here already, at {where}: leave out --port, or call `eigen down` first."
            )
    if only == "worker" or server is not None:
        return None
    return servers.wanted_port(port, servers.configured_api(environ), environ, home.port())


def _start_worker(
    client: SyncPrefectClient, home: StateDirectory, environ: Mapping[str, str], api: str
) -> ProcessRecord:
    """Start a worker whose flows run in the working directory, and return when the server has its heartbeat."""
    name = home.worker_name
    # Before the new worker can begin anything.
    report_lost(client, home)
    environment, store = worker_environment(environ, api, Path.cwd()), store_from_environment(environ)
    began = datetime.now(UTC)

    def has_heartbeat() -> bool:
        heartbeat = last_heartbeat(client, name)
        return heartbeat is not None and heartbeat >= began

    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name]
    # One flow run at a time. A limit of the pool would never be freed by a flow run whose process has vanished.
    command += ["--limit", "1"]
    return home.start("worker", command, environment, has_heartbeat, _WORKER_SECONDS, api=api, store=store)


GRACE_SECONDS = 120.0
"""Seconds in which a training that is asked to stop may end by itself, before it is killed."""

# Worker and server end within seconds, but not on a machine with other things to do.
_END_SECONDS = 60.0
_REPORT_SECONDS = 10.0
# Module of a flow run's process. Prefect's worker also starts processes for hooks, which end by themselves.
_ENGINE = "prefect.engine"


@dataclass(frozen=True)
class DownResult:
    """Components that were stopped, the number of flow runs asked to stop, and components that had to be killed."""

    worker: ProcessRecord | None
    server: ProcessRecord | None
    trainings: int
    killed: tuple[str, ...]


def bring_down(
    home: StateDirectory,
    say: Say,
    grace_seconds: float = GRACE_SECONDS,
    components: Collection[Component] = COMPONENTS,
    before_server: Callable[[], None] = lambda: None,
) -> DownResult:
    """Stop trainings, which are killed after `grace_seconds`, then those of `components` that `bring_up` started here.

    `before_server` is called after the worker has ended, before the server is stopped.
    """
    if not home.path.is_dir():
        before_server()
        return DownResult(None, None, 0, ())
    with home.locked():
        recorded = home.read("worker") if "worker" in components else None
        worker = recorded if recorded is not None and recorded.process.is_alive() else None
        server = home.running("server") if "server" in components else None
        trainings, worker_killed = (0, False) if worker is None else _stop_worker(worker, say, grace_seconds)
        killed = ["worker"] * worker_killed
        if recorded is not None and servers.answers(recorded.api):
            # If the server does not answer, the next `eigen up` reports the flow runs that were killed.
            with suppress(Stopped), client_of(recorded.api) as client:
                report_lost(client, home)
        before_server()
        if server is not None:
            say("stopping the server")
            killed += ["server"] * server.process.stop(_END_SECONDS)
        for component in components:
            home.forget(component)
        return DownResult(worker, server, trainings, tuple(killed))


def _stop_worker(worker: ProcessRecord, say: Say, grace_seconds: float) -> tuple[int, bool]:
    """Stop a worker's trainings, then the worker; return how many trainings there were, and whether any was killed.

    A worker that is asked to stop ends its flow runs at once and does not report it, so they are stopped first. Until
    they end, the worker is paused: a flow run that resumes them must wait for the next worker.
    """
    process = worker.process
    asked: list[LocalProcess] = []
    end = time.monotonic() + grace_seconds
    killed = False
    try:
        while engines := [child for child in process.children() if child.runs(_ENGINE)]:
            for engine in engines:
                if engine not in asked:
                    say("stopping the training")
                    process.send(signal.SIGSTOP)
                    engine.send(signal.SIGTERM)
                    asked.append(engine)
            if time.monotonic() > end:
                killed = True
                for engine in engines:
                    engine.kill()
            time.sleep(0.1)
        if asked:
            wait_until(lambda: _nothing_runs(worker.api), _REPORT_SECONDS)
        say("stopping the worker")
        process.send(signal.SIGTERM)
    finally:
        # Even an interrupted command must not leave the worker paused for ever.
        process.send(signal.SIGCONT)

    def has_ended() -> bool:
        # A poll that was under way may still have given it a flow run, which it would wait for.
        for engine in process.children():
            if engine.runs(_ENGINE) and engine not in asked:
                engine.send(signal.SIGTERM)
                asked.append(engine)
        return not process.is_alive()

    # A second SIGTERM would kill the worker.
    if not wait_until(has_ended, _END_SECONDS):
        killed = True
        process.kill()
    return len(asked), killed


def _nothing_runs(api: str) -> bool:
    try:
        with client_of(api) as client:
            return running_flow_run(client) is None
    except Stopped:
        return True
