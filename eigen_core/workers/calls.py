"""Calls of a worker's methods, and waiting for what they return."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from distributed import Client
from distributed.protocol.serialize import Serialize

from eigen_core.common.errors import WorkerLostError
from eigen_core.workers.machines import Worker
from eigen_core.workers.messages import RemoteError, array_bytes

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
