"""The schedule that goes on with unfinished runs: on while one is to be trained, off when there is none."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect import runtime
from prefect.client.orchestration import get_client
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
from prefect.exceptions import PrefectException
from prefect.logging import get_logger

from flows.server_presence import require_server, server_is_there
from flows.tags import SCHEDULED_TAG

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
    """Whether a schedule has asked for this flow run.

    Who switches a schedule on in Prefect's pages removes its parameters, so that they do not tell.
    """
    return SCHEDULED_TAG in runtime.flow_run.tags


def keep_resuming(active: bool) -> None:
    """Switch the schedule of this flow run's deployment on or off; without a deployment there is nothing to switch."""
    if runtime.deployment.id is not None:
        _switch(UUID(runtime.deployment.id), active)


def remove_needless_resumes() -> None:
    """Remove what asks for a resume in vain, since this flow run trains.

    The schedule does so 144 times a day, and the trigger more than once a crash if the server's database is busy: its
    events come at least once. What is left of that would go on with another run of the store, or with this one after
    it was cancelled.
    """
    if runtime.deployment.id is None or not server_is_there():
        return
    try:
        with get_client(sync_client=True) as client:
            for due in _due(UUID(runtime.deployment.id)):
                for asked in client.read_flow_runs(flow_run_filter=due):
                    if asked.run_count == 0 and not asked.parameters.get("run"):
                        client.delete_flow_run(asked.id)
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("Flow runs that never began are still listed: %s: %s", type(error).__name__, error)


def stop_resuming(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:  # noqa: ARG001 - what Prefect calls a hook with
    """Switch the schedule off after a cancellation: who cancels a training does not want it back in ten minutes."""
    if flow_run.deployment_id is not None:
        _switch(flow_run.deployment_id, False)


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
    try:
        require_server()
        with get_client(sync_client=True) as client:
            set_schedule(client, client.read_deployment(deployment_id), active)
    except (httpx.HTTPError, PrefectException) as error:
        # A training does not end because of its schedule.
        turned = "on" if active else "off"
        logger.warning(
            "The schedule '%s' could not be switched %s: %s: %s", RESUME, turned, type(error).__name__, error
        )


def _due(deployment_id: UUID) -> list[FlowRunFilter]:
    """Return what finds the flow runs of a deployment that the schedule or the trigger has asked for.

    Their time has come, and they wait or are cancelled. It is the number of its processes that tells whether one was
    ever begun: the server sets the times of all that end.
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
