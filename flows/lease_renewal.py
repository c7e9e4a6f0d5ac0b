"""A training outlives the slot that Prefect's server has lent to it.

The slot is what makes the server refuse a second training of a deployment. Prefect ends a flow run whose slot cannot be
kept, as after an absence of the server of some minutes; a training holds a lease of its own on what it writes, and the
worker begins nothing beside it.
"""

from contextlib import AbstractContextManager
from uuid import UUID

import prefect.flow_engine
from prefect.concurrency._leases import maintain_concurrency_lease


def _maintain(
    lease_id: UUID,
    lease_duration: float,
    raise_on_lease_renewal_failure: bool = False,  # noqa: ARG001 - the signature of Prefect's own
) -> AbstractContextManager[None]:
    return maintain_concurrency_lease(lease_id, lease_duration, raise_on_lease_renewal_failure=False)


def outlive_lost_slots() -> None:
    """Let no flow run of this process be ended because its slot is lost: Prefect offers no setting for it."""
    vars(prefect.flow_engine)["maintain_concurrency_lease"] = _maintain
