"""The connection of a run's process to a Dask scheduler: its workers, calls of their methods, data sent."""

import asyncio
import logging
import shlex
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields, is_dataclass
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

from eigen_core.common.errors import InputError, SchedulerLostError, UnavailableError, WorkerLostError
from eigen_core.common.text import has_credentials
from eigen_core.machine.allocation import SharedTensor
from eigen_core.task.replay import Replay

OWN_MACHINE = ""
"""`Worker.machine` of workers that can read memory of the leading process, the one that trains the run."""

Arrays = dict[str, NDArray[Any]]

POLL_SECONDS = 0.5
"""Interval (seconds) at which the scheduler is asked for its workers while they compute."""
OWN_SECURITY: dict[str, Security] = {}
"""TLS certificates of the schedulers in this process, by address; only this process and its workers have them."""

_CONNECTING_SECONDS = 20.0
_REACHING_SECONDS = 5.0
_REACHED_AT_ONCE = 64
# A scheduler that hangs keeps its connections, so that nothing else would end the wait.
_ANSWER_SECONDS = 60.0
_KEY = "eigen"


def connected(scheduler: str) -> Client:
    """Return a Dask client connected to a scheduler; `InputError` if its address cannot be used or does not answer."""
    if has_credentials(scheduler):
        raise InputError(
            "The scheduler's address has a user or a password in it: leave them out, and use certificates (Dask's "
            "settings distributed.comm.tls)."
        )
    # Dask would print tracebacks of its attempts to reconnect. The root logger's handlers belong to the application.
    for handler in {*logging.getLogger("distributed").handlers}.difference(logging.root.handlers):
        handler.setLevel(logging.CRITICAL)
    try:
        get_address_host_port(scheduler)
        if parse_address(scheduler)[0] == "tls" and scheduler not in OWN_SECURITY:
            security = Security()  # type: ignore[no-untyped-call] # distributed has no annotation here
            arguments = security.get_connection_args("client")  # type: ignore[no-untyped-call] # as above
            # A client that cannot be made prints messages when it is collected.
            if arguments["ssl_context"] is None:
                raise ValueError("it needs certificates, and Dask's settings distributed.comm.tls name none")
        return Client(  # type: ignore[no-untyped-call] # distributed has no annotation here
            scheduler,
            timeout=_CONNECTING_SECONDS,
            set_as_default=False,
            direct_to_workers=True,
            name=_KEY,
            security=OWN_SECURITY.get(scheduler),
        )
    except (OSError, ValueError) as error:
        # An address that cannot be used is a ValueError.
        raise (UnavailableError if isinstance(error, OSError) else InputError)(
            f"scheduler {scheduler} cannot be reached ({error}): start it (`dask scheduler`), correct the address, "
            "or unset the setting scheduler, so that this machine computes."
        ) from error


def key_of(run: str) -> str:
    """Return a new, unique key for a Dask task of a run; the key names the run."""
    return f"{_KEY}:{run}:{uuid4().hex}"


def worker_command(scheduler: str) -> str:
    """Return the shell command that starts a worker of a scheduler, on any machine with Eigen."""
    # The run's own guard watches the memory.
    return f"dask worker {shlex.quote(scheduler)} --nthreads 1 --memory-limit 0"


def unreachable(workers: Sequence[str]) -> list[str]:
    """Return those of the addresses `workers` to which this machine cannot connect."""

    def is_unreachable(address: str) -> bool:
        try:
            socket.create_connection(get_address_host_port(address), _REACHING_SECONDS).close()
        except OSError:
            return True
        return False

    with ThreadPoolExecutor(_REACHED_AT_ONCE) as threads:
        return [address for address, fails in zip(workers, threads.map(is_unreachable, workers), strict=True) if fails]


@dataclass
class Worker:
    """A worker that computes agents of a run, or has been asked to start the run.

    Attributes:
        actor: Dask's future of its `WorkerAgents`, which keeps them alive; None: they were released.
        machine: name of its machine, all of whose workers read one replay buffer (`WorkerAgents.open`).
        written: number of transitions ever appended to the replay that it shares on its machine; None: it shares none.
        started: when it was asked to start the run (`time.monotonic`).
        is_reported: a warning has said that it does not answer.
    """

    address: str
    actor: distributed.Future[Any] | None
    machine: str = OWN_MACHINE
    written: int | None = None
    started: float = field(default_factory=time.monotonic)
    is_reported: bool = False

    def lost(self, work: str, cause: Exception | None = None) -> WorkerLostError:
        reason = f" ({cause})" if isinstance(cause, OSError) else ""
        return WorkerLostError(f"worker {self.address} was lost while {work}{reason}.", self.address)


class WorkerClient:
    """Calls methods of `WorkerAgents` in the workers of a scheduler, whose address is `scheduler`.

    Calls bypass Dask's `Actor`, whose caller waits forever if a call fails otherwise than by a closed connection.
    `sent_bytes` and `received_bytes` are sizes of all arrays so far. `InputError` as `connected` raises it.
    """

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        self.sent_bytes = self.received_bytes = 0
        self._client = connected(scheduler)
        self._loop = self._client.loop.asyncio_loop  # type: ignore[union-attr] # a connected client has a loop

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call] # distributed has no annotation here

    def addresses(self) -> list[str]:
        """Return the addresses of all workers, sorted; `SchedulerLostError` if the scheduler does not answer."""
        reason = "the connection is closed"
        # A client that has lost its scheduler closes itself after some time, even during a request.
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
        """Create an actor of class `kind` (an object that a worker keeps), once the worker has a free thread."""
        where = {"workers": [address], "allow_other_workers": False, "key": key_of(run)}
        return Worker(address, self._client.submit(kind, *arguments, actor=True, pure=False, **where))

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def ask(self, worker: Worker, work: str, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - of any method
        """Call a method of a worker and return its result; `work` describes the call in an error message.

        Raises:
            WorkerLostError: the worker does not have the run any more, or the connection to it failed.
            Exception: the error that the method raised; RuntimeError with its type and text if it cannot be sent.
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

    def call(
        self, method: str, calls: Sequence[tuple[Worker, str, tuple[Any, ...]]], progress: Callable[[int], None]
    ) -> list[Any]:
        """Call a method of several workers at once, and return the results in order; raise the first error at once.

        `calls` has (worker, description of its work, arguments), as in `ask`. `progress` is called with the number of
        calls that have ended, at least every `POLL_SECONDS`.
        """
        results = [self.start(self.ask(worker, work, method, *arguments)) for worker, work, arguments in calls]
        pending, asked = dict(zip(results, calls, strict=True)), time.monotonic()
        while pending:
            progress(len(calls) - len(pending))
            wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for result in pending:
                raise_failure(result)
            pending = {result: call for result, call in pending.items() if not result.done()}
            if time.monotonic() - asked >= POLL_SECONDS:
                addresses, asked = self.addresses(), time.monotonic()
                for worker, work, _ in pending.values():
                    if worker.address not in addresses:
                        raise worker.lost(work)
        return [result.result() for result in results]


def raise_failure(result: Future[Any]) -> None:
    """Raise the error of a failed coroutine without its tracebacks, whose frames would keep the sent data alive."""
    error = result.exception() if result.done() else None
    if error is not None:
        if error.__cause__ is not None:
            error.__cause__.__traceback__ = None
        raise error.with_traceback(None)


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]], device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the arrays as tensors, by name. Do not write to them: on the host they share the memory of the arrays."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


@dataclass(frozen=True)
class SentTransitions:
    """Transitions that make a worker's replay buffer equal to that of the leading process.

    Attributes:
        before: number of transitions ever appended to the worker's replay before `rows`; None: it drops its own.
        written: number of transitions ever appended once `rows` are.
        rows: columns of the transitions, by name, the newest transition last.
    """

    before: int | None
    written: int
    rows: Arrays

    @classmethod
    def of(cls, replay: Replay, before: int | None) -> "SentTransitions":
        """Return the transitions after the first `before`; all that are left if it is None or some were overwritten."""
        if before is not None and not replay.written - replay.size <= before <= replay.written:
            before = None
        new = replay.size if before is None else replay.written - before
        return cls(before, replay.written, to_arrays(replay.newest(new)))


@dataclass(frozen=True)
class SharedTransitions:
    """A replay in memory that workers of its machine can map; `written`: number of transitions ever appended."""

    columns: Mapping[str, SharedTensor]
    written: int


@dataclass(frozen=True)
class RemoteError:
    """An exception of a worker's method, as a return value: Dask mixes raised exceptions with its own.

    Attributes:
        serialized: the exception as Dask serializes it; a plain `Exception` if it cannot be serialized.
        text: its type and message.
    """

    serialized: bytes
    text: str

    @classmethod
    def of(cls, error: Exception) -> "RemoteError":
        return cls(error_message(error)["exception"].data, f"{type(error).__name__}: {error}")

    def restored(self) -> Exception:
        """Return the exception; a RuntimeError with its text if it could not be sent or cannot be created here."""
        _, error, _ = clean_exception(self.serialized)
        # `Exception` itself stands for one that Dask could not send or create.
        return error if isinstance(error, Exception) and type(error) is not Exception else RuntimeError(self.text)


def array_bytes(message: Any) -> int:  # noqa: ANN401 - any message
    """Return the size of all arrays and tensors in a message, in bytes."""
    if isinstance(message, np.ndarray | Tensor):
        return int(message.nbytes)
    if isinstance(message, Mapping):
        message = list(message.values())
    elif is_dataclass(message):
        message = [getattr(message, each.name) for each in fields(message)]
    return sum(map(array_bytes, message)) if isinstance(message, list | tuple) else 0
