"""`eigen verify`, `eigen clean` and `eigen export`: exit codes, sentences, JSON, and which store they look at."""

from pathlib import Path

import pytest
import torch
from cli_cases import document, eigen, refused
from store_cases import champion_weights, objects_of, run_config, save_generations
from upload_cases import locked_by_another_process

from eigen_core.checkpoint.export import read_champion
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.store import LocalStore

CLEANED_KEYS = {"run", "skipped", "generations", "blobs", "local_generations", "local_blobs", "bytes_freed"}
DAMAGE_KEYS = ["generation", "file", "path", "what"]


@pytest.fixture
def location(user_folder: Path) -> RunLocation:  # noqa: ARG001 - in that folder
    """A run of five generations in `runs`, of which two stay, and the working folder in which that is."""
    return save_generations(run_config("runs", Path("runs"), keep_last=2, keep_every=0), "run", *range(1, 6))


def damage(location: RunLocation, generation: int, file: str) -> str:
    """Change a byte of a file of a generation, and return its name."""
    manifest = next(found for found in location.local.manifests() if found.generation == generation)
    sha256 = manifest.entry(file).sha256
    path = location.root / "run" / "blobs" / sha256[:2] / sha256
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    return f"blobs/{sha256[:2]}/{sha256}"


@pytest.mark.usefixtures("location")
def test_a_whole_run_is_verified_with_exit_code_0() -> None:
    assert eigen("verify", "run", code=0).stdout.startswith("Run run is whole: 5 generations (")
    found = document("verify", "run", "--deep")
    expected = {"run": "run", "whole": True, "deep": True, "generations": [1, 2, 3, 4, 5], "damages": []}
    assert found == {**expected, "unreferenced_files": 0, "unreferenced_bytes": 0}


def test_files_of_a_newest_generation_whose_manifest_is_gone_are_counted(location: RunLocation) -> None:
    newest = max((location.root / "run" / "manifests").iterdir())
    named = RunContents(LocalStore(location.root), "run").manifest(f"manifests/{newest.name}")
    assert isinstance(named, Manifest)
    newest.unlink()
    found = document("verify", "run")
    assert found["generations"] == [1, 2, 3, 4]
    assert 0 < found["unreferenced_files"] <= len(named.blobs)
    assert f"{found['unreferenced_files']} files (" in eigen("verify", "run").stdout


def test_a_damaged_run_is_verified_with_exit_code_1_and_every_file_named(location: RunLocation) -> None:
    flipped = damage(location, 5, "population.safetensors")
    assert eigen("verify", "run").exit_code == 0
    cut = min((location.root / "run" / "manifests").iterdir())
    cut.write_bytes(cut.read_bytes()[:-10])
    (location.root / "run" / "config.json").unlink()
    said = eigen("verify", "run", "--deep", code=1).stdout
    paths = {flipped, f"manifests/{cut.name}", "config.json"}
    assert {path: said.count(path) for path in paths} == dict.fromkeys(paths, 1)
    found = document("verify", "run", "--deep", code=1)
    assert not found["whole"]
    assert [list(row) for row in found["damages"]] == [DAMAGE_KEYS] * len(found["damages"])
    assert {row["path"] for row in found["damages"]} == paths
    named = next(row for row in found["damages"] if row["path"] == flipped)
    assert (named["generation"], named["file"]) == (5, "population.safetensors")
    assert found["generations"] == [2, 3, 4, 5]


def test_a_dry_run_says_what_the_real_one_then_does(location: RunLocation) -> None:
    before = objects_of(location)
    said = document("clean", "run", "--dry-run", "--older-than", "0s")
    text = eigen("clean", "run", "--dry-run", "--older-than", "0s").stdout
    assert objects_of(location) == before
    assert [set(row) for row in said] == [CLEANED_KEYS]
    assert said[0]["generations"] == [1, 2, 3]
    assert f"run: generations 1, 2, 3 and {said[0]['blobs']} files would be removed, " in text
    assert text.endswith("MB would be freed.\n")
    done = document("clean", "run", "--older-than", "0s")
    assert done == said
    assert done[0]["bytes_freed"] == sum(before.values()) - sum(objects_of(location).values()) > 0
    again = eigen("clean").stdout
    assert again == "run: nothing to remove.\n0.0 MB freed.\n"


def test_files_of_no_generation_stay_for_a_day_unless_told_otherwise(location: RunLocation) -> None:
    planted = f"run/blobs/ab/{'ab' * 32}"
    location.store.put(planted, b"x" * 2_000_000)
    (cleaned,) = document("clean")
    assert cleaned["generations"] == [1, 2, 3]
    # The files of the generations that went, and not the young one of none.
    assert cleaned["blobs"] > 0
    assert planted in objects_of(location)
    text = eigen("clean", "--older-than", "0s").stdout
    assert "run: no generation and " in text
    assert "2.0 MB freed." in text
    assert planted not in objects_of(location)


def test_a_run_in_use_is_left_alone_and_named(location: RunLocation) -> None:
    save_generations(run_config("runs", Path("runs"), keep_last=1), "second", 1, 2)
    before = objects_of(location)
    with locked_by_another_process(location.root) as number:
        assert f"Run 'run' is in use by process {number} on " in refused("clean", "run", "--older-than", "0s")
        first, second, _ = eigen("clean", "--older-than", "0s", code=0).stdout.splitlines()
        assert first.startswith(f"run: Run 'run' is in use by process {number} on ")
        assert second.startswith("second: generation 1 and ")
        run, other = document("clean")
        assert "in use" in run["skipped"]
        assert other["skipped"] is None
    assert objects_of(location) == before


def test_export_writes_a_file_that_can_be_read(location: RunLocation, tmp_path: Path) -> None:
    ended = eigen("export", "run", "--champion", "out/champion.safetensors", code=0)
    assert ended.stdout.startswith("out/champion.safetensors holds the champion of run 'run'")
    champion = read_champion(tmp_path / "out" / "champion.safetensors")
    assert torch.equal(champion.weights, champion_weights(5))
    manifest = location.local.newest_manifest()
    assert manifest is not None
    assert champion.config == manifest.config
    assert eigen("export", "run").exit_code == 2


@pytest.mark.usefixtures("location")
def test_the_store_is_the_option_else_the_environments_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_generations(run_config(tmp_path / "named", Path("runs")), "first", 1)
    save_generations(run_config(tmp_path / "given", Path("runs")), "second", 1)
    assert document("verify", "run")["whole"]
    monkeypatch.setenv("EIGEN_STORE", str(tmp_path / "named"))
    assert document("verify", "first")["whole"]
    assert "its runs are first" in refused("verify", "run")
    assert document("verify", "second", "--store", str(tmp_path / "given"))["whole"]
    assert [row["run"] for row in document("clean")] == ["first"]
