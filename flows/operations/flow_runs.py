"""The flow runs of the deployment that trains, as the server knows them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flows.names import SCHEDULED_TAG, tagged_run
from flows.operations.environment import POOL

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, StateType
    from prefect.client.schemas.sorting import FlowRunSort

# More than any process takes to begin, and as long as the server keeps a slot for it.
_PENDING_SECONDS = 300.0


def running_flow_run(client: "SyncPrefectClient") -> "FlowRun | None":
    """Return the flow run that trains, or is about to; None if there is none."""
    from prefect.client.schemas.objects import StateType

    found = active_flow_runs(client)
    # A run that waits for its process comes after one that has it.
    begun = [run for run in found if run.state_type != StateType.PENDING]
    return next(iter([*begun, *(run for run in found if _is_beginning(run))]), None)


def active_flow_runs(client: "SyncPrefectClient") -> "list[FlowRun]":
    """Return the flow runs that have, or are about to have, a process, as far as the server knows."""
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    active = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING]
    return _flow_runs(client, active, FlowRunSort.START_TIME_DESC, 10)


def begun_by_hand(client: "SyncPrefectClient") -> "list[FlowRun]":
    """Return the flow runs of `eigen train` that this server takes for running."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterDeploymentId,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    return list(
        client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["train"])),
            flow_run_filter=FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(is_null_=True), state=running),
            limit=10,
        )
    )


def suspended_flow_run(client: "SyncPrefectClient") -> "FlowRun | None":
    """Return the flow run that was suspended last and waits to be resumed in its page, None if none does."""
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    found = _flow_runs(client, [StateType.PAUSED], FlowRunSort.START_TIME_DESC, 1)
    return found[0] if found else None


def last_flow_run(client: "SyncPrefectClient") -> "FlowRun | None":
    """Return the flow run that has ended last, None if none has."""
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    ended = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
    found = _flow_runs(client, ended, FlowRunSort.END_TIME_DESC, 1)
    return found[0] if found else None


def next_flow_run(client: "SyncPrefectClient") -> "FlowRun | None":
    """Return the flow run that is due next, None if there is none."""
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    found = _flow_runs(client, [StateType.SCHEDULED], FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC, 10)
    # No worker of ours takes what waits in the pool that an earlier version of Eigen has used.
    return next((run for run in found if run.work_pool_name == POOL), None)


def waiting_flow_run(client: "SyncPrefectClient") -> "FlowRun | None":
    """Return the flow run that is to train a run which was named for it, and waits for a worker; None if none does."""
    found = next_flow_run(client)
    due = None if found is None else found.next_scheduled_start_time
    if found is None or due is None or due > datetime.now(UTC):
        return None
    return found if trained_run(found) is not None else None


def trained_run(flow_run: "FlowRun") -> str | None:
    """Return the name of the run that a flow run trains, None if none was given and it has not chosen one yet."""
    given = flow_run.parameters.get("run")
    return tagged_run(flow_run.tags) or (given if isinstance(given, str) else None)


def is_choosing(flow_run: "FlowRun") -> bool:
    """Whether a flow run has yet to find out which run it goes on with, if any."""
    return trained_run(flow_run) is None and (bool(flow_run.parameters.get("resume")) or SCHEDULED_TAG in flow_run.tags)


def _is_beginning(pending: "FlowRun") -> bool:
    """Whether a flow run that is to begin will: not so if its worker has ended before its process was there."""
    if pending.state is None:
        return False
    return (datetime.now(UTC) - pending.state.timestamp).total_seconds() < _PENDING_SECONDS


def given_store_of(flow_run: "FlowRun") -> str | None:
    """Return the store that a flow run was given, None if it was given none."""
    found: object = flow_run.parameters.get("config")
    for key in ("checkpoint", "store"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _flow_runs(
    client: "SyncPrefectClient", states: "list[StateType]", sort: "FlowRunSort", limit: int
) -> "list[FlowRun]":
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterName,
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )

    from flows.operations.automations import DEPLOYMENT

    flow, deployment = DEPLOYMENT.split("/")
    return list(
        client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[deployment])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))),
            sort=sort,
            limit=limit,
        )
    )
