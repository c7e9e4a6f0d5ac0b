"""Status of the server, the worker, the flow run and the training run of this machine, as `eigen status` shows it."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PlainSerializer, field_serializer

from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.common.errors import InputError
from eigen_core.common.files import ForeignPlaceError
from eigen_core.config.model import CheckpointConfig
from eigen_core.runs.handle import Run, RunStatus, runs_in, status_of
from flows.server.prefect_settings import ui_of
from flows.server.servers import answers, configured_api
from flows.server.state_directory import ProcessRecord, StateDirectory, store_here

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

Moment = Annotated[
    datetime,
    PlainSerializer(lambda moment: f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", when_used="json-unless-none"),
]


class _Document(BaseModel):
    """A part of the JSON of `eigen status --json`, whose field names are a public interface. None means unknown."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True)


class ServerStatus(_Document):
    api: str
    ui: str
    """Address of Prefect's pages."""
    answers: bool
    version: str | None = None
    """Version of Prefect on the server."""
    pid: int | None = None
    """Process id; None unless `eigen up` started the server here."""
    log: Path | None = None


class WorkerStatus(_Document):
    name: str
    running: bool = False
    pid: int | None = None
    folder: Path | None = None
    log: Path | None = None
    heard_of: Moment | None = None
    """Time of the worker's last heartbeat that reached the server."""


class FlowRunStatus(_Document):
    id: str
    name: str
    run: str | None
    store: str | None = Field(default=None, exclude=True)
    """The store that `eigen launch` was given here for the run; None if it was not given one."""
    state: str
    """Name of the flow run's state in Prefect, such as Running or AlreadyFinished."""
    message: str | None = None
    since: Moment
    """Time of the last change of state."""
    active: bool = False
    """Whether the flow run trains, or is about to."""
    waiting: bool = False
    """Whether the flow run waits for a worker."""
    suspended: bool = False
    """Whether the flow run was suspended, so that a user can resume or cancel it in its page."""
    page: str

    @property
    def has_ended(self) -> bool:
        return not (self.active or self.waiting or self.suspended)


class ScheduleStatus(_Document):
    """The schedule that resumes runs: whether it is on, and when the next scheduled flow run is due."""

    active: bool
    next: Moment | None


class Status(_Document):
    server: ServerStatus | None
    """None if no server is known: `eigen up` started none here, and neither PREFECT_API_URL nor a worker names one."""
    worker: WorkerStatus
    flow_run: FlowRunStatus | None = None
    """The flow run that trains, else one that waits for a worker, else a suspended one, else the last that ended."""
    schedule: ScheduleStatus | None = None
    run: InstanceOf[RunStatus] | None = None
    """The run of `flow_run`. If the store lacks it: None until `flow_run` ends, then the newest run of the store."""
    problem: str | None = None
    """If `run` is None because the store cannot be read: the reason."""
    run_page: str | None = Field(default=None, exclude=True)

    @property
    def up(self) -> bool:
        return self.server is not None and self.server.answers and self.worker.running

    def document(self) -> dict[str, Any]:
        return {"up": self.up, **self.model_dump(mode="json")}

    @field_serializer("run")
    def _run_document(self, run: RunStatus | None) -> dict[str, Any] | None:
        if run is None:
            return None
        return {
            "run": run.run,
            "state": run.state,
            "generation": run.generation,
            "generations": run.config.generations,
            "store": run.store,
            "folder": str(run.folder),
            "uploads": run.uploads and run.uploads.model_dump(mode="json"),
        }


def status_here(home: StateDirectory) -> Status:
    worker = home.running("worker")
    server = _server(home, worker)
    flow_run = schedule = run_page = heard_of = None
    if server is not None and server.answers:
        # Imported here because this takes seconds, in vain if no server answers.
        from prefect.exceptions import PrefectHTTPStatusError

        from flows.server.deployments import client_of, run_page_of
        from flows.server.flow_runs import last_heartbeat

        with client_of(server.api) as client:
            with suppress(PrefectHTTPStatusError):  # Prefect Cloud has no version
                server = server.model_copy(update={"version": client.api_version()})
            heard_of = last_heartbeat(client, home.worker_name)
            flow_run = _flow_run(client, server.api, home)
            schedule = _schedule(client)
            if flow_run is not None and flow_run.run is not None:
                run_page = run_page_of(client, server.api, flow_run.run)
    run, problem = _run(worker, flow_run)
    return Status(
        server=server,
        worker=WorkerStatus(
            name=home.worker_name,
            running=worker is not None,
            pid=worker and worker.process.pid,
            folder=worker and worker.folder,
            log=worker and worker.log,
            heard_of=heard_of,
        ),
        flow_run=flow_run,
        schedule=schedule,
        run=run,
        problem=problem,
        run_page=run_page,
    )


def _server(home: StateDirectory, worker: ProcessRecord | None) -> ServerStatus | None:
    record = home.running("server")
    api = configured_api(os.environ) or (record.api if record else None) or (worker.api if worker else None)
    if api is None:
        return None
    ours = record if record and record.api == api else None
    return ServerStatus(
        api=api, ui=ui_of(api), answers=answers(api), pid=ours and ours.process.pid, log=ours and ours.log
    )


def _flow_run(client: "SyncPrefectClient", api: str, home: StateDirectory) -> FlowRunStatus | None:
    from flows.server import flow_runs
    from flows.server.deployments import page_of

    active = flow_runs.running_flow_run(client)
    waiting = None if active is not None else flow_runs.waiting_flow_run(client)
    found = active or waiting or flow_runs.suspended_flow_run(client) or flow_runs.last_flow_run(client)
    if found is None or found.state is None:
        return None
    run = flow_runs.trained_run(found)
    return FlowRunStatus(
        id=str(found.id),
        name=found.name,
        run=run,
        store=None if run is None else home.launch_settings(run).get("checkpoint", {}).get("store"),
        state=found.state.name or str(found.state.type.value),
        message=found.state.message or None,
        since=found.state.timestamp,
        active=active is not None,
        waiting=waiting is not None,
        suspended=found.state.is_paused(),
        page=page_of(api, str(found.id)),
    )


def _schedule(client: "SyncPrefectClient") -> ScheduleStatus | None:
    from flows.server.deployments import resume_schedule
    from flows.server.flow_runs import next_flow_run

    with suppress(InputError):
        if (schedule := resume_schedule(client)) is not None:
            due = next_flow_run(client)
            return ScheduleStatus(active=schedule.active, next=due and due.next_scheduled_start_time)
    return None


def _run(worker: ProcessRecord | None, flow_run: FlowRunStatus | None) -> tuple[RunStatus | None, str | None]:
    """Return the run that a flow run names, None before it begins; if none is named or never began, the newest run.

    The second value is the message of an error, if the store cannot be read.
    """
    try:
        store = store_here(worker, None if flow_run is None else flow_run.store)
        name = None if flow_run is None else flow_run.run
        if name is None or not Run(CheckpointConfig(store=store), name).exists:
            name = newest_run(store) if flow_run is None or flow_run.has_ended or name is None else None
        return (None if name is None else status_of(store, name)), None
    except (InputError, StoreUnavailableError) as error:
        return None, str(error)


def newest_run(store: str) -> str | None:
    written = []
    for name in runs_in(store):
        # One folder with links must not hide the other runs.
        with suppress(ForeignPlaceError):
            newest = Run(CheckpointConfig(store=store), name).newest
            written.append(("" if newest is None else newest[1].created, name))
    return max(written)[1] if written else None
