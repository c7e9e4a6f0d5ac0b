"""Islands as processes: killed and continued to the same bits, refused."""

import json
import os
import signal
from pathlib import Path

import pytest
from dask_cases import dask, free_address
from flow_cases import eigen_environment, run_eigen, small_settings, started, wait_for_generation

from eigen_core.training.runs import status_of

GENERATIONS = 6
RUNS = ["far-island-1", "far-island-2"]
OPTIONS = [
    *("--islands", "2", "--generations", str(GENERATIONS), "--set", "evolution.migration_generations=2"),
    *("--set", "checkpoint.keep_every=2", "--set", "checkpoint.keep_last=1", "--json"),
]


# A walk that was killed, in test_cli_walk.py, has its runs trained by the same functions.
@pytest.mark.thorough
@pytest.mark.slow
def test_islands_that_were_killed_go_on_to_the_same_bits(
    session_folder: Path, prefect_api_url: str, tmp_path: Path
) -> None:
    environment = eigen_environment(session_folder / "islands", PREFECT_API_URL=prefect_api_url)
    command = ["islands", "far", *OPTIONS, *small_settings()]
    stores = []
    for folder in (tmp_path / "killed", tmp_path / "whole"):
        folder.mkdir()
        store = folder / "runs"
        if folder.name == "killed":
            with started(command, environment, folder) as process:
                wait_for_generation(process, store, RUNS[1], 3)
                # The runs are in sessions of their own, and end by themselves.
                os.kill(process.pid, signal.SIGKILL)
                process.wait(timeout=30)
        ended = run_eigen(command, environment=environment, folder=folder, timeout=400.0)
        assert ended.returncode == 0, ended.stderr
        rows = json.loads(ended.stdout)
        assert [(row["run"], row["seed"], row["immigrants"]) for row in rows] == [(RUNS[0], 1, 2), (RUNS[1], 2, 2)]
        stores.append(str(store))
    for run in RUNS:
        killed, whole = (status_of(store, run).history for store in stores)
        assert killed == whole


def test_islands_that_cannot_breed_are_refused_before_any_begins(tmp_path: Path) -> None:
    command = ["islands", "far", *OPTIONS, "--set", "evolution.method=cem"]
    ended = run_eigen(command, environment=eigen_environment(tmp_path / "home"), folder=tmp_path)
    assert ended.returncode == 2
    assert "evolution.islands is for the genetic algorithm, and evolution.method is cem" in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_more_islands_than_worker_threads_are_refused(tmp_path: Path) -> None:
    address = free_address()
    with dask(tmp_path, "scheduler", "--host", address):
        command = ["islands", "far", *OPTIONS, "--runs-on", address]
        ended = run_eigen(command, environment=eigen_environment(tmp_path / "home"), folder=tmp_path)
    assert ended.returncode == 2
    assert "has 0 worker threads, and 2 islands wait for each other" in ended.stderr
    assert not (tmp_path / "runs").exists()
