"""What `eigen up` and `eigen down` do: start and stop Prefect's server, the deployments and the worker."""

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

from eigen_core.checkpoint.store_location import store_from_environment
from eigen_core.common.errors import InputError, Stopped
from flows.server import servers
from flows.server.deployments import Say, client_of, code_version, deploy, is_up_to_date
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

# Two `eigen up` at the same time, as by two systemd services: the later one waits up to this time for the other.
_LOCK_TIMEOUT_SECONDS = 180.0
_WORKER_SECONDS = 120.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class UpResult:
    """Prefect's API (URL), the server here (None: elsewhere), the worker (None: not wanted), what was just started."""

    api: str
    server: ProcessRecord | None
    worker: ProcessRecord | None
    began: tuple[Component, ...] = ()

    @property
    def is_outdated(self) -> bool:
        """Whether other code of Eigen has started the worker."""
        return self.worker is not None and self.worker.code != code_version()

    @property
    def components(self) -> tuple[Component, ...]:
        """Components (server, worker) whose processes `eigen up` has started here, now or before."""
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
        environ: environment variables for the processes; those of `prefect_settings` are added.
        listening: where a new server listens; `wanted_port` chooses a port that is None.
        say: called with a line about each step.
        only: start this component alone; a worker needs a server that answers.

    Raises:
        InputError: the options contradict what is configured or runs here, or a server must not or cannot start.
        Stopped: a process ended or was not ready in time, or a request to the server failed.
    """
    # Check this before `home` is made: a refused command must not leave a folder.
    port = _port_of_missing_server(home, environ, listening.port, only)
    if port is not None:
        servers.require_startable(environ, port, listening)
    with home.locked(_LOCK_TIMEOUT_SECONDS):
        began: tuple[Component, ...] = ()
        # Ask again: another `eigen up` may have started a server while this one waited for the lock.
        port = _port_of_missing_server(home, environ, listening.port, only)
        if port is not None:
            say("starting the server")
            servers.start_server(home, environ, port, listening.host)
            began = ("server",)
        api, server, worker = servers.known_server(home, environ), home.running("server"), None
        server = server if server is not None and server.api == api else None
        if only != "server":
            if server is None:
                servers.refuse_api_of_the_folder(api, environ)
            with client_of(api) as client:
                # Do not deploy again without need, since the server may be busy with a training.
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
    """Return when `stopping()` is true, or after `eigen down`; raise `Stopped` if a component has ended otherwise."""
    while not stopping():
        ended = next((component for component in components if home.running(component) is None), None)
        if ended is not None:
            # `eigen down` holds the lock until it has removed the records of the processes that it stopped.
            with home.locked(_LOCK_TIMEOUT_SECONDS):
                if home.read(ended) is None:
                    return
            raise Stopped(f"The {ended} has ended: `eigen up` starts it again. {end_of_log(home.log(ended))}")
        time.sleep(_POLL_SECONDS)


def _port_of_missing_server(
    home: StateDirectory, environ: Mapping[str, str], port: int | None, only: Component | None
) -> int | None:
    """Return the port at which to start a server; None if one runs here or elsewhere, or if `only` is the worker."""
    server, worker = home.running("server"), home.running("worker")
    for component, record in (("server", server), ("worker", worker)):
        # The worker that runs here, and its training, wait for the server at its former port.
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
    """Start a worker whose flow runs use this working directory; return when the server has a heartbeat of it."""
    name = home.worker_name
    # Report these before the new worker can start a flow run.
    report_lost(client, home)
    environment, store = worker_environment(environ, api, Path.cwd()), store_from_environment(environ)
    began = datetime.now(UTC)

    def has_heartbeat() -> bool:
        heartbeat = last_heartbeat(client, name)
        return heartbeat is not None and heartbeat >= began

    command = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    # One flow run at a time. A limit of the work pool would be used up for ever if a flow run's process vanished.
    command += ["--name", name, "--limit", "1"]
    ready = has_heartbeat, _WORKER_SECONDS
    return home.start("worker", command, environment, *ready, api=api, store=store, code=code_version())


GRACE_SECONDS = 120.0
"""Seconds from SIGTERM to SIGKILL for a training: it may complete and upload its last checkpoint."""

# Worker and server usually end within seconds; on a busy machine they may take longer, and are killed after this.
_END_SECONDS = 60.0
_REPORT_SECONDS = 10.0
# The module in the command of a flow run's process. Prefect's worker also starts processes of hooks, which end soon.
_ENGINE = "prefect.engine"


@dataclass(frozen=True)
class DownResult:
    """Records of what was stopped (None: not running), number of flow runs asked to stop, names of what was killed."""

    worker: ProcessRecord | None
    server: ProcessRecord | None
    trainings: int
    killed: tuple[str, ...]


def bring_down(
    home: StateDirectory, say: Say, grace_seconds: float = GRACE_SECONDS, components: Collection[Component] = COMPONENTS
) -> DownResult:
    """Stop those of `components` that `bring_up` started here; with the worker, first its trainings.

    A training that has not ended after `grace_seconds` is killed.
    """
    if not home.path.is_dir():
        return DownResult(None, None, 0, ())
    with home.locked():
        recorded = home.read("worker") if "worker" in components else None
        worker = recorded if recorded is not None and recorded.process.is_alive() else None
        server = home.running("server") if "server" in components else None
        trainings, worker_killed = (0, False) if worker is None else _stop_worker(worker, say, grace_seconds)
        killed = ["worker"] * worker_killed
        if recorded is not None and servers.answers(recorded.api):
            # If the server does not answer, the next `eigen up` reports the killed flow runs to it.
            with suppress(Stopped), client_of(recorded.api) as client:
                report_lost(client, home)
        if server is not None:
            say("stopping the server")
            killed += ["server"] * server.process.stop(_END_SECONDS)
        for component in components:
            home.forget(component)
        return DownResult(worker, server, trainings, tuple(killed))


def _stop_worker(worker: ProcessRecord, say: Say, grace_seconds: float) -> tuple[int, bool]:
    """Stop a worker's trainings, then the worker; return their number, and whether one or the worker was killed.

    After SIGTERM, a worker ends its flow runs at once and reports nothing, so they are stopped first. Until they end,
    the worker is paused (SIGSTOP): it must not start the flow run that resumes them, which waits for the next worker.
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
        # The worker's last poll may have given it another flow run, for whose end it would wait.
        for engine in process.children():
            if engine.runs(_ENGINE) and engine not in asked:
                engine.send(signal.SIGTERM)
                asked.append(engine)
        return not process.is_alive()

    # Send SIGTERM only once: at a second one, Prefect's worker kills itself.
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
