"""Trainings that were paused in Prefect's pages: they end their process, and wait to be resumed there."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.logging import get_logger

from flows.server_presence import require_server
from flows.tags import SUSPENDED_EVENT, run_tag

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

logger = get_logger(__name__)


def tell_suspended() -> None:
    """Tell the server that this process ends since its flow run is suspended.

    Else heartbeats that came after the suspension, and then stop, would look like those of a process that has vanished.
    """
    if runtime.deployment.id is None:
        return
    emit_event(
        SUSPENDED_EVENT,
        resource={"prefect.resource.id": f"prefect.flow-run.{runtime.flow_run.id}"},
        related=[
            {
                "prefect.resource.id": f"prefect.deployment.{runtime.deployment.id}",
                "prefect.resource.role": "deployment",
            }
        ],
    )


def suspension_of(run: str) -> str | None:
    """Return, as a sentence, that the training of a run was suspended; None if not."""
    if runtime.deployment.id is None:
        return None
    trained = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[UUID(runtime.deployment.id)]),
        tags=FlowRunFilterTags(all_=[run_tag(run)]),
    )
    try:
        require_server()
        with get_client(sync_client=True) as client:
            last = client.read_flow_runs(flow_run_filter=trained, sort=FlowRunSort.START_TIME_DESC, limit=1)
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("Whether run %s is suspended cannot be told: %s: %s", run, type(error).__name__, error)
        return None
    return next((_sentence(found.name, found.state) for found in last if found.state is not None), None)


def _sentence(flow_run: str, state: "State[Any]") -> str | None:
    if not state.is_paused():
        return None
    end = state.state_details.pause_timeout
    until = "" if end is None else f" until {end:%d %b %H:%M} UTC"
    return f"Flow run {flow_run} is suspended{until}: resume or cancel it in its page."
