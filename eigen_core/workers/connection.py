"""The connection to a Dask scheduler, and what it knows of its workers."""

import time
from dataclasses import dataclass
from uuid import uuid4

from distributed import Client

from eigen_core.errors import InputError

_CONNECTING_SECONDS = 20.0
_KEY = "eigen"


def connected(scheduler: str) -> Client:
    """Return a client of a scheduler.

    Raises:
        InputError: it cannot be reached.
    """
    try:
        return Client(  # type: ignore[no-untyped-call] # distributed has no annotation here
            scheduler, timeout=_CONNECTING_SECONDS, set_as_default=False, direct_to_workers=True, name=_KEY
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"scheduler {scheduler} cannot be reached ({error}): start it (`dask scheduler`), correct the address, "
            "or use workers of this machine (setting workers)."
        ) from error


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
        runs: names of the runs of which it computes agents.
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
    return [
        WorkerStatus(
            address=address,
            threads=int(worker["nthreads"]),
            cpu_percent=float(worker["metrics"]["cpu"]),
            memory_bytes=int(worker["metrics"]["memory"]),
            seen_seconds_ago=max(time.time() - float(worker["last_seen"]), 0.0),
            runs=tuple(sorted({key.split(":")[1] for key in kept.get(address, ()) if key.startswith(f"{_KEY}:")})),
        )
        for address, worker in sorted(known.items())
    ]
