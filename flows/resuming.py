"""What resumes unfinished runs: a schedule that is on while there is one, and users who resume a suspended flow run."""

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import runtime
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterCreatedBy,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.logging import get_logger

from flows.names import SCHEDULED_TAG
from flows.operations.flow_runs import trained_run
from flows.server_presence import require_server, server_asked, server_is_there

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, State
    from prefect.client.schemas.responses import DeploymentResponse

logger = get_logger(__name__)

RESUME = "resume"
"""Slug of the schedule."""

_PARAMETERS = {"resume": True}


def is_scheduled() -> bool:
    """Whether a schedule has created this flow run.

    Switching a schedule on in Prefect's pages removes its parameters, so that they do not show it.
    """
    return SCHEDULED_TAG in runtime.flow_run.tags


def own_deployment() -> UUID | None:
    """Return the deployment of this flow run, or of the one that began it; the server is asked once if it has none."""
    flow_run = runtime.flow_run.id
    found = runtime.deployment.id if flow_run is None else _deployment_of(flow_run)
    return None if found is None else UUID(found)


@cache
def _deployment_of(flow_run: str) -> str | None:  # noqa: ARG001 - the key: Prefect itself asks each time
    found: str | None = runtime.deployment.id
    return found


def switch_schedule(active: bool) -> None:
    """Switch the schedule of this flow run's deployment on or off; without a deployment there is nothing to switch."""
    deployment = own_deployment()
    if deployment is not None:
        _switch(deployment, active)


def remove_needless_resumes() -> None:
    """Remove the flow runs that are to resume a run and have not begun, since this flow run trains.

    The schedule creates 144 of them a day, and the trigger more than one a crash if the server's database is busy: its
    events come at least once. Those left would go on with another run of the store, or with this one after it was
    cancelled.
    """
    deployment = own_deployment()
    if deployment is None or not server_is_there():
        return
    with server_asked("Flow runs that never began are still listed", logger) as client:
        for due in _due(deployment):
            for waiting in client.read_flow_runs(flow_run_filter=due):
                if waiting.run_count == 0 and not waiting.parameters.get("run"):
                    client.delete_flow_run(waiting.id)


def stop_resuming(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:  # noqa: ARG001 - what Prefect calls a hook with
    """Switch the schedule off after a cancellation, and keep with the run that nothing but its name continues it."""
    if flow_run.deployment_id is not None:
        _switch(flow_run.deployment_id, False)
    run = trained_run(flow_run)
    if run is not None:
        # It loads torch, which a server's pages need not wait for.
        from flows.choosing import keep_stop

        keep_stop(run)


def schedule_of(found: "DeploymentResponse") -> "DeploymentSchedule | None":
    """Return the schedule of a deployment that resumes, None if it has none."""
    return next((schedule for schedule in found.schedules if schedule.slug == RESUME), None)


def set_schedule(client: "SyncPrefectClient", found: "DeploymentResponse", active: bool) -> bool:
    """Switch the schedule of a deployment on or off, and return whether it has one."""
    schedule = schedule_of(found)
    if schedule is not None and (schedule.active, schedule.parameters) != (active, _PARAMETERS):
        # A change that does not name the parameters removes them.
        client.update_deployment_schedule(found.id, schedule.id, active=active, parameters=_PARAMETERS)
    return schedule is not None


def _switch(deployment_id: UUID, active: bool) -> None:
    failure = f"The schedule '{RESUME}' could not be switched {'on' if active else 'off'}"
    with server_asked(failure, logger) as client:
        require_server()
        set_schedule(client, client.read_deployment(deployment_id), active)


def _due(deployment_id: UUID) -> list[FlowRunFilter]:
    """Return filters for the flow runs of a deployment that the schedule or the trigger has created.

    They are due, and wait or are cancelled. The number of its processes shows whether one has ever begun: the server
    sets the times of all that end.
    """
    due = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.CANCELLED])),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
    )
    return [
        due.model_copy(update={"tags": FlowRunFilterTags(all_=[SCHEDULED_TAG])}),
        due.model_copy(update={"created_by": FlowRunFilterCreatedBy(type_=["AUTOMATION"])}),
    ]
