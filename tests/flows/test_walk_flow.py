"""The flow of a walk: cancelled in Prefect's pages, and gone on with."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from flow_cases import small_flow_config
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Cancelling

from eigen_core import generation as phases
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.housekeeping import verify_run
from eigen_core.judging.walk_forward import Walk, plan_walk
from eigen_core.market import build_panel
from eigen_core.training.runs import runs_in, status_of
from flows.server import flow_runs
from flows.server.flows import walk_flow

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("prefect_api")]


def two_folds(store: Path, name: str) -> Walk:
    market = {"holdout_days": 60, "purge_days": 30, "first_date": "2018-01-01"}
    config = small_flow_config(store, generations=2, market=market)
    return plan_walk(name, config, build_panel(config)[0].dates, 2)


def test_a_walk_that_is_cancelled_ends_its_fold_and_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = two_folds(tmp_path, "years")
    first, second = (run for run, _ in walk.runs())

    def cancelled(state: phases.TrainingState) -> Any:
        parent = flow_run.parent_flow_run_id
        assert parent is not None
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(parent), Cancelling(), force=True)
        return evolve(state)

    evolve = phases.evolve
    with monkeypatch.context() as patch:
        patch.setattr(phases, "evolve", cancelled)
        patch.setattr(flow_runs, "_LOOK_SECONDS", 0.0)
        ended = walk_flow(walk, return_state=True)
    assert ended.is_cancelled()
    assert ended.message == "The flow run 'walk years', which began it, was cancelled."
    assert ended.state_details.flow_run_id is not None
    with get_client(sync_client=True) as client:
        of_walk = client.read_flow_run(ended.state_details.flow_run_id)
    assert of_walk.state is not None
    assert of_walk.state.is_cancelled()
    assert runs_in(str(tmp_path)) == [first]
    assert status_of(str(tmp_path), first).generation == 1
    assert verify_run(str(tmp_path), first, deep=True).damages == ()
    assert not RunDirectory.open(tmp_path, first).is_locked()

    assert walk_flow(walk, return_state=True).is_completed()
    undisturbed = two_folds(tmp_path / "others", "years")
    assert walk_flow(undisturbed, return_state=True).is_completed()
    for run in (first, second):
        known = status_of(str(tmp_path), run).history
        assert [record.weights_sha256 for record in known] == [
            record.weights_sha256 for record in status_of(str(tmp_path / "others"), run).history
        ]
        assert len(known) == 2
