"""Stopping what was started: a training first, so that it is heard of, then its worker, then the server."""

import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from flows.endings import Stopped
from flows.operations.health import answers
from flows.operations.home import PARTS, Home, Part, Record
from flows.operations.processes import ProcessId
from flows.operations.worker import worker_name

GRACE_SECONDS = 120.0
"""How long a training that is asked to stop may take to reach a point where it can."""

# Worker and server end within seconds, but not on a machine with other things to do.
_END_SECONDS = 60.0
_REPORT_SECONDS = 10.0
_POLL_SECONDS = 0.1
# What Prefect's worker starts for a flow run; beside it, it starts processes for hooks, which end by themselves.
_ENGINE = "prefect.engine"

Say = Callable[[str], None]


@dataclass(frozen=True)
class StoppedWorker:
    """How a worker was stopped.

    Attributes:
        trainings: processes of flow runs that were asked to stop.
        killed: they, or the worker, did not stop by themselves in time.
    """

    trainings: tuple[ProcessId, ...]
    killed: bool


def stop_worker(process: ProcessId, say: Say, grace_seconds: float, reported: Callable[[], bool]) -> StoppedWorker:
    """Stop a worker and what it runs.

    A worker that is asked to stop ends its flow runs at once and does not report it, so they are stopped first. It is
    held meanwhile: what asks for their resume must wait for the next worker, and not be taken by one that ends.

    Args:
        process: the worker.
        say: called with what is being waited for.
        grace_seconds: how long trainings may take to stop by themselves.
        reported: whether the server knows that they have ended.
    """
    asked: list[ProcessId] = []
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
            time.sleep(_POLL_SECONDS)
        if asked:
            _wait_for(reported, _REPORT_SECONDS)
        say("stopping the worker")
        process.send(signal.SIGTERM)
    finally:
        # Not even an interrupted command leaves a worker that is held for ever.
        process.send(signal.SIGCONT)
    if not process.wait(_END_SECONDS):
        killed = True
        process.kill()
    return StoppedWorker(tuple(asked), killed)


def stop_server(process: ProcessId, say: Say) -> bool:
    """Stop a server and return whether it had to be killed."""
    say("stopping the server")
    process.send(signal.SIGTERM)
    if process.wait(_END_SECONDS):
        return False
    process.kill()
    return True


@dataclass(frozen=True)
class Down:
    """What was stopped.

    Attributes:
        worker, server: the process, None if none ran.
        trainings: how many flow runs were asked to stop.
        killed: what did not stop by itself in time.
        by_hand: names of the flow runs of `eigen train` that have lost their server, as far as it knew.
    """

    worker: Record | None
    server: Record | None
    trainings: int
    killed: tuple[str, ...]
    by_hand: tuple[str, ...] = ()


def bring_down(
    home: Home,
    say: Say,
    grace_seconds: float = GRACE_SECONDS,
    parts: Collection[Part] = PARTS,
    before_server: Callable[[], None] = lambda: None,
) -> Down:
    """Stop what `bring_up` has started here, or some parts of it.

    Args:
        home: what has been started.
        say: called with what is being waited for.
        grace_seconds: how long a training may take to stop by itself.
        parts: what to stop of it.
        before_server: is called between the ends of worker and server.

    Raises:
        InputError: another `eigen up` or `eigen down` is at work.
    """
    if not home.path.is_dir():
        before_server()
        return Down(None, None, 0, ())
    with home.alone():
        noted = home.read("worker") if "worker" in parts else None
        worker = home.running("worker") if "worker" in parts else None
        server = home.running("server") if "server" in parts else None
        killed: list[str] = []
        trainings = 0
        if worker is not None:
            api = worker.api
            stopped = stop_worker(worker.process, say, grace_seconds, lambda: nothing_runs(api))
            trainings = len(stopped.trainings)
            killed += ["worker"] * stopped.killed
        if noted is not None:
            _report_lost(noted, worker_name(home))
        before_server()
        by_hand = () if server is None else _begun_by_hand(server.api)
        if server is not None and stop_server(server.process, say):
            killed.append("server")
        for part in parts:
            home.forget(part)
        return Down(worker, server, trainings, tuple(killed), by_hand)


def _report_lost(worker: Record, name: str) -> None:
    """Tell the server of flow runs that were killed; if it does not answer, the next `eigen up` does."""
    from flows.operations.deploying import client_of
    from flows.operations.lost import report_lost

    if not answers(worker.api):
        return
    with suppress(Stopped), client_of(worker.api) as client:
        report_lost(client, worker, name)


def _begun_by_hand(api: str) -> tuple[str, ...]:
    from flows.operations.deploying import client_of
    from flows.operations.flow_runs import begun_by_hand

    if not answers(api):
        return ()
    with suppress(Stopped), client_of(api) as client:
        return tuple(found.name for found in begun_by_hand(client))
    return ()


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
