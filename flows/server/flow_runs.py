"""The flow runs (Prefect's records of attempts to train a run) of deployment `train/gpu`, their worker and logs."""

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

import psutil
from prefect import Flow, runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter, LogFilter, WorkerFilter
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, Log, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger, get_run_logger
from prefect.states import Cancelled, Crashed, Running

from eigen_core.checkpoint.store import StoreUnavailableError, default_run_name
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry
from eigen_core.config import Config
from eigen_core.runs.handle import Run
from eigen_core.runs.listener import Listener, Training
from flows.server.artifacts import Reporter, client_or_warning, require_server, server_is_there
from flows.server.prefect_internals import CANCELLED_BY_LIMIT
from flows.server.state_directory import ProcessRecord, StateDirectory, as_worker_sees, of_this_machine, wait_until

T = TypeVar("T")

POOL = "eigen-gpu"
"""Name of the work pool from which Eigen's worker takes flow runs."""
DEPLOYMENT = "train/gpu"
"""Flow and name of the deployment whose flow runs train."""

# Names of the states in which a flow run of this deployment may end, besides Prefect's own.
FINISHED_NAME = "AlreadyFinished"
RUNNING_NAME = "AlreadyRunning"
NOTHING_NAME = "NothingToDo"
SUSPENDED_NAME = "StillSuspended"
GUARD_NAME = "MemoryGuard"
PLAN_NAME = "MemoryPlan"
BLOCKED_NAME = "Blocked"

SCHEDULED_TAG = "auto-scheduled"
"""Tag that Prefect gives to flow runs that a schedule creates; this deployment's only schedule resumes runs."""

SUSPENDED_EVENT = "eigen.flow-run.suspended"
"""Name of the event that the process of a flow run emits before it ends because the flow run was suspended."""


def run_tag(run: str) -> str:
    return f"run:{run}"


def tagged_run(tags: Iterable[str]) -> str | None:
    """Return the run that a flow run with these tags trains; None if no tag names one."""
    return next((tag.removeprefix("run:") for tag in tags if tag.startswith("run:")), None)


# Longer than any process takes to start, and as long as the server leases a concurrency slot to it.
_PENDING_SECONDS = 300.0
_FLOW, _DEPLOYMENT = DEPLOYMENT.split("/")
_TRAININGS = FlowFilter.model_validate({"name": {"any_": [_FLOW]}})
_ACTIVE = (StateType.RUNNING, StateType.CANCELLING, StateType.PENDING)


def running_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that is running or being cancelled, else one whose process is about to start, else None."""
    found = _flow_runs(client, *_ACTIVE)
    begun = [run for run in found if run.state_type != StateType.PENDING]
    return next(iter([*begun, *(run for run in found if may_start(run))]), None)


def suspended_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that was suspended last, and that a user may resume in its page; None if there is none."""
    return next(iter(_flow_runs(client, StateType.PAUSED)), None)


def last_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    ended = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
    return next(iter(_flow_runs(client, *ended, sort=FlowRunSort.END_TIME_DESC)), None)


def next_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run in state Scheduled that is due first, perhaps overdue; None if there is none."""
    return next(iter(_flow_runs(client, StateType.SCHEDULED, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC)), None)


def waiting_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that is due, waits for a worker and names its run; None if there is none."""
    found = next_flow_run(client)
    due = None if found is None else found.next_scheduled_start_time
    if found is None or due is None or due > datetime.now(UTC):
        return None
    return found if trained_run(found) is not None else None


def trained_run(flow_run: FlowRun) -> str | None:
    """Return the name of the run that a flow run trains; None if neither its tags nor its parameters name it yet."""
    given = flow_run.parameters.get("run")
    return tagged_run(flow_run.tags) or (given if isinstance(given, str) else None)


def is_choosing(flow_run: FlowRun) -> bool:
    """Return whether a flow run still looks for a run to resume, since its parameters name none."""
    return trained_run(flow_run) is None and not _names_its_run(flow_run)


def last_heartbeat(client: SyncPrefectClient, worker: str) -> datetime | None:
    try:
        found = client.read_workers_for_work_pool(POOL, worker_filter=WorkerFilter())
    except ObjectNotFound:
        return None
    return next((known.last_heartbeat_time for known in found if known.name == worker), None)


def report_lost(client: SyncPrefectClient, home: StateDirectory) -> None:
    """Report to the server the flow runs whose process was killed together with the worker of `home`.

    Their new state is Cancelled if they were being cancelled, else Crashed. Prefect itself would notice only when their
    heartbeats are missed. Flow runs of other workers are not reported, nor any while the worker of `home` is alive.
    """
    worker = home.read("worker")
    if worker is None or not worker.process.has_ended():
        return
    for found in _without_process(client, home.worker_name):
        ended = Cancelled if found.state_type == StateType.CANCELLING else Crashed
        client.set_flow_run_state(found.id, ended(message="Its process was killed together with its worker."))
        if ended is Cancelled:
            # The server has recorded the cancellation, even if the run's store is unavailable.
            with suppress(InputError, StoreUnavailableError):
                _record_stop(found, home, worker)


def has_lost_process(client: SyncPrefectClient, worker: str) -> bool:
    """Return whether the server shows a flow run of the worker of this name as running though its process has ended."""
    return any(found.state_type == StateType.RUNNING for found in _without_process(client, worker))


def _without_process(client: SyncPrefectClient, worker: str) -> Iterator[FlowRun]:
    """Yield the active flow runs of the worker of this name that have no process on this machine, where it ran."""
    for found in _flow_runs(client, *_ACTIVE):
        if found.labels.get("prefect.worker.name") == worker and not _has_process(found.id):
            yield found


def _has_process(flow_run_id: UUID) -> bool:
    for process in psutil.process_iter():
        # The process may be ending, or another user's.
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == str(flow_run_id):
                return True
    return False


def may_start(pending: FlowRun) -> bool:
    """Return whether a flow run in state Pending may still start: after 300 s in it, its worker must have ended."""
    if pending.state is None:
        return False
    return (datetime.now(UTC) - pending.state.timestamp).total_seconds() < _PENDING_SECONDS


def _filter(*types: StateType, **conditions: object) -> FlowRunFilter:
    state = {"state": {"type": {"any_": types}}} if types else {}
    return FlowRunFilter.model_validate({**conditions, **state})


def _flow_runs(
    client: SyncPrefectClient, *types: StateType, sort: FlowRunSort = FlowRunSort.START_TIME_DESC
) -> list[FlowRun]:
    """Return the first ten flow runs of the deployment, by `sort`, whose states have one of `types`."""
    ours = DeploymentFilter.model_validate({"name": {"any_": [_DEPLOYMENT]}})
    return client.read_flow_runs(
        flow_filter=_TRAININGS, deployment_filter=ours, flow_run_filter=_filter(*types), sort=sort, limit=10
    )


# Logs reach the server in batches, from several processes: an older line may come after a newer one.
_LATE = timedelta(minutes=1)
_PAGE = 200


class RunLogs:
    """The logs that the server has of all flow runs of run `run`, on the worker and by `eigen train`."""

    def __init__(self, client: SyncPrefectClient, run: str) -> None:
        self._client = client
        # A flow run that ended before its start has no tag, but `eigen launch` named it after the run.
        either = {"operator": "or_", "tags": {"all_": [run_tag(run)]}, "name": {"any_": [run]}}
        of_run = FlowRunFilter.model_validate(either)
        self._flow_runs = partial(client.read_flow_runs, flow_filter=_TRAININGS, flow_run_filter=of_run)
        self._seen: dict[UUID, datetime] = {}

    def new_lines(self) -> Iterator[tuple[FlowRun, Log]]:
        """Yield the log lines that the last call did not yield, oldest first, each with its flow run."""
        flow_runs = {found.id: found for found in _all(self._flow_runs)}
        since = max(self._seen.values(), default=None)
        after = None if since is None else since - _LATE
        self._seen = {number: moment for number, moment in self._seen.items() if after is None or moment > after}
        conditions = {"flow_run_id": {"any_": list(flow_runs)}, "timestamp": after and {"after_": after}}
        wanted = LogFilter.model_validate(conditions)
        for log in _all(partial(self._client.read_logs, wanted)) if flow_runs else ():
            if log.id not in self._seen and log.flow_run_id is not None:
                self._seen[log.id] = log.timestamp
                yield flow_runs[log.flow_run_id], log


def _all(read: Callable[..., Sequence[T]]) -> Iterator[T]:
    """Yield all results of a request, which the server returns in pages."""
    offset = 0
    while page := read(limit=_PAGE, offset=offset):
        yield from page
        offset += len(page)
        if len(page) < _PAGE:
            break


BEGUN_LABEL = "eigen.begun"
"""Label of a flow run that has written its run's configuration to the store; its value is the time (s since 1970)."""

GENERATION_LABEL = "eigen.generation"
"""Label of a flow run: the newest generation of its run that is on disk."""

_MOST_FLOW_RUNS = 1_000


@dataclass(frozen=True)
class TrainingRequest:
    """A user's request to train run `run`, and the run's last flow run."""

    run: str
    flow_run: FlowRun
    parameters: Mapping[str, Any] | None
    """Parameters of the flow run by which a user requested the run; None if that one is not among the newest 1,000."""
    begun: bool
    """Whether a flow run since that request has written the run's configuration to its store."""
    stopped: str | None
    """If the run was cancelled or suspended: a sentence that says so, and how to continue it; otherwise None."""

    @property
    def is_suspended(self) -> bool:
        return self.flow_run.state is not None and self.flow_run.state.is_paused()

    @property
    def waits(self) -> bool:
        return self.flow_run.state_type == StateType.SCHEDULED or (
            self.flow_run.state_type == StateType.PENDING and may_start(self.flow_run)
        )

    @property
    def is_complete(self) -> bool:
        return self.flow_run.state_type == StateType.COMPLETED and self.flow_run.state_name != RUNNING_NAME


def _own_flow_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def is_automatic() -> bool:
    """Return whether the schedule or an automation, rather than a user, has created this flow run."""
    flow_run = _own_flow_run()
    created_by = None if flow_run is None else flow_run.created_by
    return is_scheduled() or (created_by is not None and created_by.type == "AUTOMATION")


def own_run_name(config: Config) -> str:
    """Return the name of the new run that this flow run begins: the same at each retry."""
    flow_run = _own_flow_run()
    return default_run_name(config.preset, None if flow_run is None else flow_run.created)


def last_request(run: str | None = None) -> TrainingRequest | None:
    """Return the last request to this flow run's deployment to train `run` (None: any run); None if there is none.

    This flow run counts too, if it names its run. A flow run that still looks for a run to resume is no request, nor is
    one that the server cancelled because another one trained. Only the deployment's newest 1,000 flow runs are read.
    """
    deployment = own_deployment()
    if deployment is None:
        return None
    with get_client(sync_client=True) as client:
        known = sorted(_requests(client, deployment), key=_moment, reverse=True)
        last = next((found for found in known if run is None or _run_of(found) == run), None)
        if last is None:
            return None
        name = _run_of(last)
        of_run = [found for found in known if _run_of(found) == name]
        asked = next((place for place, found in enumerate(of_run) if _names_its_run(found)), None)
        since = of_run if asked is None else of_run[: asked + 1]
        return TrainingRequest(
            run=name,
            flow_run=last,
            parameters=None if asked is None else of_run[asked].parameters,
            begun=any(BEGUN_LABEL in found.labels for found in since),
            stopped=_stopped(client, last, name),
        )


def _requests(client: SyncPrefectClient, deployment: UUID) -> Iterator[FlowRun]:
    newest_first = FlowRunSort.EXPECTED_START_TIME_DESC
    found = _all(partial(client.read_flow_runs, flow_run_filter=_due(deployment), sort=newest_first))
    return filter(_is_request, islice(found, _MOST_FLOW_RUNS))


def _due(deployment: UUID, *types: StateType) -> FlowRunFilter:
    return _filter(*types, deployment_id={"any_": [deployment]}, expected_start_time={"before_": datetime.now(UTC)})


def _is_request(flow_run: FlowRun) -> bool:
    state = flow_run.state
    if state is None or not (_names_its_run(flow_run) or tagged_run(flow_run.tags)):
        return False
    return not (state.is_cancelled() and str(state.message or "").startswith(CANCELLED_BY_LIMIT))


def _names_its_run(flow_run: FlowRun) -> bool:
    """Return whether a flow run was created for a named or a new run, not to resume the run that was requested last."""
    parameters = flow_run.parameters
    return bool(parameters.get("run")) or not (parameters.get("resume") or SCHEDULED_TAG in flow_run.tags)


def _run_of(flow_run: FlowRun) -> str:
    if named := trained_run(flow_run):
        return named
    config = flow_run.parameters.get("config")
    preset = config.get("preset") if isinstance(config, dict) else None
    return default_run_name(preset if isinstance(preset, str) else Config().preset, flow_run.created)


def _moment(flow_run: FlowRun) -> float:
    """Return the later of the times at which a flow run was due and its run was in the store (seconds since 1970)."""
    due = 0.0 if flow_run.expected_start_time is None else flow_run.expected_start_time.timestamp()
    begun = flow_run.labels.get(BEGUN_LABEL)
    return max(due, float(begun)) if isinstance(begun, int | float) else due


def _stopped(client: SyncPrefectClient, flow_run: FlowRun, run: str) -> str | None:
    state = flow_run.state
    assert state is not None
    go_on = f"`eigen launch --run {shlex.quote(run)}` continues it."
    if state.is_paused():
        return f"Flow run {flow_run.name} is suspended: resume it in its page. Or: {go_on}"
    if state.is_cancelled() or state.is_cancelling():
        return f"Run '{run}' was cancelled: {go_on}"
    if state.is_failed():
        before = sorted(client.read_flow_run_states(flow_run.id), key=lambda found: found.timestamp)[:-1]
        if before and before[-1].is_paused():
            return f"Run '{run}' was suspended, and not resumed in its page in time: {go_on}"
    return None


def own_deployment() -> UUID | None:
    """Return the id of this flow run's deployment; None outside a deployment. Only the first call asks the server."""
    flow_run = runtime.flow_run.id
    found = runtime.deployment.id if flow_run is None else _deployment_of(flow_run)
    return None if found is None else UUID(found)


@cache
def _deployment_of(flow_run: str) -> str | None:  # noqa: ARG001 - the key of the cache
    found: str | None = runtime.deployment.id
    return found


logger = get_logger(__name__)

RESUME = "resume"
"""Slug (the key that Prefect uses) of the schedule that resumes runs."""

_PARAMETERS = {"resume": True}


def is_scheduled() -> bool:
    """Return whether a schedule has created this flow run."""
    # The parameters do not show it: they are deleted when a user switches the schedule on in Prefect's pages.
    return SCHEDULED_TAG in runtime.flow_run.tags


def switch_schedule(active: bool, deployment: UUID | None = None) -> None:
    """Switch the schedule that resumes runs on or off, if `deployment` (None: that of this flow run) has one."""
    deployment = own_deployment() if deployment is None else deployment
    if deployment is not None:
        with client_or_warning(f"Schedule '{RESUME}' was not switched {'on' if active else 'off'}", logger) as client:
            require_server()
            set_schedule(client, client.read_deployment(deployment), active)


def remove_needless_resumes() -> None:
    """Delete flow runs that are due to resume a run and have not started: they are needless while this one trains.

    The schedule creates 144 of them a day, and the automation may create several after a crash. They would resume
    another run of the store, or the run of this flow run after a user has cancelled it.
    """
    deployment = own_deployment()
    if deployment is None or not server_is_there():
        return
    with client_or_warning("Flow runs that wait to resume another run were not deleted", logger) as client:
        due = _due(deployment, StateType.SCHEDULED, StateType.CANCELLED)
        for waiting in client.read_flow_runs(flow_run_filter=due, sort=FlowRunSort.EXPECTED_START_TIME_DESC):
            # Only `run_count` shows whether it ever started: Prefect also sets a start time when a flow run ends.
            if waiting.run_count == 0 and not _names_its_run(waiting):
                client.delete_flow_run(waiting.id)


def stop_resuming(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001 - what Prefect calls a hook with
    """Prefect's hook after a cancellation: switch the schedule off, and record that only a user continues the run."""
    if flow_run.deployment_id is not None:
        switch_schedule(False, flow_run.deployment_id)
    _record_stop(flow_run, StateDirectory.of(os.environ))


def _record_stop(flow_run: FlowRun, home: StateDirectory, worker: ProcessRecord | None = None) -> None:
    """Record in the store of a flow run's run, if it names one, that a user has cancelled it.

    It is the store that `eigen launch` recorded in `home`, else that of `worker`, the ended worker of `home` (None:
    that of this process). Parameters of a flow run are untrusted: they never name a store to write to.
    """
    run = trained_run(flow_run)
    if run is None:
        return
    launched = home.launch_settings(run)
    if worker is None:
        config = of_this_machine(Config(), launched)
    else:
        config = as_worker_sees(Config.model_validate({"checkpoint": launched.get("checkpoint", {})}), worker)
    Run(config.checkpoint, run).stop()


def schedule_of(found: DeploymentResponse) -> DeploymentSchedule | None:
    """Return the schedule by which a deployment resumes runs, None if it has none."""
    return next((schedule for schedule in found.schedules if schedule.slug == RESUME), None)


def set_schedule(client: SyncPrefectClient, found: DeploymentResponse, active: bool) -> None:
    """Switch the schedule by which a deployment resumes runs, if it has one, on or off."""
    schedule = schedule_of(found)
    if schedule is not None and (schedule.active, schedule.parameters) != (active, _PARAMETERS):
        # An update without `parameters` would delete those of the schedule.
        client.update_deployment_schedule(found.id, schedule.id, active=active, parameters=_PARAMETERS)


# Longest time that a training waits at its end for an unavailable server.
_REPORT_SECONDS = 120.0
# Shortest time between two readings of this flow run's state from the server, at the ends of generations.
_LOOK_SECONDS = 5.0


def initial_name() -> str:
    """Return the first name of this flow run, made from its parameters.

    Schedules and automations cannot name their flow runs, and Prefect's own names are random words.
    """
    run = runtime.flow_run.parameters.get("run")
    return str(run) if run else "resume" if runtime.flow_run.parameters.get("resume") or is_scheduled() else "new run"


def name_flow_run(name: str, tags: Iterable[str] | None = None) -> None:
    """Rename this flow run on the server, and set its tags (None: keep them); log errors of the server."""
    if runtime.flow_run.id is not None:
        with client_or_warning("The flow run could not be named", get_run_logger()) as client:
            require_server()
            client.update_flow_run(runtime.flow_run.id, name=name, tags=None if tags is None else sorted(tags))


def _label_flow_run(labels: Mapping[str, float]) -> None:
    if runtime.flow_run.id is not None:
        with client_or_warning("The flow run could not be labelled", get_run_logger()) as client:
            require_server()
            client.update_flow_run_labels(UUID(runtime.flow_run.id), dict(labels))


class CancellationError(Exception):
    """A user has cancelled this flow run: its process has to end."""


class FlowRunListener(Listener):
    """Listener that puts a training's progress into the flow run's name, keeps it Running, switches the schedule on."""

    def __init__(self, config: Config, run: str, reporter: Reporter) -> None:
        self._config = config
        self._run = run
        self._reporter = reporter
        self._looked = time.monotonic()
        self._name = ""
        self.result = f"Run {run} is complete after generation {config.generations}."
        """Result of the run in sentences."""

    def chosen(self, generation: int) -> None:
        config, last = self._config, self._config.generations
        self._name = f"{self._run} gen {generation}-{last}" if generation <= last else f"{self._run} ({last} done)"
        tags = {*runtime.flow_run.tags, run_tag(self._run), f"preset:{config.preset}", f"device:{config.device}"}
        name_flow_run(self._name, tags)

    def prepared(self, training: Training) -> None:
        # The run's configuration is in its store by now.
        _label_flow_run({BEGUN_LABEL: time.time(), GENERATION_LABEL: training.state.generation})

    def begun(self, training: Training) -> None:  # noqa: ARG002
        switch_schedule(True)
        remove_needless_resumes()

    def checkpointed(self, training: Training) -> None:
        generation = training.state.generation
        self._reporter.report("name", lambda: name_flow_run(f"{self._name} ({generation} done)"))
        self._reporter.report("generation", lambda: _label_flow_run({GENERATION_LABEL: generation}))

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:  # noqa: ARG002
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._reporter.report("resumes", remove_needless_resumes)
            correct_state()
            self._looked = time.monotonic()

    def completed(self, training: Training, result: HoldoutResult | None) -> None:
        # Imported here because it needs pandas, which commands about flow runs do without.
        from eigen_core.reporting.health import learning_sentences
        from eigen_core.reporting.tables import champion_sentence, holdout_sentence

        held_out = [] if result is None else [holdout_sentence(result)]
        history = training.state.history
        self.result = " ".join([self.result, champion_sentence(history), *learning_sentences(history), *held_out])
        # A flow run that cannot report its end to the server would count as crashed.
        wait_until(server_is_there, _REPORT_SECONDS, every=1.0)
        remove_needless_resumes()
        correct_state()


def correct_state() -> None:
    """Set this flow run's state back to Running if the server set it to Crashed because heartbeats were lost.

    Raises:
        CancellationError: the flow run is in state Cancelling. If no worker is connected to the server, nothing else
            ends this process.
    """
    if runtime.flow_run.id is None or not server_is_there():
        return
    with client_or_warning("The server may still show this flow run as crashed", get_run_logger()) as client:
        found = client.read_flow_run(UUID(runtime.flow_run.id)).state
        if found is not None and found.is_crashed():
            get_run_logger().warning("Prefect marked this flow run as crashed (%s), but it trains.", found.message)
            client.set_flow_run_state(
                UUID(runtime.flow_run.id), Running(message="Its process still trains."), force=True
            )
        if found is not None and found.is_cancelling():
            raise CancellationError("It was cancelled.")


def report_suspension() -> None:
    """Emit the event that this process ends because of a suspension; without it, Prefect would mark it as crashed."""
    deployment = own_deployment()
    if deployment is None:
        return
    related = {"prefect.resource.id": f"prefect.deployment.{deployment}", "prefect.resource.role": "deployment"}
    flow_run_id = f"prefect.flow-run.{runtime.flow_run.id}"
    emit_event(SUSPENDED_EVENT, resource={"prefect.resource.id": flow_run_id}, related=[related])
