"""The automation for runs whose process has vanished without a word: it takes them for crashed.

`python -m flows.operations.automations` brings it to the server that PREFECT_API_URL names; `eigen up` and
`eigen deploy` do so too.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from eigen_core.errors import InputError
from flows.tags import SUSPENDED_EVENT

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import AutomationCore

logger = logging.getLogger(__name__)

TRIGGER_NAME = "resume-after-crash"
"""Of the trigger in deployments/prefect.yaml."""
ZOMBIE_NAME = "train/gpu: crashed without a word"
SILENT_SECONDS = 90.0
"""Three heartbeats (deployments/prefect.yaml sets their time), and less than the 300 s for which a slot is leased."""

DEPLOYMENT = "train/gpu"


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
            match_related={
                "prefect.resource.role": "deployment",
                "prefect.resource.id": f"prefect.deployment.{deployment_id}",
            },
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


def bring_zombie_automation(client: "SyncPrefectClient", deployment_id: "UUID") -> bool:
    """Make the automation, or set it right, and return whether anything was to do."""
    wanted = zombie_automation(deployment_id)
    found = client.read_automations_by_name(ZOMBIE_NAME)
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
    """Bring the automation to the server that the environment or the profile names."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            raise InputError(f"There is no deployment {DEPLOYMENT}: deploy it first.") from None
        bring_zombie_automation(client, deployment.id)


if __name__ == "__main__":
    main()
