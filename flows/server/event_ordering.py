"""The order in which Prefect's server shows events to its automations: as they come.

Prefect holds an event back until it has seen the one before it, and remembers in memory which it has seen. After a
restart of the server a training that crashes within five minutes of its start would be resumed after fifteen. No
automation of Eigen depends on the order. PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.
"""

from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import ReceivedEvent


class CausalOrdering(memory.CausalOrdering):
    """Prefect's bookkeeping of events, which waits for none."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Let an event be evaluated at once."""
