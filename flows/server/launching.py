"""Launches and resumes trainings on the worker, and enters the working directory of its flow runs."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactCollectionFilter
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from flows.server.deploying import client_of, find_deployment, require_schedule, resume_schedule, set_resuming
from flows.server.environment import FOLDER_VARIABLE, SCHEDULED_TAG, ui_of
from flows.server.flow_runs import (
    RESUME,
    has_lost_process,
    is_choosing,
    next_flow_run,
    running_flow_run,
    trained_run,
    waiting_flow_run,
)
from flows.server.state_directory import wait_until

# Prefect takes up to 20 s from the end of a cancelled process to its state Cancelled.
_ENDING_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 1.0

Say = Callable[[str], None]


def launch(api: str, values: Mapping[str, Any], run: str, say: Say, *, as_configured: bool = False) -> str:
    """Let the worker train `run`, have it resumed until it is finished, and return the page of its flow run.

    Wait for flow runs that are being cancelled, or only look for a run to resume; call `say` with a line about it.

    Args:
        values: settings of the run, nested; the preset gives the others.
        as_configured: the run exists and continues with its own settings; `values` only say where the data are.

    Raises:
        InputError: there is no deployment, a training is under way, or the server refuses the settings.
    """
    with client_of(api) as client:
        deployment = find_deployment(client)
        require_schedule(deployment)
        _wait_until_free(client, api, say)
        parameters = {"config": dict(values), "run": run, "resume": as_configured}
        flow_run = _create(client, deployment.id, parameters, run)
        set_resuming(client, True)
    return page_of(api, str(flow_run.id))


def resume(api: str, *, always: bool = True, worker: str | None = None) -> str | None:
    """Train the run that was launched last, now and until it is finished.

    Args:
        always: also if the schedule that resumes runs is off; and if the last run is complete or was stopped, train the
            newest unfinished run of the worker's store that was not stopped.
        worker: name of this machine's worker; wait until it reports flow runs whose process was killed.

    Returns the page of the flow run; None if one runs or is due already, or there is nothing to resume.
    """
    with client_of(api) as client:
        if always:
            set_resuming(client, True)
        else:
            schedule = resume_schedule(client)
            if schedule is None or not schedule.active:
                return None
        if worker is not None:
            wait_until(lambda: not has_lost_process(client, worker), _ENDING_TIMEOUT_SECONDS, _POLL_SECONDS)
        following = next_flow_run(client)
        due = None if following is None else following.next_scheduled_start_time
        is_soon = due is not None and due.timestamp() - time.time() < 30.0
        if is_soon or running_flow_run(client) is not None:
            return None
        tags = () if always else (SCHEDULED_TAG,)
        created = _create(client, find_deployment(client).id, {"resume": True}, RESUME, tags)
        return page_of(api, str(created.id))


def require_same_run_here(config: Config, run: str) -> None:
    """Raise an `InputError` if the run exists with other settings, or a process trains it."""
    from eigen_core.training.runs import Run

    here = Run(config.checkpoint, run)
    if here.exists:
        here.require_same(config)
        if here.is_running():
            raise InputError(f"Run '{run}' is being trained by another process: wait until it ends, or stop it.")


def page_of(api: str, flow_run_id: str) -> str:
    return f"{ui_of(api)}/runs/flow-run/{flow_run_id}"


def run_page_of(client: SyncPrefectClient, api: str, run: str) -> str | None:
    from flows.server.artifacts import artifact_key

    wanted = ArtifactCollectionFilter.model_validate({"key": {"any_": [artifact_key(run)]}})
    found = client.read_latest_artifacts(artifact_filter=wanted, limit=1)
    return f"{ui_of(api)}/artifacts/artifact/{found[0].latest_id}" if found else None


def require_free(api: str, say: Say) -> None:
    """Return when nothing is being trained; raise an `InputError` if a run is, or was launched before and waits."""
    with client_of(api) as client:
        _wait_until_free(client, api, say)


def _wait_until_free(client: SyncPrefectClient, api: str, say: Say) -> None:
    def is_ending(active: FlowRun) -> bool:
        return is_choosing(active) or (active.state is not None and active.state.is_cancelling())

    end = time.monotonic() + _ENDING_TIMEOUT_SECONDS
    while (active := running_flow_run(client)) is not None and is_ending(active) and time.monotonic() < end:
        say(f"waiting for the end of flow run {active.name}")
        time.sleep(_POLL_SECONDS)
    occupying = active or waiting_flow_run(client)
    if occupying is not None:
        raise InputError(_occupied(occupying, page_of(api, str(occupying.id))))


def _create(
    client: SyncPrefectClient, deployment_id: UUID, parameters: dict[str, Any], name: str, tags: Sequence[str] = ()
) -> FlowRun:
    try:
        return client.create_flow_run_from_deployment(deployment_id, parameters=parameters, name=name, tags=tags)
    except PrefectHTTPStatusError as error:
        detail = error.response.json().get("detail", error.response.text) if error.response.content else str(error)
        raise InputError(
            f"The server refuses the run: {detail} After an update of Eigen: `eigen down`, then `eigen up`."
        ) from error


def _occupied(active: FlowRun, page: str) -> str:
    run = trained_run(active)
    what = f"Run '{run}'" if run else "A run"
    waits = active.state is not None and active.state.is_scheduled()
    does = "was launched before and waits for a worker" if waits else "is being trained"
    return (
        f"{what} {does} (flow run {active.name}, {page}), and only one is trained at a time: wait until it has ended, "
        f"or cancel it there or with `prefect flow-run cancel {active.id}`."
    )


def enter() -> dict[str, str]:
    """Enter the folder where the worker was started; the pull step of the deployments, before a flow is loaded.

    Prefect would use a temporary folder, and remove the store `runs` with it. For a worker that a user has started
    with `prefect worker start`, the variable PWD of its shell names the folder.
    """
    folder = os.environ.get(FOLDER_VARIABLE) or os.environ["PWD"]
    os.chdir(folder)
    return {"directory": folder}
