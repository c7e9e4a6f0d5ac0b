"""Eigen's deployments (`train/gpu` trains, `cleanup/weekly` cleans stores), schedules, automations and flow runs."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from importlib.resources import as_file, files
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import ArtifactCollectionFilter
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import Automation, AutomationCore
from prefect.events.actions import CallWebhook, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, get_current_settings, temporary_settings
from prefect.types import SecretDict
from pydantic import SecretStr

from eigen_core import __version__
from eigen_core.common.errors import InputError, Stopped
from eigen_core.common.process import code_digest
from eigen_core.common.text import without_credentials
from flows.server.artifacts import artifact_key
from flows.server.flow_runs import (
    BLOCKED_NAME,
    DEPLOYMENT,
    GENERATION_LABEL,
    GUARD_NAME,
    PLAN_NAME,
    POOL,
    RESUME,
    SCHEDULED_TAG,
    SUSPENDED_EVENT,
    has_lost_process,
    is_choosing,
    next_flow_run,
    running_flow_run,
    schedule_of,
    set_schedule,
    trained_run,
    waiting_flow_run,
)
from flows.server.prefect_settings import FOLDER_VARIABLE, client_environment, ui_of
from flows.server.state_directory import wait_until

CLEANUP = "cleanup/weekly"
DEPLOYMENTS = (DEPLOYMENT, CLEANUP)
_DEPLOY_SECONDS = 300.0
# After the process of a cancelled flow run has ended, Prefect takes up to 20 s to set the state Cancelled.
_ENDING_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 1.0

Say = Callable[[str], None]


@contextmanager
def client_of(api: str) -> Iterator[SyncPrefectClient]:
    """Open a client of Prefect's API at URL `api`; raise `Stopped` if a request inside the block fails or times out."""
    with temporary_settings({PREFECT_API_URL: api}, set_defaults={PREFECT_UI_URL: ui_of(api)}):
        try:
            with get_client(sync_client=True) as client:
                yield client
        except PrefectHTTPStatusError as error:
            answer = f"{error.response.status_code} {error.response.reason_phrase}"
            asked = f"{error.request.method} {error.request.url.path}"
            raise Stopped(f"The server at {api} answers {answer} to {asked}. Try again; its log says more.") from error
        except httpx.HTTPError as error:
            raise Stopped(f"The server at {api} does not answer ({type(error).__name__}). Try again.") from error


def deploy(api: str) -> None:
    """Create or update work pool, deployments and automations at URL `api`; schedules stay on or off as they are."""
    with client_of(api) as client:
        _create_pool(client)
        before = {(deployment.name, schedule.slug): schedule.active for deployment, schedule in _schedules(client)}
        try:
            _run_prefect_deploy(api)
        finally:
            # Also after a failure of `prefect deploy`, which switches schedules as prefect.yaml says (`resume`: off).
            for deployment, schedule in _schedules(client):
                active = before.get((deployment.name, schedule.slug), schedule.active)
                if active != schedule.active:
                    # An update without `parameters` would delete those of the schedule.
                    client.update_deployment_schedule(
                        deployment.id, schedule.id, active=active, parameters=schedule.parameters
                    )
        trains = client.read_deployment_by_name(DEPLOYMENT).id
        for automation in (resume_automation(trains), zombie_automation(trains)):
            _delete_automations(client, automation.name, trains)
            client.create_automation(automation)
        if _automations_named(client, ALERT_NAME, trains):
            _create_alert(client, trains)
        for name in DEPLOYMENTS:
            deployment = client.read_deployment_by_name(name)
            client.update_deployment(deployment.id, DeploymentUpdate(version=code_version()))


def is_up_to_date(client: SyncPrefectClient) -> bool:
    """Return whether the server has the deployments of this version of Eigen's code, their automations and schedule."""
    try:
        found = [client.read_deployment_by_name(name) for name in DEPLOYMENTS]
    except ObjectNotFound:
        return False
    has_automations = all(_automations_named(client, name, found[0].id) for name in (RESUME_NAME, ZOMBIE_NAME))
    is_new = {deployment.version for deployment in found} == {code_version()}
    return is_new and has_automations and schedule_of(found[0]) is not None


def find_deployment(client: SyncPrefectClient) -> DeploymentResponse:
    """Return deployment `train/gpu`, whose flow runs train; raise an `InputError` if the server lacks it."""
    try:
        return client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        raise InputError(
            f"The server at {client.api_url} has no deployment {DEPLOYMENT}: create it with `eigen deploy`."
        ) from None


def resume_schedule(client: SyncPrefectClient) -> DeploymentSchedule | None:
    """Return the schedule that resumes runs, None if a user removed it; `InputError` if its deployment is missing."""
    return schedule_of(find_deployment(client))


def set_resuming(client: SyncPrefectClient, active: bool) -> None:
    """Switch the schedule that resumes runs on or off; raise an `InputError` if it or its deployment is missing."""
    deployment = find_deployment(client)
    require_schedule(deployment)
    set_schedule(client, deployment, active)


def require_schedule(deployment: DeploymentResponse) -> None:
    if schedule_of(deployment) is None:
        raise InputError(f"Deployment {DEPLOYMENT} has no schedule '{RESUME}': create it with `eigen deploy`.")


def _create_pool(client: SyncPrefectClient) -> None:
    # Imported here because this takes a second.
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def code_version() -> str:
    """Return `<version of Eigen>+<hash>`: the hash covers Eigen's code, its YAML and TOML files, Prefect's version."""
    digest = code_digest(("eigen_core", "flows", "tasks", "deployments"), (".py", ".yaml", ".toml"), version("prefect"))
    return f"{__version__}+{digest[:12]}"


def _schedules(client: SyncPrefectClient) -> Iterator[tuple[DeploymentResponse, DeploymentSchedule]]:
    for name in DEPLOYMENTS:
        with suppress(ObjectNotFound):
            deployment = client.read_deployment_by_name(name)
            yield from ((deployment, schedule) for schedule in deployment.schedules)


def _run_prefect_deploy(api: str) -> None:
    """Call `prefect deploy`, so that a user who calls it directly gets the same deployments."""
    with as_file(files("deployments") / "prefect.yaml") as path:
        command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(path), "--all"]
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        try:
            ended = subprocess.run(
                command,
                # Prefect imports modules, and reads settings, from its working directory.
                cwd=path.parent,
                env=settings | client_environment(os.environ, api),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DEPLOY_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Stopped(f"Prefect has not deployed {path} within {_DEPLOY_SECONDS:.0f} s. Try again.") from None
    if ended.returncode != 0:
        said = [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
        raise Stopped(f"`prefect deploy --prefect-file {shlex.quote(str(path))}` failed: {' '.join(said[-3:])}")


RESUME_NAME = "resume-after-crash"
ZOMBIE_NAME = "train/gpu: crashed without a word"
ALERT_NAME = "train/gpu: alert"
SILENT_SECONDS = 90.0
"""Seconds without a heartbeat after which a flow run counts as crashed: three intervals between heartbeats (set in
deployments/prefect.yaml), and less than a concurrency slot's lease of 300 s."""

_ALERTED_STATES = ("Completed", "Crashed", "Failed", GUARD_NAME, BLOCKED_NAME, PLAN_NAME)
_ONCE = timedelta(days=3_650)
_BLOCK = "eigen-alert"
_BLOCK_TYPE = "webhook"
_FLOW_RUNS = "prefect.flow-run.*"


def resume_automation(deployment_id: UUID) -> AutomationCore:
    return AutomationCore(
        name=RESUME_NAME,
        description=f"After a flow run of {DEPLOYMENT} crashed, resumes the last requested run. From `eigen deploy`.",
        enabled=True,
        trigger=_trigger(deployment_id, {"prefect.flow-run.Crashed"}),
        actions=[RunDeployment(deployment_id=deployment_id, parameters={"resume": True})],
    )


def zombie_automation(deployment_id: UUID) -> AutomationCore:
    """Return the automation that marks a flow run as crashed when it sends no heartbeat for `SILENT_SECONDS`."""
    return AutomationCore(
        name=ZOMBIE_NAME,
        description=f"Marks a flow run of {DEPLOYMENT} as crashed when its heartbeats stop. From `eigen deploy`.",
        enabled=True,
        trigger=_trigger(
            deployment_id,
            {_FLOW_RUNS, SUSPENDED_EVENT},
            after={"prefect.flow-run.heartbeat"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=f"No heartbeat for {SILENT_SECONDS:.0f} s.")],
    )


def set_alert(client: SyncPrefectClient, deployment_id: UUID, url: str) -> None:
    """Let the server POST to `url` (HTTP, HTTPS) once for each final state of a flow run but a user's stop."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"'{without_credentials(url)}' cannot be called: give an address such as https://hooks.example.org/x."
        )
    Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"})).save(_BLOCK, overwrite=True)
    _create_alert(client, deployment_id)


def _create_alert(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """Create the automation that calls the saved webhook, in place of an earlier one."""
    block = client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE)
    _delete_automations(client, ALERT_NAME, deployment_id)
    client.create_automation(_alert_automation(deployment_id, block.id, ui_of(str(client.api_url))))


def remove_alert(client: SyncPrefectClient, deployment_id: UUID) -> None:
    _delete_automations(client, ALERT_NAME, deployment_id)
    with suppress(ObjectNotFound):
        client.delete_block_document(client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE).id)


def _alert_automation(deployment_id: UUID, block: UUID, ui: str) -> AutomationCore:
    generation = f"(flow_run.labels or {{}}).get('{GENERATION_LABEL}')"
    # Slack and others show the field `text`.
    text = (
        "flow_run.name ~ ': ' ~ flow_run.state.name "
        "~ (' after ' ~ (flow_run.total_run_time | string).split('.')[0] if flow_run.total_run_time else '') "
        f"~ (', generation ' ~ {generation} ~ ' is on disk' if {generation} else '') "
        "~ '. ' ~ (flow_run.state.message or '')"
    )
    fields = {
        "text": text,
        "flow_run": "flow_run.name",
        "state": "flow_run.state.name",
        "message": "flow_run.state.message",
        "seconds": "flow_run.total_run_time.total_seconds()",
        "generation": generation,
    }
    written = ", ".join(f'"{key}": {{{{ ({value}) | tojson }}}}' for key, value in fields.items())
    payload = f'{{{written}, "page": "{ui}/runs/flow-run/{{{{ flow_run.id }}}}"}}'
    return AutomationCore(
        name=ALERT_NAME,
        description="Calls the webhook eigen-alert when a training completes, crashes or fails. From `eigen alerts`.",
        enabled=True,
        # The server evaluates all automations again if one of them failed because the database was locked.
        trigger=_trigger(
            deployment_id,
            {f"prefect.flow-run.{state}" for state in _ALERTED_STATES},
            for_each={"prefect.resource.id", "prefect.state-name"},
            within=_ONCE,
        ),
        actions=[CallWebhook(block_document_id=block, payload=payload)],
    )


def _trigger(deployment_id: UUID, expect: set[str], **others: Any) -> EventTrigger:  # noqa: ANN401 - its fields
    """Return a trigger by events of a deployment's flow runs. It uses the id: a name may not be unique."""
    related = {"prefect.resource.role": "deployment", "prefect.resource.id": f"prefect.deployment.{deployment_id}"}
    fields = {"posture": Posture.Reactive, "within": timedelta(0), **others}
    return EventTrigger(
        expect=expect, match={"prefect.resource.id": _FLOW_RUNS}, match_related=related, threshold=1, **fields
    )


def _automations_named(client: SyncPrefectClient, name: str, deployment_id: UUID) -> list[Automation]:
    found = client.read_automations_by_name(name)
    return [automation for automation in found if str(deployment_id) in automation.model_dump_json()]


def _delete_automations(client: SyncPrefectClient, name: str, deployment_id: UUID) -> None:
    for found in _automations_named(client, name, deployment_id):
        client.delete_automation(found.id)


def launch(api: str, values: Mapping[str, Any], run: str, say: Say, *, as_configured: bool = False) -> str:
    """Create a flow run that trains run `run`, switch on the schedule that resumes it, and return the flow run's page.

    If the active flow run is being cancelled, or still looks for a run to resume, wait up to 30 s for its end.

    Args:
        values: settings of the run, nested; the preset gives those that are missing.
        say: called with a message at each second of the wait.
        as_configured: continue a run that exists, with its stored settings; of `values` only `market.data` counts.

    Raises:
        InputError: deployment or schedule is missing, another flow run trains or waits, or the server refuses this one.
        Stopped: a request to the server failed.
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
    """Create a flow run that resumes the run that was requested last, and return the URL of the flow run's page.

    Return None if a flow run is active or due within 30 s, or if `always` is false and the schedule is off.

    Args:
        always: switch on the schedule that resumes runs; and if the last run is complete or stopped (cancelled or
            suspended), resume the newest unfinished run of the worker's store that is not stopped. False: resume only
            if that schedule is on.
        worker: name of this machine's worker; wait up to 30 s until no flow run of it whose process was killed is
            Running on the server. None: do not wait.
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


def page_of(api: str, flow_run_id: str) -> str:
    return f"{ui_of(api)}/runs/flow-run/{flow_run_id}"


def run_page_of(client: SyncPrefectClient, api: str, run: str) -> str | None:
    wanted = ArtifactCollectionFilter.model_validate({"key": {"any_": [artifact_key(run)]}})
    found = client.read_latest_artifacts(artifact_filter=wanted, limit=1)
    return f"{ui_of(api)}/artifacts/artifact/{found[0].latest_id}" if found else None


def require_free(api: str, say: Say) -> None:
    """Raise an `InputError` if a flow run trains or waits for a worker; wait up to 30 s for one that is ending."""
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
    if occupying is None:
        return
    run, page = trained_run(occupying), page_of(api, str(occupying.id))
    what = f"Run '{run}'" if run else "A run"
    waits = occupying.state is not None and occupying.state.is_scheduled()
    does = "was launched before and waits for a worker" if waits else "is being trained"
    raise InputError(
        f"{what} {does} (flow run {occupying.name}, {page}), and only one is trained at a time: wait until it has "
        f"ended, or cancel it in that page or with `prefect flow-run cancel {shlex.quote(str(occupying.id))}`."
    )


def _create(
    client: SyncPrefectClient, deployment_id: UUID, parameters: dict[str, Any], name: str, tags: Sequence[str] = ()
) -> FlowRun:
    try:
        return client.create_flow_run_from_deployment(deployment_id, parameters=parameters, name=name, tags=tags)
    except PrefectHTTPStatusError as error:
        detail = error.response.json().get("detail", error.response.text) if error.response.content else str(error)
        raise InputError(
            f"The server refuses the run: {detail} If Eigen was updated, call `eigen down`, then `eigen up`."
        ) from error


def enter() -> dict[str, str]:
    """Set EIGEN_FOLDER to the folder where the worker was started. Prefect calls this pull step before it loads a flow.

    `flows.server.flows` then changes to that folder. This step does not, and returns Prefect's empty temporary folder:
    Prefect imports modules from the folder that a pull step returns. `eigen up` sets the variable for its worker; for
    one that a user started by `prefect worker start`, PWD names the folder.
    """
    os.environ[FOLDER_VARIABLE] = os.environ.get(FOLDER_VARIABLE) or os.environ["PWD"]
    return {"directory": "."}
