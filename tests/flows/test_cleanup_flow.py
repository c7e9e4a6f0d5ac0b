"""The flow that cleans a store, and what flows show in Prefect of stores and uploads."""

from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy
from flow_cases import small_flow_config
from gcs_emulator import GcsEmulator
from prefect.artifacts import Artifact
from store_cases import objects_of, run_config, save_generations
from upload_cases import whole_generations

from eigen_core import generation
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.config import Config
from flows.server.artifacts import artifact_key
from flows.server.flow_runs import FINISHED_NAME
from flows.server.flows import cleanup_flow, train_flow

pytestmark = pytest.mark.usefixtures("prefect_api")


def shown(key: str) -> str:
    """What an artifact shows."""
    found: Any = Artifact.get(key)
    return str(found.data)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's store of two runs of four generations each, of which two stay."""
    monkeypatch.setenv("EIGEN_STORE", str(tmp_path / "store"))
    for name in ("first", "second"):
        save_generations(run_config(tmp_path / "store", tmp_path, keep_last=2, keep_every=0), name, *range(1, 5))
    return tmp_path / "store"


def test_every_run_of_a_store_is_cleaned_and_named(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = [RunLocation.of(run_config(store, tmp_path).checkpoint, name) for name in ("first", "second")]
    before = [objects_of(location) for location in places]
    said = cleanup_flow(0.0, dry_run=True)
    assert [objects_of(location) for location in places] == before
    assert f"Dry run of a cleanup of {store}: nothing is removed" in caplog.text
    named = [message for message in caplog.messages if message.startswith(("first: 2 generations, ", "second: 2 "))]
    caplog.clear()
    assert cleanup_flow(0.0) == said > 0
    assert f"Cleanup of the runs in {store}" in caplog.text
    assert [message for message in named if message in caplog.messages] == named
    assert len(named) == 2
    assert [whole_generations(location.local) for location in places] == [[3, 4]] * 2


def bucket_config(url: str, **checkpoint: Any) -> Config:
    config = small_flow_config(Path("runs"), checkpoint={"upload_mb_per_second": 0, **checkpoint})
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": url})})


@pytest.mark.usefixtures("quick_retries", "no_pauses", "user_folder")
@pytest.mark.thorough
def test_a_training_whose_store_has_gone_away_fails_and_says_what_is_missing(
    fault_proxy: FaultProxy, gcs_emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"gs://{gcs_emulator.make_bucket()}"
    config = bucket_config(url, finish_seconds=0.5)
    location = RunLocation.of(config.checkpoint, "away")
    evolve = generation.evolve

    def going_away(*args: Any) -> Any:
        if not any(manifest.generation for manifest in location.local.manifests()):
            fault_proxy.add(Fault("status", method="POST|PUT", path="upload", times=None))
        return evolve(*args)

    with monkeypatch.context() as patch:
        patch.setattr(generation, "evolve", going_away)
        ended = train_flow(config, "away", return_state=True)
    error = ended.result(raise_on_failure=False)
    assert isinstance(error, StoreUnavailableError), error
    assert f"Run 'away' is not completely in {url}" in str(error)
    assert "generation 1, generation 2, generation 3" in str(error)
    page = shown(artifact_key("away"))
    assert page.startswith("# Ended after generation 3 of 3 (100 %)\n\n**StoreUnavailableError: Run 'away' is not")
    assert location.stored.manifests() == []
    fault_proxy.clear()
    assert train_flow(bucket_config(url), "away", return_state=True).name == FINISHED_NAME
    assert whole_generations(location.stored) == [1, 2, 3]
