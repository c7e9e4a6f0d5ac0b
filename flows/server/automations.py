"""The automations: what has crashed is resumed, a flow run without a process counts as crashed, a webhook is called.

`python -m flows.server.automations` brings the first two to the server that PREFECT_API_URL names; `eigen up` and
`eigen deploy` do so too. `eigen alerts` makes the third."""

from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events import Automation, AutomationCore
from prefect.events.actions import CallWebhook, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict
from pydantic import SecretStr

from eigen_core.common.errors import InputError
from flows.server.environment import BLOCKED_NAME, DEPLOYMENT, PLAN_NAME, SUSPENDED_EVENT, ui_of

RESUME_NAME = "resume-after-crash"
ZOMBIE_NAME = "train/gpu: crashed without a word"
ALERT_NAME = "train/gpu: alert"
SILENT_SECONDS = 90.0
"""Three heartbeats (deployments/prefect.yaml sets their time), and less than the 300 s for which a slot is leased."""

_ALERTED_STATES = ("Completed", "Crashed", "Failed", BLOCKED_NAME, PLAN_NAME)
_BLOCK = "eigen-alert"
_BLOCK_TYPE = "webhook"
_FLOW_RUNS = "prefect.flow-run.*"


def resume_automation(deployment_id: UUID) -> AutomationCore:
    """Return the automation that asks for a resume when a run of a deployment has crashed."""
    return AutomationCore(
        name=RESUME_NAME,
        description=f"After a crash of {DEPLOYMENT}, the run that was asked for last goes on. Made by `eigen deploy`.",
        enabled=True,
        trigger=_reaching(["Crashed"], deployment_id),
        actions=[RunDeployment(deployment_id=deployment_id, parameters={"resume": True})],
    )


def zombie_automation(deployment_id: UUID) -> AutomationCore:
    """Return the automation that marks a run of a deployment as crashed when its heartbeats stop."""
    return AutomationCore(
        name=ZOMBIE_NAME,
        description="A run whose heartbeats have stopped has lost its process. Made by `eigen deploy`.",
        enabled=True,
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={_FLOW_RUNS, SUSPENDED_EVENT},
            match={"prefect.resource.id": _FLOW_RUNS},
            match_related=_related_to(deployment_id),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {SILENT_SECONDS:.0f} s: it counts as crashed.",
            )
        ],
    )


def bring_automations(client: SyncPrefectClient, deployment_id: UUID) -> bool:
    """Make or correct the automations of a deployment that resume, and return whether anything was to do."""
    resuming = _bring(client, deployment_id, resume_automation(deployment_id))
    return _bring(client, deployment_id, zombie_automation(deployment_id)) or resuming


def automations_of(client: SyncPrefectClient, deployment_id: UUID) -> dict[str, list[Automation]]:
    """Return the automations that `bring_automations` makes, as far as a deployment has them."""
    return {name: _automations_named(client, name, deployment_id) for name in (RESUME_NAME, ZOMBIE_NAME)}


def set_alert(client: SyncPrefectClient, deployment_id: UUID, url: str) -> None:
    """Have the server send a POST request to `url` when a flow run of a deployment ends in a way that matters.

    Raises:
        InputError: `url` is no http or https address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"'{url}' cannot be called: give an address such as https://hooks.example.org/x.")
    Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"})).save(_BLOCK, overwrite=True)
    block = client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE)
    _remove_alert_automation(client, deployment_id)
    client.create_automation(_alert_automation(deployment_id, block.id, ui_of(str(client.api_url))))


def remove_alert(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """Call no webhook any more, and remove its address from the server."""
    _remove_alert_automation(client, deployment_id)
    with suppress(ObjectNotFound):
        client.delete_block_document(client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE).id)


def _remove_alert_automation(client: SyncPrefectClient, deployment_id: UUID) -> None:
    for found in _automations_named(client, ALERT_NAME, deployment_id):
        client.delete_automation(found.id)


def _alert_automation(deployment_id: UUID, block: UUID, ui: str) -> AutomationCore:
    # `text` is what Slack and others show.
    text = "flow_run.name ~ ': ' ~ flow_run.state.name ~ '. ' ~ (flow_run.state.message or '')"
    payload = (
        '{"text": {{ (' + text + ') | tojson }}, "flow_run": {{ flow_run.name | tojson }}, '
        '"state": {{ flow_run.state.name | tojson }}, "page": "' + ui + '/runs/flow-run/{{ flow_run.id }}"}'
    )
    return AutomationCore(
        name=ALERT_NAME,
        description="Calls the webhook eigen-alert when a training has ended. Made by `eigen alerts`.",
        enabled=True,
        trigger=_reaching(_ALERTED_STATES, deployment_id),
        actions=[CallWebhook(block_document_id=block, payload=payload)],
    )


def _reaching(states: Collection[str], deployment_id: UUID) -> EventTrigger:
    """Return what fires when a flow run of a deployment reaches one of these states."""
    return EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in states},
        match={"prefect.resource.id": _FLOW_RUNS},
        match_related=_related_to(deployment_id),
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )


def _related_to(deployment_id: UUID) -> dict[str, str | list[str]]:
    """Return what matches events of a deployment's flow runs. Its name would match others, of other flows, too."""
    return {"prefect.resource.role": "deployment", "prefect.resource.id": f"prefect.deployment.{deployment_id}"}


def _automations_named(client: SyncPrefectClient, name: str, deployment_id: UUID) -> list[Automation]:
    """Return the automations of a name that concern a deployment: others may have automations of that name."""
    found = client.read_automations_by_name(name)
    return [automation for automation in found if str(deployment_id) in automation.model_dump_json()]


def _bring(client: SyncPrefectClient, deployment_id: UUID, wanted: AutomationCore) -> bool:
    found = _automations_named(client, wanted.name, deployment_id)
    for superfluous in found[1:]:
        client.delete_automation(superfluous.id)
    if not found:
        client.create_automation(wanted)
        return True
    if _content(found[0]) == _content(wanted):
        return len(found) > 1
    client.update_automation(found[0].id, wanted)
    return True


def _content(automation: AutomationCore) -> dict[str, object]:
    """Return an automation without the numbers that the server adds; sets stay sets, which have no order."""
    return automation.model_dump(include=set(AutomationCore.model_fields), exclude={"trigger": {"id"}})


def main() -> None:
    """Bring the automations to the server that the environment or the profile names."""
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            raise InputError(f"There is no deployment {DEPLOYMENT}: deploy it first.") from None
        bring_automations(client, deployment.id)


if __name__ == "__main__":
    main()
