"""How the server orders the events that its automations see, across its own restarts.

When the server begins, a flow run whose heartbeats are waited for is given the whole time again: otherwise each
training that has outlived its server would count as crashed.

Prefect holds an event back until it has seen the one that it follows, and remembers in memory what it has seen. After a
restart, the crash of a run that was created before would be held back for 15 minutes, and the run not be resumed. Here
what an earlier server has recorded counts as seen. PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import psutil
import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.events.ordering import EventArrivedEarly, event_handler, memory
from prefect.server.events.schemas.automations import Posture
from prefect.server.events.schemas.events import Event, ReceivedEvent

logger = logging.getLogger(__name__)


_HEARTBEAT = "prefect.flow-run.heartbeat"

_beginning = asyncio.Lock()
_waits_are_renewed = False


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own ordering, which also knows the events that an earlier server has recorded."""

    async def get_lost_followers(self) -> list[ReceivedEvent]:
        """Return the events whose predecessors will not come; Prefect asks before it looks for missing heartbeats."""
        await _renew_waits_once()
        return await super().get_lost_followers()

    @asynccontextmanager
    async def preceding_event_confirmed(
        self, handler: event_handler, event: ReceivedEvent, depth: int = 0
    ) -> AsyncGenerator[None, None]:
        """Let an event be evaluated inside the block.

        A heartbeat from before the server began, which was kept until then, would begin a wait that has ended already.

        Raises:
            EventArrivedEarly: it is not to be evaluated.
        """
        if event.event == _HEARTBEAT and event.occurred < _began():
            raise EventArrivedEarly(event)
        async with super().preceding_event_confirmed(handler, event, depth):
            yield

    async def event_has_been_seen(self, event: UUID | Event) -> bool:
        """Whether an event was seen by this server, or recorded before it began."""
        await _renew_waits_once()
        if await super().event_has_been_seen(event):
            return True
        return await _was_recorded_before(event.id if isinstance(event, Event) else event, _began())


async def _renew_waits_once() -> None:
    global _waits_are_renewed
    async with _beginning:
        if _waits_are_renewed:
            return
        try:
            await _renew_waits()
            _waits_are_renewed = True
        except sa.exc.OperationalError as error:
            logger.warning("What is waited for could not be given more time, and is tried again: %s", error)


async def _renew_waits() -> None:
    """Let what is waited for since before the server began come within the same time from now."""
    from prefect.server.events.triggers import triggers

    database = provide_database_interface()
    bucket = database.AutomationBucket
    now = datetime.now(UTC)
    async with database.session_context(begin_transaction=True) as session:
        for trigger in triggers.values():
            if trigger.posture == Posture.Proactive:
                waiting = sa.update(bucket).where(bucket.trigger_id == trigger.id, bucket.end < now + trigger.within)
                await session.execute(waiting.values(end=now + trigger.within))


def _began() -> datetime:
    return datetime.fromtimestamp(psutil.Process().create_time(), UTC)


async def _was_recorded_before(event_id: UUID, moment: datetime) -> bool:
    database = provide_database_interface()
    found = sa.select(database.Event.id).where(database.Event.id == event_id, database.Event.received < moment)
    try:
        async with database.session_context() as session:
            return (await session.execute(found)).first() is not None
    except sa.exc.OperationalError as error:
        # It is then held back as Prefect would; the schedule resumes.
        logger.warning("An event's predecessor could not be looked up: %s", error)
        return False
