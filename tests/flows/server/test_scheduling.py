"""A flow without a run resumes the newest unfinished one; a training that the server mistook for crashed goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from flow_cases import small_flow_config
from prefect import State
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Cancelling, Crashed
from store_cases import run_config, save_generations

from eigen_core import generation as phases
from eigen_core.checkpoint.location import RunLocation
from eigen_core.config import Config
from eigen_core.training.journals import ATTEMPTS, MOST_ATTEMPTS, BlockedError, count_attempt, has_failed_too_often
from eigen_core.training.runs import status_of
from flows.server.environment import BLOCKED_NAME, NOTHING_NAME
from flows.server.flows import train_flow
from flows.server.training import unfinished_runs


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EIGEN_STORE", "CLOUD_BUCKET"):
        monkeypatch.delenv(name, raising=False)


def scheduled(store: Path) -> State[Any]:
    """What a schedule starts: it knows the store, nothing else."""
    return train_flow(small_flow_config(store), resume=True, return_state=True)


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    store = tmp_path / "store" if request.param == "folder" else f"{request.getfixturevalue('gcs_bucket')}/prefix"
    return run_config(store, tmp_path / "runs")


def test_the_unfinished_run_that_was_trained_last_is_chosen(config: Config) -> None:
    store = config.checkpoint.store
    assert unfinished_runs(store) == []
    save_generations(config, "finished", 1, 2, 3)
    assert unfinished_runs(store) == []
    save_generations(config, "zero-day", 1)
    save_generations(config, "old", 1)
    assert unfinished_runs(store)[0] == "old"
    save_generations(config, "zero-day", 2)
    assert unfinished_runs(store)[0] == "zero-day"


def test_three_vain_attempts_are_enough_and_progress_is_a_new_beginning(config: Config) -> None:
    location = save_generations(config, "run", 1)
    for _ in range(MOST_ATTEMPTS):
        assert not has_failed_too_often(location, 2)
        count_attempt(location, 2)
    assert has_failed_too_often(location, 2)
    with pytest.raises(BlockedError, match=r"'run' is blocked: 3 scheduled resumes since .* generation 2"):
        count_attempt(location, 2)
    assert len(ATTEMPTS.read(location)) == MOST_ATTEMPTS
    elsewhere = config.checkpoint.model_copy(update={"local": f"{config.checkpoint.local}-2"})
    assert has_failed_too_often(RunLocation.of(elsewhere, "run"), 2)
    count_attempt(location, 3)
    assert not has_failed_too_often(location, 3)


@pytest.mark.usefixtures("prefect_api")
class TestFlow:
    @pytest.mark.thorough
    def test_a_run_that_always_fails_is_given_up_and_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(state: phases.TrainingState) -> None:  # noqa: ARG001
            raise FloatingPointError("learning diverged")

        config = small_flow_config(tmp_path, generations=2)
        with monkeypatch.context() as patch:
            patch.setattr(phases, "evolve", failing)
            assert train_flow(config, "mine", return_state=True).is_failed()
            for _ in range(MOST_ATTEMPTS):
                ended = scheduled(tmp_path)
                assert (ended.is_failed(), ended.name) == (True, "Failed")
        assert status_of(str(tmp_path), "mine").state == "blocked"
        for _ in range(2):
            ended = scheduled(tmp_path)
            assert (ended.is_failed(), ended.name) == (True, BLOCKED_NAME)
            assert "eigen resume mine" in str(ended.message)
        # Whoever asks for this very run is not refused.
        assert train_flow(config, "mine", resume=True, return_state=True).is_completed()
        assert scheduled(tmp_path).name == NOTHING_NAME


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
