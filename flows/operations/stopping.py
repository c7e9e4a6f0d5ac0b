"""Stopping what was started: a training first, so that the server records its end, then its worker, then the server."""

import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from flows.endings import Stopped
from flows.operations.components import COMPONENTS, Component
from flows.operations.deploying import client_of
from flows.operations.flow_runs import begun_by_hand, report_lost, running_flow_run
from flows.operations.health import answers
from flows.operations.home import Home, ProcessRecord
from flows.operations.processes import ProcessId, wait_until

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
class Down:
    """What was stopped.

    Attributes:
        worker, server: the process, None if none ran.
        trainings: how many flow runs were asked to stop.
        killed: what did not stop by itself in time.
        by_hand: names of the flow runs of `eigen train` that have lost their server, as far as it knew.
    """

    worker: ProcessRecord | None
    server: ProcessRecord | None
    trainings: int
    killed: tuple[str, ...]
    by_hand: tuple[str, ...] = ()


def bring_down(
    home: Home,
    say: Say,
    grace_seconds: float = GRACE_SECONDS,
    components: Collection[Component] = COMPONENTS,
    before_server: Callable[[], None] = lambda: None,
) -> Down:
    """Stop what `bring_up` has started here, or some components of it.

    Args:
        home: what has been started.
        say: called with what is being waited for.
        grace_seconds: how long a training may take to stop by itself.
        components: what to stop of it.
        before_server: called between the ends of worker and server.

    Raises:
        InputError: another `eigen up` or `eigen down` is at work.
    """
    if not home.path.is_dir():
        before_server()
        return Down(None, None, 0, ())
    with home.alone():
        recorded = home.read("worker") if "worker" in components else None
        worker = recorded if recorded is not None and recorded.process.is_alive() else None
        server = home.running("server") if "server" in components else None
        killed: list[str] = []
        trainings = 0
        if worker is not None:
            trainings, worker_killed = _stop_worker(worker, say, grace_seconds)
            killed += ["worker"] * worker_killed
        if recorded is not None and answers(recorded.api):
            # If the server does not answer, the next `eigen up` reports them.
            with suppress(Stopped), client_of(recorded.api) as client:
                report_lost(client, recorded, home.worker_name)
        before_server()
        by_hand = () if server is None else _begun_by_hand(server.api)
        if server is not None:
            say("stopping the server")
            killed += ["server"] * server.process.stop(_END_SECONDS)
        for component in components:
            home.forget(component)
        return Down(worker, server, trainings, tuple(killed), by_hand)


def _stop_worker(worker: ProcessRecord, say: Say, grace_seconds: float) -> tuple[int, bool]:
    """Stop a worker and what it runs.

    A worker that is asked to stop ends its flow runs at once and does not report it, so they are stopped first. It is
    suspended meanwhile: a request for their resume must wait for the next worker, and not go to one that ends.

    Returns how many trainings were asked to stop, and whether they or the worker had to be killed.
    """
    process = worker.process
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
            wait_until(lambda: _nothing_runs(worker.api), _REPORT_SECONDS)
        say("stopping the worker")
        process.send(signal.SIGTERM)
    finally:
        # Not even an interrupted command leaves a worker that is suspended for ever.
        process.send(signal.SIGCONT)
    # A second SIGTERM would kill the worker.
    if not process.wait(_END_SECONDS):
        killed = True
        process.kill()
    return len(asked), killed


def _begun_by_hand(api: str) -> tuple[str, ...]:
    if answers(api):
        with suppress(Stopped), client_of(api) as client:
            return tuple(found.name for found in begun_by_hand(client))
    return ()


def _nothing_runs(api: str) -> bool:
    """Whether the server takes no flow run for running, or cannot be asked."""
    try:
        with client_of(api) as client:
            return running_flow_run(client) is None
    except Stopped:
        return True
