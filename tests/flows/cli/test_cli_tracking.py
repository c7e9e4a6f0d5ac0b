"""Trackers of trainings that are processes: killed and continued, failed and continued."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flow_cases import run_eigen, small_settings, started, wait_for_generation

from eigen_core.reporting.trackers import metrics_since
from eigen_core.training.runs import status_of

pytestmark = pytest.mark.thorough

GENERATIONS = 4


def tensorboard_values(folder: Path) -> list[tuple[str, int]]:
    """The tags and steps in the only file of a folder."""
    loader: Any = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (path,) = folder.iterdir()
    events = loader.EventFileLoader(str(path)).Load()
    return [(value.tag, event.step) for event in events for value in event.summary.value]


def arguments(name: str, **reporting: str) -> list[str]:
    settings = {f"reporting.{key}": value for key, value in reporting.items()}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["train", "--run", name, "--generations", str(GENERATIONS), *small_settings(), *options]


def require_each_once(found: list[tuple[str, int]], folder: Path, name: str) -> None:
    """Check that tags and steps are those of the history, none of them twice."""
    status = status_of(str(folder / "runs"), name)
    assert status.generation == GENERATIONS
    wanted = {(tag, step) for step, metrics in metrics_since(0, status.history, status.telemetry) for tag in metrics}
    counts = Counter(found)
    assert set(counts.values()) == {1}
    # The stored telemetry of a generation is written before its checkpoint has taken its time.
    assert {tag for tag, _ in counts.keys() ^ wanted} <= {"configuration", "telemetry/checkpoint_seconds"}


@pytest.mark.slow
def test_a_run_that_was_killed_and_continued_has_each_value_once(with_server: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    from mlflow import MlflowClient

    command = arguments("killed", trackers="tensorboard,mlflow")
    with started(command, with_server, tmp_path) as process:
        wait_for_generation(process, tmp_path / "runs", "killed", 2)
        os.killpg(process.pid, signal.SIGKILL)
    ended = run_eigen(command, environment=with_server, folder=tmp_path, timeout=300.0, code=0)
    assert "warning" not in ended.stderr
    require_each_once(tensorboard_values(tmp_path / "runs" / "killed" / "tensorboard"), tmp_path, "killed")
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("eigen").experiment_id])
    steps = [(name, one.step) for name in run.data.metrics for one in client.get_metric_history(run.info.run_id, name)]
    require_each_once(steps, tmp_path, "killed")
    assert run.info.status == "FINISHED"
    # The run's files are still only its own.
    run_eigen(["verify", "killed", "--deep"], environment=with_server, folder=tmp_path, timeout=300.0, code=0)
