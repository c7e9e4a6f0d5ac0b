"""The connection to a Dask scheduler, and what it knows of its workers."""

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from distributed import Client, Security
from distributed.comm.addressing import get_address_host_port, parse_address

from eigen_core.common.errors import InputError

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
