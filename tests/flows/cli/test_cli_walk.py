"""Walks as processes: killed and continued, refused."""

import json
import os
import signal
from pathlib import Path

import pytest
from flow_cases import eigen_environment, run_eigen, small_settings, started, wait_for_generation
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from eigen_core.training.runs import runs_in, status_of

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def environment(session_folder: Path, prefect_api_url: str) -> dict[str, str]:
    """A user's environment, with a server."""
    return eigen_environment(session_folder / "walk", PREFECT_API_URL=prefect_api_url)


MARKET = {"holdout_days": 60, "first_date": "2018-01-01"}
COMMAND = ["walk", "mine", "--folds", "2", "--generations", "2", *small_settings(market=MARKET), "--json"]


def test_a_walk_that_was_killed_goes_on_and_trains_nothing_twice(
    environment: dict[str, str], tmp_path: Path, prefect_api_url: str
) -> None:
    store = tmp_path / "runs"
    with started(COMMAND, environment, tmp_path) as process:
        wait_for_generation(process, store, "mine-fold-2-seed-1", 1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    first = status_of(str(store), "mine-fold-1-seed-1")
    assert first.state == "finished"
    ended = run_eigen(COMMAND, environment=environment, folder=tmp_path, timeout=400.0)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert runs_in(str(store)) == ["mine-fold-1-seed-1", "mine-fold-2-seed-1"]
    assert status_of(str(store), "mine-fold-1-seed-1").history == first.history
    second = status_of(str(store), "mine-fold-2-seed-1")
    assert (second.generation, second.config.market.last_date) == (2, document["last"])
    assert [row["run"] for row in document["folds"]] == ["mine-fold-1-seed-1", "mine-fold-2-seed-1"]
    assert (tmp_path / "runs" / "walks" / "mine" / "equity.png").exists()
    with temporary_settings({PREFECT_API_URL: prefect_api_url}), get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(like_="walk mine"))
        parents = {run.id for run in client.read_flow_runs(flow_run_filter=named)}
        below = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(like_="mine-fold-2")))
        tasks = [client.read_task_run(run.parent_task_run_id) for run in below if run.parent_task_run_id]
    assert {task.flow_run_id for task in tasks} <= parents
    assert len(tasks) == len(below) == 2


def test_a_walk_that_is_cancelled_in_its_page_ends_with_a_sentence(
    environment: dict[str, str], tmp_path: Path, prefect_api_url: str
) -> None:
    store = tmp_path / "runs"
    command = ["walk", "long", "--folds", "2", "--generations", "1000", *small_settings(market=MARKET), "--json"]
    with started(command, environment, tmp_path) as process:
        wait_for_generation(process, store, "long-fold-1-seed-1", 1)
        with temporary_settings({PREFECT_API_URL: prefect_api_url}), get_client(sync_client=True) as client:
            named = FlowRunFilter(name=FlowRunFilterName(like_="walk long"))
            [parent] = client.read_flow_runs(flow_run_filter=named)
            client.set_flow_run_state(parent.id, Cancelling())
            _, error = process.communicate(timeout=60)
            after = client.read_flow_run(parent.id).state
    assert process.returncode == 1
    said = " ".join(error.split())
    assert "The flow run 'walk long', which began it, was cancelled. The last checkpoint is generation" in said
    assert "With the same command the walk goes on." in said
    assert "Traceback" not in error
    assert after is not None
    assert after.is_cancelled()
    assert runs_in(str(store)) == ["long-fold-1-seed-1"]


def test_what_cannot_be_walked_is_refused_in_a_sentence(environment: dict[str, str], tmp_path: Path) -> None:
    for arguments, sentence in (
        (["--folds", "900"], "days are enough for 30"),
        (["--train-days", "some"], "give a number of days, or growing"),
    ):
        ended = run_eigen(["walk", "mine", *arguments], environment=environment, folder=tmp_path)
        assert ended.returncode == 2, ended.stderr
        assert sentence in ended.stderr
    assert not (tmp_path / "runs").exists()
