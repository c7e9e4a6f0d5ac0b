"""A run whose agents other processes compute, as a user trains it: all is killed once, and the end is the same."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dask_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until
from flow_cases import eigen_environment, run_eigen, small_settings, started
from gcs_emulator import GcsEmulator
from typer.testing import CliRunner

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.location import open_store
from eigen_core.training.runs import status_of
from flows.cli.app import app

pytestmark = pytest.mark.thorough

GENERATIONS = 6


def test_whatever_is_killed_the_run_ends_with_the_bits_of_one_process(
    gcs_bucket: str, gcs_emulator: GcsEmulator, session_folder: Path, tmp_path: Path, prefect_api_url: str
) -> None:
    assert gcs_emulator.url
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli", PREFECT_API_URL=prefect_api_url)
    settings = [*small_settings(learner={"gradient_steps": 60}), "--store", store, "--generations", str(GENERATIONS)]
    alone = run_eigen(["train", "--run", "alone", *settings], environment=environment, folder=tmp_path)
    assert alone.returncode == 0, alone.stderr

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
            listed = json.loads(shown(["workers", address, "--json"]))
            assert [worker["runs"] for worker in listed] == [["led"]]
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

    ended = run_eigen(
        ["resume", "led", "--store", store, "--set", "scheduler=", "--set", "workers=2"],
        environment=environment,
        folder=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert outcome(store, "led") == outcome(store, "alone")
    assert any(entry.exchanged_bytes for entry in status_of(store, "led").telemetry)
    refused = run_eigen(
        ["resume", "led", "--store", store, "--set", "seed=2"], environment=environment, folder=tmp_path
    )
    assert refused.returncode == 2
    assert "seed" in refused.stderr


def outcome(store: str, run: str) -> list[Mapping[str, Any]]:
    return [record.model_dump() for record in status_of(store, run).history]


def shown(arguments: list[str]) -> str:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout
