"""A run in a bucket, launched on a worker whose environment names it, survives a kill with all that was uploaded."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from gcs_emulator import GcsEmulator
from operated import BUSY_SECONDS, GENERATIONS, Operated, Undisturbed, outcome

from eigen_core.config.model import CheckpointConfig
from eigen_core.housekeeping import verify_run
from eigen_core.runs.handle import Run, status_of

pytestmark = pytest.mark.thorough


@pytest.fixture
def elsewhere(
    operated: Operated, gcs_bucket: str, gcs_emulator: GcsEmulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    """A worker that keeps its runs in a bucket; the other one of its server has a break."""
    environment = {"EIGEN_STORE": f"{gcs_bucket}/runs", "STORAGE_EMULATOR_HOST": gcs_emulator.url}
    folder = tmp_path_factory.mktemp("elsewhere")
    with operated.worker_paused(), Operated(folder, api=operated.api, environment=environment) as found:
        found.up()
        yield found


def test_a_killed_training_in_a_bucket_goes_on_to_the_same_bits(
    elsewhere: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    run = "bucket"
    store = elsewhere.environment["EIGEN_STORE"]
    settings_there = CheckpointConfig(store=store)
    # Until it has run out, no other process takes over what a killed one has left.
    lease = ("--set", "checkpoint.lease_seconds=30")
    said = elsewhere.eigen("launch", "--run", run, "--generations", str(GENERATIONS), *settings, *lease).stdout
    assert "The run fits" in said

    def generation() -> int:
        return status_of(store, run).generation if Run(settings_there, run).exists else 0

    elsewhere.wait(BUSY_SECONDS, lambda: generation() >= 1, "generation 1 in the bucket")
    elsewhere.engine().kill()
    killed = time.monotonic()
    known = generation()
    assert known < GENERATIONS
    elsewhere.wait(BUSY_SECONDS, lambda: generation() > known, "the next generation in the bucket")
    resumed = time.monotonic() - killed
    assert elsewhere.finish(run) == ["Crashed", "Completed"]
    assert verify_run(store, run, deep=True).damages == ()
    status = json.loads(elsewhere.eigen("status", "--json").stdout)
    assert (status["run"]["run"], status["run"]["state"], status["run"]["store"]) == (run, "finished", store)
    assert outcome(status_of(store, run)) == undisturbed.outcome(GENERATIONS)
    # Without what this machine has of it, too.
    (local,) = elsewhere.store.rglob(f"runs/{run}")
    local.rename(elsewhere.folder / "gone")
    assert outcome(status_of(store, run)) == undisturbed.outcome(GENERATIONS)
    measured(f"flow killed -9, runs in a bucket: next generation is there after {resumed:.1f} s")
