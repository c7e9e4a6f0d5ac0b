"""The connection to a Dask scheduler, the status of its workers, calls of their methods, and messages as arrays."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, is_dataclass
from typing import Any
from uuid import uuid4

import distributed
import numpy as np
import torch
from distributed import Client, Security
from distributed.comm.addressing import get_address_host_port, parse_address
from distributed.core import clean_exception, error_message
from distributed.protocol.serialize import Serialize
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.machine import SharedTensor
from eigen_core.task.replay import Replay

LOOK_SECONDS = 0.5
"""Time between two looks at which workers are still there, while they compute."""
OWN_MACHINE = ""
"""Machine of workers that read the memory of the leading process."""
OWN_SECURITY: dict[str, Security] = {}
"""Certificates of the schedulers of this process, by address; only this process and its workers have them."""

_CONNECTING_SECONDS = 20.0
_REACHING_SECONDS = 5.0
_REACHED_AT_ONCE = 64
# A scheduler that hangs keeps its connections, so that nothing else would end the wait.
_ANSWER_SECONDS = 60.0
_KEY = "eigen"


def connected(scheduler: str) -> Client:
    """Return a client of a scheduler; `InputError` if it cannot be reached."""
    # A lost scheduler raises an error that says what to do: Dask would print tracebacks of its reconnecting beside it.
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
            "or leave the scheduler out, so that this machine computes."
        ) from error


def _check(scheduler: str) -> None:
    """Refuse an address for which no client can be made: a failed client prints messages when it is collected.

    Raises:
        ValueError: the address has another form, or needs certificates, which are not there.
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


def worker_command(scheduler: str) -> str:
    """Return the command that starts a worker, whose memory the run's own guard watches in place of Dask."""
    return f"dask worker {scheduler} --nthreads 1 --memory-limit 0"


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as its scheduler knows it.

    Attributes:
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
    """Return the workers of a scheduler, ordered by address; `InputError` if it cannot be reached."""
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


def _runs_of(keys: Iterable[Any]) -> tuple[str, ...]:
    # Others use the same scheduler, with keys of any kind.
    return tuple(sorted({key.split(":")[1] for key in keys if isinstance(key, str) and key.startswith(f"{_KEY}:")}))


def unreachable(workers: Sequence[str]) -> list[str]:
    """Return the addresses of `workers` that this machine cannot connect to."""

    def is_unreachable(address: str) -> bool:
        try:
            socket.create_connection(get_address_host_port(address), _REACHING_SECONDS).close()
        except OSError:
            return True
        return False

    with ThreadPoolExecutor(_REACHED_AT_ONCE) as threads:
        return [address for address, fails in zip(workers, threads.map(is_unreachable, workers), strict=True) if fails]


Arrays = dict[str, NDArray[Any]]


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as arrays on the host."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return arrays as tensors on the host that have the same memory, and must not be written to."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Inverse of `to_arrays`, on `device`; the tensors are copies that can be written to."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


@dataclass(frozen=True)
class SentTransitions:
    """Transitions that make a worker's replay equal to that of the leading process.

    Attributes:
        before: transitions ever appended to the worker's replay before these; None: it begins anew.
        written: transitions ever appended afterwards.
        rows: the transitions in their order, the newest last.
    """

    before: int | None
    written: int
    rows: Arrays

    @classmethod
    def of(cls, replay: Replay, before: int | None) -> "SentTransitions":
        """Send the transitions appended after the first `before`; all that are stored where those are not all there."""
        if before is not None and not replay.written - replay.size <= before <= replay.written:
            before = None
        new = replay.size if before is None else replay.written - before
        return cls(before, replay.written, to_arrays(replay.newest(new)))


@dataclass(frozen=True)
class SharedTransitions:
    """A replay that workers of the same machine read where it is; `written`: transitions ever appended to it."""

    columns: Mapping[str, SharedTensor]
    written: int


@dataclass(frozen=True)
class RemoteError:
    """An exception of a worker's method, returned: Dask does not tell one that is raised from its own.

    Attributes:
        serialized: the exception, as Dask sends those of its tasks; a plain `Exception` if it cannot be sent.
        text: its type and message.
    """

    serialized: bytes
    text: str

    @classmethod
    def of(cls, error: Exception) -> "RemoteError":
        """Send an exception."""
        return cls(error_message(error)["exception"].data, f"{type(error).__name__}: {error}")

    def restored(self) -> Exception:
        """Return the exception; RuntimeError with its text if it could not be sent or cannot be made again here."""
        _, error, _ = clean_exception(self.serialized)
        # `Exception` itself stands for one that Dask could not send or make.
        return error if isinstance(error, Exception) and type(error) is not Exception else RuntimeError(self.text)


def array_bytes(message: Any) -> int:  # noqa: ANN401 - any message
    """Return the bytes of all arrays and tensors in a message of mappings, sequences and dataclasses."""
    if isinstance(message, np.ndarray | Tensor):
        return int(message.nbytes)
    if isinstance(message, Mapping):
        message = list(message.values())
    elif is_dataclass(message):
        message = [getattr(message, each.name) for each in fields(message)]
    return sum(map(array_bytes, message)) if isinstance(message, list | tuple) else 0


@dataclass
class Worker:
    """A worker that has a run.

    Attributes:
        actor: Dask's future of its `ResidentAgents`, which keeps them alive; None: they were released.
        machine: name of its machine, whose workers read one replay (`ResidentAgents.open`).
        written: transitions ever appended to the replay that it shares with its machine; None: it shares none.
    """

    address: str
    actor: distributed.Future[Any] | None
    machine: str = OWN_MACHINE
    written: int | None = None

    def lost(self, work: str, cause: Exception | None = None) -> WorkerLostError:
        """Return the error that the worker was lost in its work; `cause`: error of the connection to it."""
        reason = f" ({cause})" if isinstance(cause, OSError) else ""
        return WorkerLostError(f"worker {self.address} was lost while {work}{reason}.", self.address)


@dataclass(frozen=True)
class Call:
    """A call of a worker's method, which does `work` by it, and its result."""

    worker: Worker
    work: str
    result: Future[Any]


class WorkerClient:
    """Calls methods of `ResidentAgents` in the workers of a scheduler.

    The workers are asked directly: Dask's `Actor` leaves the caller waiting without an end if a call fails by anything
    but a closed connection.

    `sent_bytes` and `received_bytes` count all arrays. `InputError` if no scheduler can be reached at this address.
    """

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        self.sent_bytes = self.received_bytes = 0
        self._client = connected(scheduler)
        self._loop: asyncio.AbstractEventLoop = self._client.sync(_running_loop)  # type: ignore[no-untyped-call] # distributed has no annotation here

    def close(self) -> None:
        """Close the connection."""
        self._client.close()  # type: ignore[no-untyped-call] # distributed has no annotation here

    def addresses(self) -> list[str]:
        """Return the addresses of the workers that are there, sorted.

        Raises:
            SchedulerLostError: the scheduler cannot be reached any more.
        """
        reason = "the connection is closed"
        # A client that has lost its scheduler closes itself after some time, also while it asks.
        if self._client.scheduler is not None:
            try:
                return sorted(self._client.sync(self._client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS))  # type: ignore[no-untyped-call] # distributed has no annotation here
            except TimeoutError:
                reason = f"no answer for {_ANSWER_SECONDS:.0f} s"
            except OSError as error:
                reason = str(error)
            except RuntimeError:
                if self._client.status not in ("closing", "closed"):
                    raise
        raise SchedulerLostError(
            f"scheduler {self.scheduler} cannot be reached any more ({reason}): start it and its workers again and "
            "resume the run."
        )

    def make(self, kind: type[Any], run: str, address: str, *arguments: Any) -> Worker:  # noqa: ANN401 - of any kind
        """Let a worker make an object of `kind`, whose methods are then called, once it has a thread for that."""
        where = {"workers": [address], "allow_other_workers": False, "key": key_of(run)}
        return Worker(address, self._client.submit(kind, *arguments, actor=True, pure=False, **where))

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine in the thread of the connection."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, worker: Worker, work: str, method: str, *arguments: Any) -> Call:  # noqa: ANN401 - of any method
        """Start a call (`ask`)."""
        return Call(worker, work, self.start(self.ask(worker, work, method, *arguments)))

    async def ask(self, worker: Worker, work: str, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - of any method
        """Call a method of a worker, which does `work` by it, and return its result.

        Raises:
            WorkerLostError: the worker does not have the run any more, or the connection to it failed.
            Exception: the error of the method; RuntimeError with its type and text if that cannot be sent.
        """
        if worker.actor is None or worker.actor.status != "finished":
            message = f"worker {worker.address} was lost before it was asked to {method}."
            raise WorkerLostError(message, worker.address)
        self.sent_bytes += array_bytes(arguments)
        sent = [Serialize(argument) for argument in (method, *arguments)]  # type: ignore[no-untyped-call] # distributed has no annotation here
        asked: dict[str, Any] = {"function": "answer", "actor": worker.actor.key, "args": sent, "kwargs": {}}
        try:
            reply = await self._client.rpc(worker.address).actor_execute(**asked)
            if reply["status"] != "OK":
                raise reply["exception"]
        # KeyError: the scheduler has lost this process, and has let the worker free its part of the run.
        except (OSError, KeyError) as error:
            raise worker.lost(work, error) from error
        if isinstance(reply["result"], RemoteError):
            raise reply["result"].restored()
        self.received_bytes += array_bytes(reply["result"])
        return reply["result"]

    def results(self, calls: Sequence[Call], progress: Callable[[int], None]) -> list[Any]:
        """Return the results of calls, in their order; the first error (`ask`) or lost worker ends the wait.

        `progress` is called with the number of calls that have returned, at least every `LOOK_SECONDS`.
        """
        pending, looked = list(calls), time.monotonic()
        while pending:
            progress(len(calls) - len(pending))
            wait([call.result for call in pending], LOOK_SECONDS, FIRST_COMPLETED)
            for call in pending:
                raise_failure(call.result)
            pending = [call for call in pending if not call.result.done()]
            if time.monotonic() - looked >= LOOK_SECONDS:
                there, looked = self.addresses(), time.monotonic()
                for call in pending:
                    if call.worker.address not in there:
                        raise call.worker.lost(call.work)
        return [call.result.result() for call in calls]


def raise_failure(result: Future[Any]) -> None:
    """Raise the error of a coroutine that has failed, without the frames that keep what was sent."""
    error = result.exception() if result.done() else None
    if error is not None:
        if error.__cause__ is not None:
            error.__cause__.__traceback__ = None
        raise error.with_traceback(None)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
