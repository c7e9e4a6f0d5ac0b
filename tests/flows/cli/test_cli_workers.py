"""Runs with each learner, and with agents that other processes compute: killed, they end with the same bits."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dask_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until
from flow_cases import eigen_environment, run_eigen, small_flow_config, small_settings, started, wait_for_generation
from gcs_emulator import GcsEmulator
from science_cases import LEARNER_OF_TASK

from benchmarks.kill_training import facts_of
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store_location import open_store
from eigen_core.config import registry
from eigen_core.runs.handle import status_of

GENERATIONS = 6


@pytest.mark.thorough
def test_whatever_is_killed_the_run_ends_with_the_bits_of_one_process(
    gcs_bucket: str, gcs_emulator: GcsEmulator, session_folder: Path, tmp_path: Path, prefect_api_url: str
) -> None:
    assert gcs_emulator.url
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli", PREFECT_API_URL=prefect_api_url)
    settings = [*small_settings(learner={"gradient_steps": 60}), "--store", store, "--generations", str(GENERATIONS)]
    run_eigen(["train", "--run", "alone", *settings], environment=environment, folder=tmp_path, code=0)

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
    assert outcome(store, "led") == outcome(store, "alone")
    assert any(entry.exchanged_bytes for entry in status_of(store, "led").telemetry)


def outcome(store: str, run: str) -> list[Mapping[str, Any]]:
    return [record.model_dump() for record in status_of(store, run).history]


FEW_GENERATIONS = 4


# Other tests of commands kill runs with DDPG, and each learner is resumed in one process.
@pytest.mark.slow
@pytest.mark.parametrize("learner", registry.LEARNERS)
def test_a_killed_run_goes_on_to_the_end_of_an_uninterrupted_one(
    learner: str, with_server: dict[str, str], tmp_path: Path
) -> None:
    task = {"task": LEARNER_OF_TASK[learner]} if learner in LEARNER_OF_TASK else {}
    sections = task | {
        "learner": {"algorithm": learner},
        "market": {"holdout_days": 60},
        "reporting": {"plot_every": 1},
    }
    config = small_flow_config(tmp_path / "runs", generations=FEW_GENERATIONS, **sections)

    def command(name: str) -> list[str]:
        return ["train", "--run", name, "--generations", str(FEW_GENERATIONS), *small_settings(**sections)]

    run_eigen(command("whole"), environment=with_server, folder=tmp_path, timeout=300.0, code=0)
    with started(command("killed"), with_server, tmp_path) as process:
        wait_for_generation(process, tmp_path / "runs", "killed", 2)
        os.killpg(process.pid, signal.SIGKILL)
    run_eigen(["resume", "killed"], environment=with_server, folder=tmp_path, timeout=300.0, code=0)
    ends = [facts_of(config.model_dump(mode="json"), name, {}) for name in ("whole", "killed")]
    assert ends[0] == ends[1]
    whole, killed = (status_of(str(tmp_path / "runs"), name) for name in ("whole", "killed"))
    assert whole.history[-1].learning is not None
    assert whole.holdout is not None
    assert whole.holdout == killed.holdout
