"""Lets Prefect's server evaluate automations for events in the order of arrival.

Prefect holds an event back until it has seen the event before it, and remembers in memory which it has seen. After a
restart of the server, a training that crashes within five minutes of its start would be resumed only after fifteen. No
automation of Eigen depends on the order. PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.
"""

from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import ReceivedEvent


class CausalOrdering(memory.CausalOrdering):
    """Prefect's causal ordering, without the wait for earlier events."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Let an event be evaluated at once."""
