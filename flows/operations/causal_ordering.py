"""How the server orders the events that its automations see, across its own restarts.

Prefect holds an event back until it has seen the one that it follows, and remembers in memory what it has seen. After a
restart, the crash of a run that was created before would be held back for 15 minutes, and the run not be resumed. Here
what an earlier server has recorded counts as seen. PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.
"""

import logging
from datetime import UTC, datetime
from uuid import UUID

import psutil
import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import Event

logger = logging.getLogger(__name__)


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own ordering, which also knows the events that an earlier server has recorded."""

    async def event_has_been_seen(self, event: UUID | Event) -> bool:
        """Whether an event was seen by this server, or recorded before it began."""
        if await super().event_has_been_seen(event):
            return True
        return await _was_recorded_before(event.id if isinstance(event, Event) else event, _began())


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
