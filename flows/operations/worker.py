"""Starting the worker that trains."""

import hashlib
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from eigen_core.store import store_from_environment
from flows.endings import Stopped
from flows.operations.environment import POOL, worker_command, worker_environment
from flows.operations.home import Home, Record
from flows.operations.processes import Started, last_lines, start, this_machine

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Worker

START_SECONDS = 120.0
_POLL_SECONDS = 0.5


def worker_name(home: Home) -> str:
    """Return the name of the worker of this folder: the same each time, so that the server lists it once."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(home.path).encode()).hexdigest()[:6]}"


def begin_worker(home: Home, environ: Mapping[str, str], api: str, folder: Path) -> tuple[Record, Started]:
    """Start a worker whose flows work in `folder`, without waiting for it.

    Raises:
        InputError: its log cannot be written to.
    """
    log = home.log("worker")
    started = start(worker_command(worker_name(home)), worker_environment(environ, api, folder), log, folder)
    store = store_from_environment(environ)
    record = Record(process=started.process, api=api, log=log, folder=folder, store=store, machine=this_machine())
    home.write("worker", record)
    return record, started


def wait_for_worker(client: "SyncPrefectClient", home: Home, record: Record, started: Started) -> None:
    """Return when the server has heard of a worker that was begun.

    Raises:
        Stopped: it ended, or the server has not heard of it in time.
    """
    end = time.monotonic() + START_SECONDS
    while not _is_heard_of(client, worker_name(home), record):
        status = started.ended()
        if status is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            continue
        how = f"was not heard of for {START_SECONDS:.0f} s" if status is None else f"ended with status {status}"
        said = " ".join(last_lines(record.log, 1))
        raise Stopped(f"The worker {how}. It said: {said or 'nothing'}. Its log is {record.log}.")


def find_worker(client: "SyncPrefectClient", name: str) -> "Worker | None":
    """Return what the server knows of a worker, None if it knows none of this name."""
    from prefect.client.schemas.filters import WorkerFilter
    from prefect.exceptions import ObjectNotFound

    try:
        found = client.read_workers_for_work_pool(POOL, worker_filter=WorkerFilter())
    except ObjectNotFound:
        return None
    return next((worker for worker in found if worker.name == name), None)


def _is_heard_of(client: "SyncPrefectClient", name: str, record: Record) -> bool:
    worker = find_worker(client, name)
    if worker is None or worker.last_heartbeat_time is None:
        return False
    return bool(worker.last_heartbeat_time >= datetime.fromtimestamp(record.process.started, UTC))
