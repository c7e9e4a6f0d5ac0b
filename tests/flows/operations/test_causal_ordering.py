"""A server that begins does not take its own absence for silence of others."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.server.database import provide_database_interface
from prefect.server.events import triggers
from prefect.server.events.ordering import EventArrivedEarly
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent

from flows.operations import causal_ordering
from flows.operations.automations import SILENT_SECONDS, zombie_automation
from flows.operations.causal_ordering import CausalOrdering

_ABSENCE = timedelta(minutes=10)


async def _end_of_wait(automation: UUID, moment: datetime) -> datetime:
    """Return when a wait ends that had ended at a moment, once a server has begun."""
    await triggers.reconcile_automations(force=True)
    (trigger,) = triggers.automations_by_id[automation].triggers_of_type(EventTrigger)
    database = provide_database_interface()
    bucket = database.AutomationBucket(
        automation_id=automation, trigger_id=trigger.id, bucketing_key=["run"], start=moment, end=moment, count=0
    )
    async with database.session_context(begin_transaction=True) as session:
        session.add(bucket)
    assert await CausalOrdering(scope="test").get_lost_followers() == []
    async with database.session_context() as session:
        found = await session.get(database.AutomationBucket, bucket.id)
    assert found is not None
    end: datetime = found.end
    return end


@pytest.mark.usefixtures("prefect_api")
def test_what_was_waited_for_is_given_the_whole_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_ordering, "_waits_are_renewed", False)
    with get_client(sync_client=True) as client:
        automation = client.create_automation(zombie_automation(uuid4()))
    try:
        began = datetime.now(UTC)
        end = asyncio.run(_end_of_wait(automation, began - _ABSENCE))
        assert end >= began + timedelta(seconds=SILENT_SECONDS)
    finally:
        with get_client(sync_client=True) as client:
            client.delete_automation(automation)


@pytest.mark.parametrize(("age", "evaluated"), [(timedelta(days=1), False), (timedelta(0), True)])
def test_a_heartbeat_from_before_the_server_began_begins_no_wait(age: timedelta, evaluated: bool) -> None:
    beat = ReceivedEvent(
        occurred=datetime.now(UTC) - age,
        event="prefect.flow-run.heartbeat",
        resource={"prefect.resource.id": f"prefect.flow-run.{uuid4()}"},
        id=uuid4(),
    )

    async def evaluate() -> None:
        async with CausalOrdering(scope="test").preceding_event_confirmed(triggers.reactive_evaluation, beat):
            pass

    if evaluated:
        asyncio.run(evaluate())
    else:
        with pytest.raises(EventArrivedEarly):
            asyncio.run(evaluate())
