"""What is used of Prefect beside its documented interface is that of the release that is installed."""

from importlib.metadata import version
from unittest.mock import Mock
from uuid import uuid4

import prefect.concurrency._leases
import prefect.flow_engine
import pytest

from flows.server.prefect_internals import RELEASE, keep_training_without_slot, known_revisions


def test_the_release_is_the_one_that_was_looked_through() -> None:
    assert version("prefect") == RELEASE, "look through flows/server/prefect_internals.py, then name this release there"


def test_a_slot_that_is_lost_ends_no_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "maintain_concurrency_lease"
    monkeypatch.setattr(prefect.flow_engine, name, getattr(prefect.flow_engine, name))
    maintain = Mock()
    monkeypatch.setattr(prefect.concurrency._leases, name, maintain)
    keep_training_without_slot()
    lease = uuid4()
    # As Prefect's engine does.
    vars(prefect.flow_engine)[name](lease, 300, raise_on_lease_renewal_failure=True)
    maintain.assert_called_once_with(lease, 300, raise_on_lease_renewal_failure=False)


def test_the_revisions_of_its_database_are_found() -> None:
    assert len(known_revisions()) > 50
