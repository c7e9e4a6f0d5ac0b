"""Stopping what was started: a training first, so that it is heard of, then its worker, then the server."""

import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flows.cli_endings import Stopped
from flows.operations.home import Home, Part, Record
from flows.operations.processes import ProcessId

GRACE_SECONDS = 120.0
"""How long a training that is told to stop may take to reach a point where it can."""

_WORKER_SECONDS = 10.0
_SERVER_SECONDS = 15.0
_REPORT_SECONDS = 10.0
_POLL_SECONDS = 0.1
# What Prefect's worker starts for a flow run; beside it, it starts processes for hooks, which end by themselves.
_ENGINE = "prefect.engine"

Say = Callable[[str], None]


@dataclass(frozen=True)
class StoppedWorker:
    """How a worker was stopped.

    Attributes:
        trainings: processes of flow runs that were told to stop.
        killed: they, or the worker, did not stop by themselves in time.
    """

    trainings: tuple[ProcessId, ...]
    killed: bool


def stop_worker(process: ProcessId, say: Say, grace_seconds: float, reported: Callable[[], bool]) -> StoppedWorker:
    """Stop a worker and what it runs.

    A worker that is told to stop ends its flow runs at once and reports nothing of it, so they are stopped first.

    Args:
        process: the worker.
        say: is told what is being waited for.
        grace_seconds: how long trainings may take to stop by themselves.
        reported: whether the server knows that they have ended.
    """
    told: list[ProcessId] = []
    end = time.monotonic() + grace_seconds
    killed = False
    while engines := [child for child in process.children() if child.runs(_ENGINE)]:
        for engine in engines:
            if engine not in told:
                say("stopping the training")
                engine.send(signal.SIGTERM)
                told.append(engine)
        if time.monotonic() > end:
            killed = True
            for engine in engines:
                engine.kill()
        time.sleep(_POLL_SECONDS)
    if told:
        _wait_for(reported, _REPORT_SECONDS)
    say("stopping the worker")
    process.send(signal.SIGTERM)
    if not process.wait(_WORKER_SECONDS):
        killed = True
        process.kill()
    return StoppedWorker(tuple(told), killed)


def stop_server(process: ProcessId, say: Say) -> bool:
    """Stop a server and return whether it had to be killed."""
    say("stopping the server")
    process.send(signal.SIGTERM)
    if process.wait(_SERVER_SECONDS):
        return False
    process.kill()
    return True


@dataclass(frozen=True)
class Down:
    """What was stopped.

    Attributes:
        worker, server: the process, None if none ran.
        trainings: how many flow runs were told to stop.
        killed: what did not stop by itself in time.
    """

    worker: Record | None
    server: Record | None
    trainings: int
    killed: tuple[str, ...]


def bring_down(
    home: Home,
    say: Say,
    grace_seconds: float = GRACE_SECONDS,
    parts: Collection[Part] = ("server", "worker"),
) -> Down:
    """Stop what `bring_up` has started here, or some parts of it.

    Raises:
        InputError: another `eigen up` or `eigen down` is at work.
    """
    if not home.path.is_dir():
        return Down(None, None, 0, ())
    with home.alone():
        worker = home.running("worker") if "worker" in parts else None
        server = home.running("server") if "server" in parts else None
        killed: list[str] = []
        trainings = 0
        if worker is not None:
            api = worker.api
            stopped = stop_worker(worker.process, say, grace_seconds, lambda: nothing_runs(api))
            trainings = len(stopped.trainings)
            killed += ["worker"] * stopped.killed
        if server is not None and stop_server(server.process, say):
            killed.append("server")
        for part in parts:
            home.forget(part)
        return Down(worker, server, trainings, tuple(killed))


def nothing_runs(api: str) -> bool:
    """Whether the server takes no flow run for running, or cannot be asked."""
    from flows.operations.deploying import client_of
    from flows.operations.flow_runs import running_flow_run

    try:
        with client_of(api) as client:
            return running_flow_run(client) is None
    except Stopped:
        return True


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
