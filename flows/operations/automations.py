"""The automations that heal: what has crashed is resumed, what has lost its process is taken for crashed.

`python -m flows.operations.automations` brings them to the server that PREFECT_API_URL names; `eigen up` and
`eigen deploy` do so too.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from eigen_core.errors import InputError
from flows.names import SUSPENDED_EVENT

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import Automation, AutomationCore

RESUME_NAME = "resume-after-crash"
ZOMBIE_NAME = "train/gpu: crashed without a word"
SILENT_SECONDS = 90.0
"""Three heartbeats (deployments/prefect.yaml sets their time), and less than the 300 s for which a slot is leased."""

DEPLOYMENT = "train/gpu"


def resume_automation(deployment_id: "UUID") -> "AutomationCore":
    """Return the automation that asks for a resume when a run of a deployment has crashed."""
    from prefect.events import AutomationCore
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger, Posture

    return AutomationCore(
        name=RESUME_NAME,
        description=f"After a crash of {DEPLOYMENT}, its newest unfinished run goes on. Made by `eigen deploy`.",
        enabled=True,
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=related_to(deployment_id),
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[RunDeployment(deployment_id=deployment_id, parameters={"resume": True})],
    )


def zombie_automation(deployment_id: "UUID") -> "AutomationCore":
    """Return the automation that marks a run of a deployment as crashed when its heartbeats stop."""
    from prefect.client.schemas.objects import StateType
    from prefect.events import AutomationCore
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture

    return AutomationCore(
        name=ZOMBIE_NAME,
        description="A run whose heartbeats have stopped has lost its process. Made by `eigen deploy`.",
        enabled=True,
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*", SUSPENDED_EVENT},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=related_to(deployment_id),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {SILENT_SECONDS:.0f} s: its process has vanished.",
            )
        ],
    )


def bring_automations(client: "SyncPrefectClient", deployment_id: "UUID") -> bool:
    """Make the automations of a deployment, or set them right, and return whether anything was to do."""
    resuming = _bring(client, deployment_id, resume_automation(deployment_id))
    return _bring(client, deployment_id, zombie_automation(deployment_id)) or resuming


def automations_of(client: "SyncPrefectClient", deployment_id: "UUID") -> "dict[str, list[Automation]]":
    """Return the automations that `bring_automations` makes, as far as a deployment has them."""
    return {name: automations_named(client, name, deployment_id) for name in (RESUME_NAME, ZOMBIE_NAME)}


def automations_named(client: "SyncPrefectClient", name: str, deployment_id: "UUID") -> "list[Automation]":
    """Return the automations of a name that concern a deployment: others may have automations of that name."""
    found = client.read_automations_by_name(name)
    return [automation for automation in found if str(deployment_id) in automation.model_dump_json()]


def related_to(deployment_id: "UUID") -> dict[str, str | list[str]]:
    """Return what matches events of a deployment's flow runs. Its name would match others, of other flows, too."""
    return {"prefect.resource.role": "deployment", "prefect.resource.id": f"prefect.deployment.{deployment_id}"}


def _bring(client: "SyncPrefectClient", deployment_id: "UUID", wanted: "AutomationCore") -> bool:
    found = automations_named(client, wanted.name, deployment_id)
    for superfluous in found[1:]:
        client.delete_automation(superfluous.id)
    if not found:
        client.create_automation(wanted)
        return True
    if _says_the_same(found[0], wanted):
        return len(found) > 1
    client.update_automation(found[0].id, wanted)
    return True


def _says_the_same(found: "AutomationCore", wanted: "AutomationCore") -> bool:
    fields = set(type(wanted).model_fields) & set(type(found).model_fields)
    # The server numbers triggers and adds nothing else.
    excluded = {"id", "created", "updated"}
    return _plain(found, fields - excluded) == _plain(wanted, fields - excluded)


def _plain(automation: "AutomationCore", fields: set[str]) -> dict[str, object]:
    values: dict[str, object] = automation.model_dump(mode="json", include=fields)
    trigger = values.get("trigger")
    if isinstance(trigger, dict):
        trigger.pop("id", None)
    return values


def main() -> None:
    """Bring the automations to the server that the environment or the profile names."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            raise InputError(f"There is no deployment {DEPLOYMENT}: deploy it first.") from None
        bring_automations(client, deployment.id)


if __name__ == "__main__":
    main()
