"""The connection to a Dask scheduler, its workers, and calls of their methods."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import distributed
from distributed import Client, Security
from distributed.comm.addressing import get_address_host_port, parse_address
from distributed.protocol.serialize import Serialize

from eigen_core.common.errors import InputError, WorkerLostError
from eigen_core.machine import SharedTensor
from eigen_core.workers.messages import RemoteError, array_bytes

_CONNECTING_SECONDS = 20.0
_REACHING_SECONDS = 5.0
_REACHED_AT_ONCE = 64
_ANSWER_SECONDS = 60.0
"""Time in which a scheduler answers. One that hangs keeps its connections, so that nothing else would end the wait."""
_KEY = "eigen"


OWN_SECURITY: dict[str, Security] = {}
"""Certificates of the schedulers of this process, by address; only this process and its workers have them."""


def connected(scheduler: str) -> Client:
    """Return a client of a scheduler.

    Raises:
        InputError: it cannot be reached.
    """
    # A lost scheduler is an error that says what to do: Dask would print tracebacks of its reconnecting beside it.
    for handler in logging.getLogger("distributed").handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        _check(scheduler)
        return Client(  # type: ignore[no-untyped-call] # distributed has no annotation here
            scheduler,
            timeout=_CONNECTING_SECONDS,
            set_as_default=False,
            direct_to_workers=True,
            name=_KEY,
            security=OWN_SECURITY.get(scheduler),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"scheduler {scheduler} cannot be reached ({error}): start it (`dask scheduler`), correct the address, "
            "or use workers of this machine (setting workers)."
        ) from error


def worker_command(scheduler: str) -> str:
    """Return the command that starts a worker, whose memory the run's own guard watches in place of Dask."""
    return f"dask worker {scheduler} --nthreads 1 --memory-limit 0"


def threads_of(client: Client) -> dict[str, int]:
    """Return the number of threads of each worker of a client's scheduler, by address.

    Raises:
        OSError: the scheduler cannot be reached any more, or does not answer.
    """
    scheduler = client.scheduler
    # A client that has lost its scheduler closes itself after some time, also while it asks.
    if scheduler is None:
        raise ConnectionError("the connection is closed")
    try:
        threads: dict[str, int] = client.sync(scheduler.ncores, callback_timeout=_ANSWER_SECONDS)  # type: ignore[no-untyped-call] # distributed has no annotation here
    except TimeoutError as error:
        raise TimeoutError(f"no answer for {_ANSWER_SECONDS:.0f} s") from error
    except RuntimeError as error:
        if client.status not in ("closing", "closed"):
            raise
        raise ConnectionError("the connection is closed") from error
    return threads


def _check(scheduler: str) -> None:
    """Refuse an address for which no client can be made: what is left of one gives further messages when it ends.

    Raises:
        ValueError: it has another form, or needs certificates, which are not there.
        OSError: the certificates cannot be read.
    """
    get_address_host_port(scheduler)
    if parse_address(scheduler)[0] == "tls" and scheduler not in OWN_SECURITY:
        security = Security()  # type: ignore[no-untyped-call] # distributed has no annotation here
        arguments = security.get_connection_args("client")  # type: ignore[no-untyped-call] # as above
        if arguments["ssl_context"] is None:
            raise ValueError("it needs certificates, and Dask's settings distributed.comm.tls name none")


def key_of(run: str) -> str:
    """Return a new key under which a worker keeps its part of a run."""
    return f"{_KEY}:{run}:{uuid4().hex}"


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as its scheduler knows it.

    Attributes:
        address: by which it is reached.
        threads: that it computes with.
        cpu_percent: of one core, in the last second.
        memory_bytes: resident memory of its process.
        seen_seconds_ago: time since its last heartbeat.
        runs: names of the runs of which it has agents, and of the whole runs that it trains or that wait for a thread.
    """

    address: str
    threads: int
    cpu_percent: float
    memory_bytes: int
    seen_seconds_ago: float
    runs: tuple[str, ...]


def workers_of(scheduler: str) -> list[WorkerStatus]:
    """Return the workers of a scheduler, ordered by address.

    Raises:
        InputError: it cannot be reached.
    """
    with connected(scheduler) as client:
        known = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
        kept = client.sync(client.scheduler.has_what)
        trained = client.sync(client.scheduler.processing)
    return [
        WorkerStatus(
            address=address,
            threads=int(worker["nthreads"]),
            cpu_percent=float(worker["metrics"]["cpu"]),
            memory_bytes=int(worker["metrics"]["memory"]),
            seen_seconds_ago=max(time.time() - float(worker["last_seen"]), 0.0),
            runs=_runs_of((*kept.get(address, ()), *trained.get(address, ()))),
        )
        for address, worker in sorted(known.items())
    ]


def unreachable(workers: Sequence[str]) -> list[str]:
    """Return the addresses of workers, of those given, that this machine cannot connect to."""

    def is_unreachable(address: str) -> bool:
        try:
            socket.create_connection(get_address_host_port(address), _REACHING_SECONDS).close()
        except OSError:
            return True
        return False

    with ThreadPoolExecutor(_REACHED_AT_ONCE) as threads:
        return [address for address, fails in zip(workers, threads.map(is_unreachable, workers), strict=True) if fails]


def _runs_of(keys: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the runs to which keys belong; others use the same scheduler, with keys of any kind."""
    return tuple(sorted({key.split(":")[1] for key in keys if isinstance(key, str) and key.startswith(f"{_KEY}:")}))


OWN_MACHINE = 0
"""Number of the machine of the process that leads."""


@dataclass
class Worker:
    """A worker that has this run.

    Attributes:
        address: by which the scheduler knows it.
        actor: of its `ResidentAgents`, by which Dask keeps them; None: they were let go.
        machine: number of the machine that it is on, whose workers read one replay; `OWN_MACHINE`: this process's.
        probe: memory of it, which those on its machine can read; None where none is shared.
        gpu: that it computes on, by a name that no other has; None: the processor.
        kept: digests of the agents that it has.
        written: transitions ever appended to the replay that it shares with its machine; None: it shares none.
    """

    address: str
    actor: distributed.Future[Any] | None
    machine: int = OWN_MACHINE
    probe: SharedTensor | None = None
    gpu: str | None = None
    kept: set[str] = field(default_factory=set)
    written: int | None = None


def machine_of(
    worker: Worker,
    others: Collection[Worker],
    own_probe: SharedTensor | None,
    reads: Callable[[Worker, SharedTensor], bool],
) -> int:
    """Return the machine of a worker: that whose workers can read its memory as it can read theirs, or a new one.

    It is on `OWN_MACHINE` if it can read the memory of the process that leads, which reads none of a worker.

    Args:
        worker: with its probe.
        others: those whose machine is known.
        own_probe: memory of the process that leads; None: it shares none.
        reads: returns whether a worker can read a probe.
    """
    if own_probe is not None and reads(worker, own_probe):
        return OWN_MACHINE
    machines: dict[int, bool] = {}
    for other in (other for other in others if other.machine != OWN_MACHINE):
        both = (
            worker.probe is not None
            and other.probe is not None
            and reads(worker, other.probe)
            and reads(other, worker.probe)
        )
        machines[other.machine] = machines.get(other.machine, True) and both
    return next((machine for machine, both in machines.items() if both), max(machines, default=OWN_MACHINE) + 1)


LOOK_SECONDS = 0.5
"""Time between two looks at which workers are still there, while they compute."""


@dataclass(frozen=True)
class Call:
    """A call of a worker's method.

    Attributes:
        worker: that was called.
        what: it does by the call, in words.
        answer: what comes back.
    """

    worker: Worker
    what: str
    answer: Future[Any]

    def lost(self, cause: Exception | None = None) -> WorkerLostError:
        """The error that the worker was lost meanwhile; `cause`: what the connection to it has raised."""
        reason = f" ({cause})" if isinstance(cause, OSError) else ""
        address = self.worker.address
        return WorkerLostError(f"worker {address} was lost while {self.what}{reason}.", address)


class Calls:
    """Calls methods of the `ResidentAgents` of workers.

    The workers are asked directly. Dask's own object for that, an `Actor`, leaves the caller waiting without an end if
    a call fails by anything but a closed connection.

    Args:
        client: of the scheduler.
        addresses: returns the addresses of the workers that are there.

    Attributes:
        sent_bytes, received_bytes: of all arrays that crossed since the object was made.
    """

    def __init__(self, client: Client, addresses: Callable[[], Collection[str]]) -> None:
        self.sent_bytes = self.received_bytes = 0
        self._client = client
        self._addresses = addresses
        self._loop: asyncio.AbstractEventLoop = client.sync(_running_loop)  # type: ignore[no-untyped-call] # distributed has no annotation here

    def call(self, worker: Worker, what: str, method: str, *arguments: Any) -> Call:  # noqa: ANN401 - of any method
        """Call a method of a worker, which does `what` by it.

        Raises:
            WorkerLostError: it is known already that the worker does not have the run any more.
        """
        if worker.actor is None or worker.actor.status != "finished":
            message = f"worker {worker.address} was lost before it was asked to {method}."
            raise WorkerLostError(message, worker.address)
        self.sent_bytes += array_bytes(arguments)
        asked = self._asked(worker.address, worker.actor.key, (method, *arguments))
        return Call(worker, what, asyncio.run_coroutine_threadsafe(asked, self._loop))

    async def _asked(self, address: str, key: Any, arguments: Sequence[Any]) -> Any:  # noqa: ANN401 - as above
        sent = [Serialize(argument) for argument in arguments]  # type: ignore[no-untyped-call] # as above
        reply = await self._client.rpc(address).actor_execute(function="answer", actor=key, args=sent, kwargs={})
        if reply["status"] != "OK":
            raise reply["exception"]
        return reply["result"]

    def answers(self, calls: Sequence[Call], progress: Callable[[int], None] = lambda _: None) -> list[Any]:
        """Return what calls return, in their order. The first failure of any of them ends the wait.

        Args:
            calls: that were made.
            progress: is given the number of calls that have returned, at least at each look at the workers.

        Raises:
            WorkerLostError: a worker is not there any more.
            Exception: what a method has raised; RuntimeError with its type and text if that cannot cross.
        """
        answers: dict[int, Any] = {}
        looked = time.monotonic()
        while len(answers) < len(calls):
            progress(len(answers))
            pending = [(place, call) for place, call in enumerate(calls) if place not in answers]
            wait([call.answer for _, call in pending], LOOK_SECONDS, FIRST_COMPLETED)
            for place, call in pending:
                if call.answer.done():
                    answers[place] = self._returned(call)
            if time.monotonic() - looked >= LOOK_SECONDS:
                self._require_workers([call for place, call in pending if place not in answers])
                looked = time.monotonic()
        return [answers[place] for place in range(len(calls))]

    def _returned(self, call: Call) -> Any:  # noqa: ANN401 - of any method
        try:
            answer = call.answer.result()
        # KeyError: the scheduler has lost this process, and has let the worker free what it had of the run.
        except (OSError, KeyError) as error:
            # The traceback would keep what was sent for as long as the failure is remembered.
            raise call.lost(error) from error.with_traceback(None)
        if isinstance(answer, RemoteError):
            raise answer.restored()
        self.received_bytes += array_bytes(answer)
        return answer

    def _require_workers(self, calls: Sequence[Call]) -> None:
        there = self._addresses()
        for call in calls:
            if call.worker.address not in there:
                raise call.lost()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
