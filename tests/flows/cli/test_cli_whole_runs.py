"""Whole runs that workers of a scheduler train: the end is that of this machine alone, whatever is killed."""

import json
import os
import signal
from pathlib import Path

import pytest
from dask_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until
from flow_cases import eigen_environment, run_eigen, small_settings, started
from gcs_emulator import GcsEmulator

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.location import open_store
from eigen_core.config.loading import load_config
from eigen_core.config.model import CheckpointConfig
from eigen_core.judging.walks import plan_walk, with_purge
from eigen_core.market import build_panel
from eigen_core.training.runs import Run, runs_in, status_of
from flows.server.flows import walk_flow

pytestmark = pytest.mark.thorough

MARKET = {"holdout_days": 60, "first_date": "2018-01-01"}


@pytest.mark.parametrize(
    ("generations", "gradient_steps", "killed"),
    [pytest.param(2, 2, False, id="undisturbed"), pytest.param(8, 40, True, id="killed", marks=pytest.mark.slow)],
)
def test_folds_that_workers_train_end_with_the_bits_of_one_machine(
    gcs_bucket: str,
    gcs_emulator: GcsEmulator,
    session_folder: Path,
    tmp_path: Path,
    prefect_api_url: str,
    monkeypatch: pytest.MonkeyPatch,
    generations: int,
    gradient_steps: int,
    killed: bool,
) -> None:
    """Slow: a worker, the command and the scheduler are killed, each once."""
    assert gcs_emulator.url
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli", PREFECT_API_URL=prefect_api_url)
    settings = [
        *small_settings(market=MARKET, learner={"gradient_steps": gradient_steps}),
        *("--set", f"generations={generations}", "--set", f"checkpoint.store={store}"),
        *("--set", "checkpoint.lease_seconds=10"),
    ]
    options = ["--folds", "2", *settings, "--json", "--jobs", "2"]
    address = free_address()
    command = ["walk", "led", *options, "--runs-on", address]
    runs = [f"led-fold-{fold}-seed-1" for fold in (1, 2)]

    def generation(run: str) -> int:
        newest = RunContents(open_store(store), run).newest_manifest()
        return 0 if newest is None else newest.generation

    def is_trained(run: str) -> bool:
        return Run(CheckpointConfig(store=store, local=str(tmp_path / "none")), run).is_running()

    monkeypatch.setenv("PREFECT_API_URL", prefect_api_url)
    monkeypatch.chdir(tmp_path)
    with (
        dask(tmp_path, "scheduler", "--host", address) as scheduler,
        dask_worker(tmp_path / "one", address) as one,
        dask_worker(tmp_path / "two", address),
    ):
        if killed:
            with started(command, environment, tmp_path) as leader:
                wait_until(lambda: all(generation(run) >= 1 for run in runs), leader)
                one.kill()
                os.killpg(leader.pid, signal.SIGKILL)
            # Nothing trains on for a process that leads no more.
            wait_until(lambda: not any(is_trained(run) for run in runs), scheduler)
            assert all(generation(run) < generations for run in runs)
            with started(command, environment, tmp_path) as leader:
                wait_until(lambda: any(is_trained(run) for run in runs), leader)
                scheduler.kill()
                said = leader.communicate(timeout=WAIT_SECONDS)
            assert leader.returncode == 1, said
            assert "The scheduler cannot be reached any more. The same command goes on." in "".join(said)
            command = ["walk", "led", *options]
        ended = run_eigen(command, environment=environment, folder=tmp_path, timeout=300.0)
    assert ended.returncode == 0, ended.stderr
    assert [row["run"] for row in json.loads(ended.stdout)["folds"]] == runs
    # In this process, which need not begin as several others must.
    config = with_purge(load_config(None, settings[1::2]), None)
    alone = plan_walk("alone", config, build_panel(config)[0].dates, 2)
    assert walk_flow(alone, return_state=True).is_completed()
    for run in runs:
        assert run in runs_in(store)
        other = status_of(store, run.replace("led", "alone"))
        assert status_of(store, run).config == other.config
        assert status_of(store, run).history == other.history
