"""Undocumented parts of Prefect that Eigen uses, with the reason for each.

Any release of Prefect may change them. Check this file before pinning another release; its test fails until `RELEASE`
names that one. Imports of Prefect are inside functions: Prefect's environment variables must be set before.
"""

import re
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig
    from fastapi import FastAPI
    from prefect.server.events.ordering.memory import CausalOrdering as PrefectsCausalOrdering
    from prefect.server.events.schemas.events import ReceivedEvent

RELEASE = "3.8.8"
"""Release of Prefect that this file was written for."""

LEASES_IN_FILES = "prefect.server.concurrency.lease_storage.filesystem"
"""Module that keeps the server's leases of concurrency slots in files. By default they are in the server's memory: the
lease of a running training would end with the server, and the training with its lease."""

EVENTS_IN_ORDER_OF_ARRIVAL = __name__
"""Module whose `CausalOrdering` the server uses for events, if PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names it."""

SERVER_IN_MEMORY = "prefect-in-memory"
"""Host name by which the server calls itself, as when an automation resumes a crashed run. The refusal of foreign web
pages (flows.server.request_guard) must accept it."""

CANCELLED_BY_LIMIT = "Deployment concurrency limit reached"
"""Beginning of the message of a flow run that the server cancelled because another one trains. Only this message tells
it from a flow run that a user cancelled, whose run must not be resumed."""

_MIGRATIONS = Path("server", "database", "_migrations", "versions", "sqlite")
_REVISION = re.compile(r"_([0-9a-f]{12})_")


def keep_training_without_slot() -> None:
    """Let a flow run continue when its concurrency slot cannot be renewed, as while the server is unavailable.

    Prefect's engine would end the flow run, and has no setting for this. To continue is safe: a training holds Eigen's
    own lock or lease on its run, and the worker has one flow run at a time. Call this before the flow begins: the
    engine takes the slot first.
    """
    import prefect.flow_engine
    from prefect.concurrency._leases import maintain_concurrency_lease

    def keep_slot(
        lease_id: UUID,
        lease_duration: float,
        raise_on_lease_renewal_failure: bool = False,  # noqa: ARG001 - the signature of Prefect's own
    ) -> AbstractContextManager[None]:
        return maintain_concurrency_lease(lease_id, lease_duration, raise_on_lease_renewal_failure=False)

    vars(prefect.flow_engine)["maintain_concurrency_lease"] = keep_slot


@cache
def CausalOrdering(scope: str) -> "PrefectsCausalOrdering":  # noqa: N802 - the name that Prefect looks up
    """Return Prefect's causal ordering of the events in `scope`, without its wait for earlier events.

    Prefect holds an event back until it has seen the event before it, and remembers in memory which it has seen. After
    a restart of the server, a training that crashes within five minutes of its start would be resumed only fifteen
    minutes later. No automation of Eigen depends on the order of events.
    """
    from prefect.server.events.ordering import memory

    class OrderOfArrival(memory.CausalOrdering):
        async def wait_for_leader(self, event: "ReceivedEvent") -> None:
            """Return at once, so that automations see an event as soon as it arrives."""

    return OrderOfArrival(scope)


def server_app() -> "FastAPI":
    """Return Prefect's application with logging, as `prefect server start` serves it, to add a middleware to it.

    Prefect's `alembic.ini` would let the server import modules from its working directory; here it does not.
    """
    from prefect.logging.configuration import setup_logging
    from prefect.server.api.server import create_app
    from prefect.server.database import alembic_commands

    prefects = alembic_commands.alembic_config

    def alembic_config() -> "AlembicConfig":
        config = prefects()
        config.set_main_option("prepend_sys_path", "")
        return config

    vars(alembic_commands)["alembic_config"] = alembic_config
    setup_logging()
    return create_app(final=True)


def known_revisions() -> set[str]:
    """Return the Alembic revisions of its SQLite database that Prefect's server knows; with others it would crash."""
    spec = find_spec("prefect")
    assert spec is not None
    assert spec.origin is not None
    names = (path.name for path in (Path(spec.origin).parent / _MIGRATIONS).glob("*.py"))
    return {found[1] for name in names if (found := _REVISION.search(name))}
