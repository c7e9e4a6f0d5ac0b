"""Calling a webhook when a training has crashed, is blocked, has failed or is finished."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eigen_core.errors import InputError
from flows.names import BLOCKED_NAME, PLAN_NAME
from flows.operations.automations import automations_named, related_to
from flows.operations.environment import ui_of

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import AutomationCore

ALERT_NAME = "train/gpu: alert"
_BLOCK = "eigen-alert"
_BLOCK_TYPE = "webhook"
_STATES = ("Completed", "Crashed", "Failed", BLOCKED_NAME, PLAN_NAME)


def set_alert(client: "SyncPrefectClient", deployment_id: "UUID", url: str) -> None:
    """Have the server send a POST request to `url` when a flow run of a deployment ends in a way that matters.

    Raises:
        InputError: `url` is no http or https address.
    """
    from prefect.blocks.webhook import Webhook
    from prefect.types import SecretDict
    from pydantic import SecretStr

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"'{url}' cannot be called: give an address such as https://hooks.example.org/x.")
    Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"})).save(_BLOCK, overwrite=True)
    block = client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE)
    _remove_automation(client, deployment_id)
    client.create_automation(_alert(deployment_id, block.id, ui_of(str(client.api_url))))


def remove_alert(client: "SyncPrefectClient", deployment_id: "UUID") -> None:
    """Call no webhook any more, and remove its address from the server."""
    from prefect.exceptions import ObjectNotFound

    _remove_automation(client, deployment_id)
    try:
        client.delete_block_document(client.read_block_document_by_name(_BLOCK, _BLOCK_TYPE).id)
    except ObjectNotFound:
        return


def _remove_automation(client: "SyncPrefectClient", deployment_id: "UUID") -> None:
    """Remove the automation that calls the webhook."""
    for found in automations_named(client, ALERT_NAME, deployment_id):
        client.delete_automation(found.id)


def _alert(deployment_id: "UUID", block: "UUID", ui: str) -> "AutomationCore":
    from datetime import timedelta

    from prefect.events import AutomationCore
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture

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
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{state}" for state in _STATES},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=related_to(deployment_id),
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[CallWebhook(block_document_id=block, payload=payload)],
    )
