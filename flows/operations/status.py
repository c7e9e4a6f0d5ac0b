"""What runs here, and how far it is."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from eigen_core.config.sections import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError
from flows.operations.deploying import client_of, resume_schedule
from flows.operations.environment import ui_of
from flows.operations.flow_runs import (
    given_store_of,
    last_flow_run,
    next_flow_run,
    running_flow_run,
    suspended_flow_run,
    trained_run,
    waiting_flow_run,
)
from flows.operations.health import answers, version
from flows.operations.home import Home, Record
from flows.operations.launching import page_of, run_page_of
from flows.operations.server import configured_api
from flows.operations.stores import store_here
from flows.operations.worker import find_worker, worker_name

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

    from flows.runs import RunStatus


@dataclass(frozen=True)
class ServerStatus:
    """The server.

    Attributes:
        api: URL of its API.
        answers: whether it says that it is well.
        version: of Prefect; None if it does not answer.
        record: its process, if `eigen up` has started it here and it has not ended.
    """

    api: str
    answers: bool
    version: str | None
    record: Record | None

    @property
    def ui(self) -> str:
        """Address of the pages."""
        return ui_of(self.api)


@dataclass(frozen=True)
class WorkerStatus:
    """The worker of this folder.

    Attributes:
        name: what the server calls it.
        record: its process; None if it does not run.
        heard_of: when the server has heard of it last; None if it never has, or cannot be asked.
    """

    name: str
    record: Record | None
    heard_of: datetime | None


@dataclass(frozen=True)
class FlowRunStatus:
    """A flow run.

    Attributes:
        id, name: in Prefect.
        run: the run that it trains, if that is known.
        store: the store that it was given; None: the default.
        state: the name of its state, such as Running or AlreadyFinished.
        message: what the state says, if it says anything.
        since: when it is in that state.
        active: it trains, or is about to.
        waiting: it waits for a worker.
        suspended: it waits to be resumed, or cancelled, in its page.
        page: address of its page.
    """

    id: str
    name: str
    run: str | None
    store: str | None
    state: str
    message: str | None
    since: datetime
    active: bool
    suspended: bool
    page: str
    waiting: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is to come."""
        return not (self.active or self.waiting or self.suspended)


@dataclass(frozen=True)
class ScheduleStatus:
    """The schedule that resumes.

    Attributes:
        active: whether it is switched on.
        next: when it, or a user, has asked for the next flow run.
    """

    active: bool
    next: datetime | None


@dataclass(frozen=True)
class Status:
    """All of it. What is not known is None.

    Attributes:
        server: None if there is none: `eigen up` has started none here and PREFECT_API_URL names none.
        worker: the worker.
        flow_run: the one that trains, else the one that waits for a worker, else the one that is suspended, else the
            one that has ended last.
        schedule: the schedule that resumes.
        run: the run that the flow run trains, as its store knows it; None if it is yet to be begun.
        run_problem: why that is not known, as a sentence.
        supervisor: what restarts server and worker, None if none was started here.
        run_page: address of the page of the run that the flow run trains.
    """

    server: ServerStatus | None
    worker: WorkerStatus
    flow_run: FlowRunStatus | None
    schedule: ScheduleStatus | None
    run: "RunStatus | None"
    run_problem: str | None
    supervisor: Record | None = None
    run_page: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether the server answers, the worker runs, and what restarts them has not ended."""
        supervised = self.supervisor is None or self.supervisor.process.is_alive()
        return self.server is not None and self.server.answers and self.worker.record is not None and supervised


def status_here(home: Home) -> Status:
    """Return what runs here, and how far it is.

    Raises:
        InputError: what `eigen up` has noted cannot be read.
    """
    server = _server(home)
    worker = home.running("worker")
    supervisor = home.read("supervisor")
    name = worker_name(home)
    if server is None or not server.answers:
        run, problem = _run(worker, None)
        return Status(server, WorkerStatus(name, worker, None), None, None, run, problem, supervisor)
    with client_of(server.api) as client:
        known = find_worker(client, name)
        flow_run = _flow_run(client, server.api)
        schedule = _schedule(client)
        known_run = None if flow_run is None else flow_run.run
        run_page = None if known_run is None else run_page_of(client, server.api, known_run)
    heard_of = None if known is None else known.last_heartbeat_time
    run, problem = _run(worker, flow_run)
    return Status(server, WorkerStatus(name, worker, heard_of), flow_run, schedule, run, problem, supervisor, run_page)


def _server(home: Home) -> ServerStatus | None:
    record = home.running("server")
    given = configured_api(os.environ)
    worker = home.running("worker")
    api = given or (record.api if record else None) or (worker.api if worker else None)
    if api is None:
        return None
    well = answers(api)
    return ServerStatus(api, well, version(api) if well else None, record if record and record.api == api else None)


def _flow_run(client: "SyncPrefectClient", api: str) -> FlowRunStatus | None:
    active = running_flow_run(client)
    waiting = None if active is not None else waiting_flow_run(client)
    found: FlowRun | None = active or waiting or suspended_flow_run(client) or last_flow_run(client)
    if found is None or found.state is None:
        return None
    return FlowRunStatus(
        id=str(found.id),
        name=found.name,
        run=trained_run(found),
        store=given_store_of(found),
        state=found.state.name or str(found.state.type.value),
        message=found.state.message or None,
        since=found.state.timestamp.astimezone(UTC),
        active=active is not None,
        suspended=found.state.is_paused(),
        page=page_of(api, str(found.id)),
        waiting=waiting is not None,
    )


def _schedule(client: "SyncPrefectClient") -> ScheduleStatus | None:
    try:
        schedule = resume_schedule(client)
    except InputError:
        return None
    if schedule is None:
        return None
    due = next_flow_run(client)
    return ScheduleStatus(schedule.active, None if due is None else due.next_scheduled_start_time)


def last_trained(home: Home, worker: Record | None) -> "RunStatus | None":
    """Return the run that was trained last in the store of a worker, None if that is not known."""
    return _run(worker or home.read("worker"), None)[0]


def _run(worker: Record | None, flow_run: FlowRunStatus | None) -> "tuple[RunStatus | None, str | None]":
    """Return the run that a flow run trains, else the one that was trained last; or why that is not known.

    One that is yet to be begun is none: another run of the store says nothing about it.
    """
    from flows.runs import run_exists, status_of

    try:
        store = store_here(worker, None if flow_run is None else flow_run.store)
        name = None if flow_run is None else flow_run.run
        if name is None or not run_exists(CheckpointConfig(store=store), name):
            name = newest_run(store) if flow_run is None or flow_run.has_ended or name is None else None
        return (None if name is None else status_of(store, name)), None
    except (InputError, StoreUnavailableError) as error:
        return None, str(error)


def newest_run(store: str) -> str | None:
    """Return the run of a store that was trained last, None if it has none.

    Raises:
        InputError: the store cannot be used.
        StoreUnavailableError: it does not answer.
    """
    from eigen_core.checkpoint import RunPlace
    from flows.runs import newest_generation, runs_in

    written = []
    for name in runs_in(store):
        newest = newest_generation(RunPlace.of(CheckpointConfig(store=store), name))
        written.append(("" if newest is None else newest[1].created, name))
    return max(written)[1] if written else None
