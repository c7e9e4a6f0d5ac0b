"""What Prefect's server takes a living training for does not end it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from flow_cases import small_flow_config
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelling, Crashed

from eigen_core import generation as phases
from flows.server.flows import train_flow


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
