"""The training flow: exact under retries and resumes, and not stopped by what is not training."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import torch
from flow_cases import NoDrawing, records, small_flow_config, train
from known import known
from prefect import State

import eigen_core.run
import tasks
from eigen_core import generation as phases
from eigen_core.checkpoint.integrity import checksummed, holdout_name
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord
from eigen_core.runs import drawing
from eigen_core.runs.drawing import Drawing
from eigen_core.runs.handle import status_of, unfinished_runs
from flows.server.flow_runs import FINISHED_NAME, NOTHING_NAME, RUNNING_NAME
from flows.server.flows import train_flow

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("prefect_api", "no_pauses")


def failing_once(function: Callable[..., T], error: Exception, *, after: bool) -> Callable[..., T]:
    """Return `function` with its second call failing, before or after it has done its work."""
    calls = count(1)

    def failing(*args: Any) -> T:
        fails = next(calls) == 2
        if fails and not after:
            raise error
        result = function(*args)
        if fails:
            raise error
        return result

    return failing


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [(phases, "evaluate", True), (phases, "train", False), (phases, "evolve", True), (RunDirectory, "save", True)],
)
@pytest.mark.thorough
def test_a_phase_that_fails_once_leaves_no_trace_in_the_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: tuple[GenerationRecord, ...],
    owner: Any,
    name: str,
    after: bool,
) -> None:
    error = OSError("a passing trouble")
    monkeypatch.setattr(owner, name, failing_once(getattr(owner, name), error, after=after))
    config = small_flow_config(tmp_path)
    assert train(config).is_completed()
    assert records(config) == expected


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (OSError("for good"), 3),
        (InputError("no"), 1),
        (FloatingPointError("learning diverged"), 1),
        (KeyError("a mistake"), 1),
    ],
)
def test_only_what_may_get_better_is_tried_again_before_the_training_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    failing = Mock(side_effect=error)
    monkeypatch.setattr(phases, "evaluate", failing)
    ended = train(small_flow_config(tmp_path))
    assert ended.is_failed()
    assert ended.result(raise_on_failure=False) is error
    assert failing.call_count == tries
    assert status_of(str(tmp_path), "run").state == "unfinished"


@pytest.mark.thorough
def test_the_holdout_is_played_when_the_run_has_all_its_generations(tmp_path: Path) -> None:
    config = small_flow_config(tmp_path, generations=2, market={"holdout": 50})
    assert train(config).is_completed()
    status = status_of(str(tmp_path), "run")
    holdout = known(status.holdout)
    assert (status.state, holdout.generation) == ("finished", 2)
    assert train(config).name == FINISHED_NAME
    # A whole document that is not the one that was written is not believed.
    path = tmp_path / "run" / holdout_name(2)
    path.write_bytes(checksummed({**holdout.model_dump(mode="json"), "champion_rewards": [1e6]}))
    assert status_of(str(tmp_path), "run").state == "unfinished"
    assert train(config).is_completed()
    assert status_of(str(tmp_path), "run").holdout == holdout
    # More generations make the result one of an earlier champion.
    assert train(config.model_copy(update={"generations": 3})).is_completed()
    assert known(status_of(str(tmp_path), "run").holdout).generation == 3


@pytest.mark.parametrize("killed_in", ["plot", "holdout"])
@pytest.mark.thorough
def test_a_run_that_ended_before_its_holdout_is_unfinished_and_plays_it_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    config = small_flow_config(tmp_path, generations=2, market={"holdout": 50})
    assert train(config, "undisturbed").is_completed()
    with monkeypatch.context() as patch:
        module, name = (NoDrawing, "write") if killed_in == "plot" else (phases, "hold_out")
        patch.setattr(module, name, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(config)
    status = status_of(str(tmp_path), "run")
    assert (status.state, status.generation, status.holdout) == ("unfinished", 2, None)
    assert [run.name for run in unfinished_runs(str(tmp_path))] == ["run"]
    monkeypatch.setattr(NoDrawing, "begun", 0)
    for phase in ("evaluate", "train", "evolve"):
        monkeypatch.setattr(phases, phase, Mock(side_effect=KeyboardInterrupt))
    assert train_flow(config, resume=True, return_state=True).name == "Completed"
    assert NoDrawing.begun == 1
    status = status_of(str(tmp_path), "run")
    assert (status.state, status.holdout) == ("finished", status_of(str(tmp_path), "undisturbed").holdout)
    assert train_flow(config, resume=True, return_state=True).name == NOTHING_NAME


@pytest.mark.thorough
def test_a_failing_plot_is_a_failed_task_and_nothing_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: tuple[GenerationRecord, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(eigen_core.run, "Drawing", Drawing)
    monkeypatch.setattr(drawing, "_DRAW", "import eigen_core.no_such_module")
    seen: list[State[Any]] = []
    monkeypatch.setattr(tasks.TASKS["plot"], "on_failure_hooks", [lambda *ended: seen.append(ended[-1])])
    config = small_flow_config(tmp_path, reporting={"plot_every": 1})
    assert train(config).is_completed()
    assert ["No module named 'eigen_core.no_such_module'" in str(state.message) for state in seen] == [True] * 3
    assert caplog.text.count("No module named") >= 3
    assert records(config) == expected


def test_what_cannot_be_trained_makes_no_run(tmp_path: Path) -> None:
    ended = train(small_flow_config(tmp_path, replay={"capacity": 230, "minimum": 200}))
    assert isinstance(ended.result(raise_on_failure=False), InputError)
    assert list(tmp_path.iterdir()) == []
    ended = train_flow(small_flow_config(tmp_path), "run", resume=True, return_state=True)
    assert isinstance(ended.result(raise_on_failure=False), InputError)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    config = small_flow_config(tmp_path, generations=1)
    run = RunDirectory.create(tmp_path, "run", config.model_dump(mode="json"))
    with run.lock():
        ended = train(config)
    assert (ended.is_completed(), ended.name) == (True, RUNNING_NAME)
    assert "in use by process" in str(ended.message)
    assert status_of(str(tmp_path), "run").generation == 0


def test_no_more_threads_compute_than_there_are_cores_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before, evaluate = list[int](), torch.get_num_threads(), phases.evaluate

    def looking(state: phases.TrainingState) -> Any:
        seen.append(torch.get_num_threads())
        return evaluate(state)

    monkeypatch.setattr(phases, "evaluate", looking)
    monkeypatch.setattr("eigen_core.machine.performance.usable_cores", lambda: 2)
    try:
        torch.set_num_threads(3)
        assert train(small_flow_config(tmp_path, generations=1, threads=0)).is_completed()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [2]
