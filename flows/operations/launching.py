"""Starting a training on the worker."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eigen_core.config import Config
from eigen_core.errors import InputError
from flows.operations.deploying import client_of, find_deployment, resume_schedule, set_resuming
from flows.operations.environment import ui_of
from flows.operations.flow_runs import next_flow_run, running_flow_run, trained_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_SOON_SECONDS = 30.0


@dataclass(frozen=True)
class Launched:
    """A flow run that was created.

    Attributes:
        id: its number in Prefect.
        run: the run that it trains.
        page: address of its page.
    """

    id: str
    run: str
    page: str


def launch(api: str, values: Mapping[str, Any], run: str) -> Launched:
    """Let the worker train `run`, and have it resumed until it is finished.

    Args:
        api: of the server.
        values: the settings that were given, nested; the rest is the preset's.
        run: its name.

    Raises:
        InputError: there is no deployment, a training is under way, or the server refuses the settings.
    """
    with client_of(api) as client:
        deployment = find_deployment(client)
        active = running_flow_run(client)
        if active is not None:
            raise InputError(_occupied(active, api))
        flow_run = _create(client, deployment.id, {"config": dict(values), "run": run, "resume": False})
        set_resuming(client, True)
    return Launched(str(flow_run.id), run, page_of(api, str(flow_run.id)))


def resume(api: str, *, always: bool = True) -> str | None:
    """Have the newest unfinished run of the worker's store trained, now and until it is finished.

    Args:
        api: of the server.
        always: also if nothing was launched since the schedule that resumes was switched off.

    Returns the page of the flow run; None if one is under way or due already, or nothing is to be resumed.
    """
    with client_of(api) as client:
        if always:
            set_resuming(client, True)
        else:
            schedule = resume_schedule(client)
            if schedule is None or not schedule.active:
                return None
        if running_flow_run(client) is not None or _is_due(next_flow_run(client)):
            return None
        return page_of(api, str(_create(client, find_deployment(client).id, {"resume": True}).id))


def _is_due(flow_run: "FlowRun | None") -> bool:
    due = None if flow_run is None else flow_run.next_scheduled_start_time
    return due is not None and due.timestamp() - time.time() < _SOON_SECONDS


def require_same_run_here(config: Config, run: str) -> None:
    """Refuse to go on with a run that was begun with other settings, or that a process trains.

    Raises:
        InputError: it is so.
    """
    from eigen_core.checkpoint import RunPlace
    from flows.runs import require_same_run, run_exists, status_of

    if run_exists(config.checkpoint, run):
        require_same_run(RunPlace.of(config.checkpoint, run), config)
        if status_of(config.checkpoint.store, run).state == "running":
            raise InputError(f"Run '{run}' is being trained by another process: wait until it ends, or stop it.")


def page_of(api: str, flow_run_id: str) -> str:
    """Return the address of a flow run's page."""
    return f"{ui_of(api)}/runs/flow-run/{flow_run_id}"


def _create(client: "SyncPrefectClient", deployment_id: Any, parameters: dict[str, Any]) -> "FlowRun":  # noqa: ANN401 - Prefect's own type takes seconds to import
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        return client.create_flow_run_from_deployment(deployment_id, parameters=parameters)
    except PrefectHTTPStatusError as error:
        detail = error.response.json().get("detail", error.response.text) if error.response.content else str(error)
        raise InputError(
            f"The server refuses the run: {detail} If Eigen was updated since, `eigen deploy` tells the server."
        ) from error


def _occupied(active: "FlowRun", api: str) -> str:
    run = trained_run(active)
    what = f"Run '{run}'" if run else "A run"
    return (
        f"{what} is being trained (flow run {active.name}, {page_of(api, str(active.id))}), and one at a time is: wait "
        f"until it has ended, or cancel it there or with `prefect flow-run cancel {active.id}`."
    )
