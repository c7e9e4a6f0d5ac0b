"""A run with agents that other processes compute: whatever is killed, it ends with the same bits."""

import os
import signal
from pathlib import Path

import pytest
from dask_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until
from flow_cases import eigen_environment, run_eigen, small_flow_config, small_settings, started
from gcs_emulator import GcsEmulator
from training_cases import history_of

from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store_location import open_store
from eigen_core.runs.handle import status_of

GENERATIONS = 6


@pytest.mark.thorough
def test_whatever_is_killed_the_run_ends_with_the_bits_of_one_process(
    gcs_bucket: str, gcs_emulator: GcsEmulator, session_folder: Path, tmp_path: Path, prefect_api_url: str
) -> None:
    assert gcs_emulator.url
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli", PREFECT_API_URL=prefect_api_url)
    learner = {"gradient_steps": 60}
    settings = [*small_settings(learner=learner), "--store", store, "--generations", str(GENERATIONS)]

    address = free_address()
    contents = RunContents(open_store(store), "led")

    def generation() -> int:
        newest = contents.newest_manifest()
        return 0 if newest is None else newest.generation

    arguments = ["train", "--run", "led", *settings, "--set", f"scheduler={address}"]
    with (
        dask(tmp_path, "scheduler", "--host", address) as scheduler,
        dask_worker(tmp_path / "one", address) as one,
        dask_worker(tmp_path / "two", address),
    ):
        with started(arguments, environment, tmp_path) as leader:
            wait_until(lambda: generation() >= 1, leader)
            one.kill()
            wait_until(lambda: generation() >= 2, leader)
            os.killpg(leader.pid, signal.SIGKILL)
        with started(arguments, environment, tmp_path) as leader:
            reached = generation()
            wait_until(lambda: generation() > reached, leader)
            scheduler.kill()
            said = leader.communicate(timeout=WAIT_SECONDS)
    assert leader.returncode == 1, said
    assert f"scheduler {address} cannot be reached any more" in "".join(said)
    assert "Traceback" not in "".join(said)
    assert generation() < GENERATIONS

    run_eigen(
        ["resume", "led", "--store", store, "--set", "scheduler=", "--set", "workers=2"],
        environment=environment,
        folder=tmp_path,
        code=0,
    )
    led = status_of(store, "led")
    assert led.history == history_of(small_flow_config(tmp_path, generations=GENERATIONS, learner=learner))
    assert any(entry.exchanged_bytes for entry in led.telemetry)
