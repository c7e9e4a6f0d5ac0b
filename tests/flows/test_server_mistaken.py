"""What Prefect's server takes a living training for does not end it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import prefect.flow_engine
import pytest
from flow_cases import small_flow_config
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelling, Crashed

import flows.train
from eigen_core import generation as phases
from flows.train import train_flow


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize(
    ("made", "generations", "expected"),
    [(Crashed, 1, ["Crashed", "Running", "Completed"]), (Cancelling, 50, ["Cancelling", "Cancelled"])],
)
@pytest.mark.thorough
def test_a_training_that_was_taken_for_crashed_goes_on_and_one_that_was_cancelled_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[], State[Any]],
    generations: int,
    expected: list[str],
) -> None:
    evolve = phases.evolve

    def taken_for_crashed(state: phases.TrainingState) -> Any:
        client = get_client(sync_client=True)
        client.set_flow_run_state(UUID(flow_run.id), made(), force=True)
        return evolve(state)

    monkeypatch.setattr(phases, "evolve", taken_for_crashed)
    ended = train_flow(small_flow_config(tmp_path, generations=generations), "mine", return_state=True)
    assert ended.name == expected[-1]
    assert ended.state_details.flow_run_id is not None
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(ended.state_details.flow_run_id)
    assert [state.name for state in states][-len(expected) :] == expected


def test_a_slot_that_is_lost_ends_no_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    maintain = Mock()
    monkeypatch.setattr(flows.train, "maintain_concurrency_lease", maintain)
    lease = uuid4()
    # As Prefect's engine does.
    vars(prefect.flow_engine)["maintain_concurrency_lease"](lease, 300, raise_on_lease_renewal_failure=True)
    maintain.assert_called_once_with(lease, 300, raise_on_lease_renewal_failure=False)
