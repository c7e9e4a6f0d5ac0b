"""The flow runs of the deployment that trains, and their worker, as the server knows them."""

from datetime import UTC, datetime
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkerFilter,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from flows.names import SCHEDULED_TAG, tagged_run
from flows.operations.environment import DEPLOYMENT, POOL
from flows.operations.home import ProcessRecord
from flows.operations.processes import this_machine

# More than any process takes to begin, and as long as the server keeps a slot for it.
_PENDING_SECONDS = 300.0
_WORKER_LABEL = "prefect.worker.name"
_VARIABLE = "PREFECT__FLOW_RUN_ID"
_ENGINE = "prefect.engine"
_FLOW, _DEPLOYMENT = DEPLOYMENT.split("/")
TRAININGS = FlowFilter(name=FlowFilterName(any_=[_FLOW]))


def running_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that trains, or is about to; None if there is none."""
    found = active_flow_runs(client)
    # A run that waits for its process comes after one that has it.
    begun = [run for run in found if run.state_type != StateType.PENDING]
    return next(iter([*begun, *(run for run in found if is_beginning(run))]), None)


def active_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Return the flow runs that have, or are about to have, a process, as far as the server knows."""
    return _flow_runs(client, StateType.RUNNING, StateType.CANCELLING, StateType.PENDING)


def begun_by_hand(client: SyncPrefectClient) -> list[FlowRun]:
    """Return the flow runs of `eigen train` that this server takes for running."""
    without_deployment = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(is_null_=True), state=_in_state(StateType.RUNNING)
    )
    return list(client.read_flow_runs(flow_filter=TRAININGS, flow_run_filter=without_deployment, limit=10))


def suspended_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that was suspended last and waits to be resumed in its page, None if none does."""
    return next(iter(_flow_runs(client, StateType.PAUSED)), None)


def last_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that has ended last, None if none has."""
    ended = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
    return next(iter(_flow_runs(client, *ended, sort=FlowRunSort.END_TIME_DESC)), None)


def next_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that is due next, None if there is none."""
    found = _flow_runs(client, StateType.SCHEDULED, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC)
    # No worker of ours takes what waits in the pool that an earlier version of Eigen has used.
    return next((run for run in found if run.work_pool_name == POOL), None)


def waiting_flow_run(client: SyncPrefectClient) -> FlowRun | None:
    """Return the flow run that is to train a run which was named for it, and waits for a worker; None if none does."""
    found = next_flow_run(client)
    due = None if found is None else found.next_scheduled_start_time
    if found is None or due is None or due > datetime.now(UTC):
        return None
    return found if trained_run(found) is not None else None


def trained_run(flow_run: FlowRun) -> str | None:
    """Return the name of the run that a flow run trains, None if none was given and it has not chosen one yet."""
    given = flow_run.parameters.get("run")
    return tagged_run(flow_run.tags) or (given if isinstance(given, str) else None)


def is_choosing(flow_run: FlowRun) -> bool:
    """Whether a flow run has yet to find out which run it goes on with, if any."""
    return trained_run(flow_run) is None and (bool(flow_run.parameters.get("resume")) or SCHEDULED_TAG in flow_run.tags)


def last_heartbeat(client: SyncPrefectClient, worker: str) -> datetime | None:
    """Return when the server heard of the worker of this name last, None if it never has."""
    try:
        found = client.read_workers_for_work_pool(POOL, worker_filter=WorkerFilter())
    except ObjectNotFound:
        return None
    return next((known.last_heartbeat_time for known in found if known.name == worker), None)


def report_lost(client: SyncPrefectClient, worker: ProcessRecord | None, name: str) -> list[FlowRun]:
    """Report to the server the flow runs of a worker that has ended which have no process any more, and return them.

    They were killed together with it. Prefect itself would not know until their heartbeats have been missed for a
    while. Not reported are flow runs that may have a process which cannot be seen: on another machine, in another
    container, or under another worker.

    Args:
        client: of the server.
        worker: the record of the worker that has ended, None if there is none.
        name: what the server calls it.
    """
    if worker is None or worker.process.is_alive() or worker.machine is None or worker.machine != this_machine():
        return []
    theirs = [found for found in active_flow_runs(client) if found.labels.get(_WORKER_LABEL) == name]
    lost = [found for found in theirs if not has_process(found.id)]
    for found in lost:
        ended = Cancelled if found.state_type == StateType.CANCELLING else Crashed
        client.set_flow_run_state(found.id, ended(message="Its process was killed together with its worker."))
    return lost


def has_process(flow_run_id: UUID) -> bool:
    """Whether a process of this machine works for a flow run; one of which that is not known is taken to."""
    return any(_may_work_for(process, str(flow_run_id)) for process in psutil.process_iter())


def _may_work_for(process: psutil.Process, flow_run_id: str) -> bool:
    try:
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        try:
            return process.environ().get(_VARIABLE) == flow_run_id
        except psutil.AccessDenied:
            # Another user's process, whose environment is hidden.
            return _ENGINE in process.cmdline()
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def is_beginning(pending: FlowRun) -> bool:
    """Whether a flow run that is to begin will: not so if its worker has ended before its process was there."""
    if pending.state is None:
        return False
    return (datetime.now(UTC) - pending.state.timestamp).total_seconds() < _PENDING_SECONDS


def _in_state(*types: StateType) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))


def _flow_runs(
    client: SyncPrefectClient, *types: StateType, sort: FlowRunSort = FlowRunSort.START_TIME_DESC
) -> list[FlowRun]:
    """Return the first flow runs of the deployment, by `sort`, in states of these types."""
    return list(
        client.read_flow_runs(
            flow_filter=TRAININGS,
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[_DEPLOYMENT])),
            flow_run_filter=FlowRunFilter(state=_in_state(*types)),
            sort=sort,
            limit=10,
        )
    )
