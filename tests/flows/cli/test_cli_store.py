"""`eigen verify`, `clean`, `export` and `memory`: exit codes, sentences, JSON; trainings that memory ends."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import document, eigen, refused
from known import known
from memory_cases import MB, bare_report
from record_cases import save_records, telemetry
from store_cases import champion_weights, objects_of, run_config, save_generations
from upload_cases import locked_by_another_process

from eigen_core.checkpoint.export import read_champion
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.store import LocalStore
from eigen_core.common.records import PhaseMemory
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.runs.journals import write_memory_report

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
    assert champion.config == known(location.local.newest_manifest()).config
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


MEMORY_KEYS = ["run", "state", "pid", "folder", "report", "files", "older_reports", "generations"]
GENERATION_KEYS = ["generation", "rss_bytes", "rss_peak_bytes", "phases"]
PHASE_KEYS = ["phase", "start_bytes", "peak_bytes", "end_bytes", "device_allocated_peak", "device_reserved_peak"]


@pytest.fixture
def measured(user_folder: Path) -> RunLocation:  # noqa: ARG001 - in that folder
    """A run of five generations in `runs`, whose telemetry knows phases from the fourth on, and a GPU in the fifth."""
    config = run_config("runs", Path("runs")).model_copy(update={"generations": 9})
    evaluated = PhaseMemory(phase="evaluate", start_bytes=300 * MB, peak_bytes=456 * MB, end_bytes=400 * MB)
    trained = PhaseMemory(phase="train", start_bytes=400 * MB, peak_bytes=789 * MB, end_bytes=500 * MB)
    entries = [telemetry(number) for number in range(1, 6)]
    entries[3] = entries[3].model_copy(update={"phases": (evaluated, trained)})
    trained = trained.model_copy(update={"device_reserved_peak": 77 * MB})
    entries[4] = entries[4].model_copy(update={"phases": (evaluated, trained)})
    save_records(config, "run", entries)
    return RunLocation.of(config.checkpoint, "run")


def memory_of(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = document("memory", *arguments)
    assert list(found) == MEMORY_KEYS
    assert all(list(entry) == GENERATION_KEYS for entry in found["generations"])
    assert all(list(phase) == PHASE_KEYS for entry in found["generations"] for phase in entry["phases"])
    return found


def report_in(measured: RunLocation, reason: str, generation: int) -> Path:
    return write_memory_report(measured, bare_report(reason), generation, "train")


@pytest.mark.usefixtures("measured")
def test_without_a_report_the_phases_of_the_newest_generations_are_shown(tmp_path: Path) -> None:
    found = memory_of("run")
    assert (found["report"], found["files"], found["older_reports"]) == (None, [], 0)
    assert found["folder"] == str(tmp_path / "runs" / "run" / "memory")
    assert [entry["generation"] for entry in found["generations"]] == [3, 4, 5]
    assert [len(entry["phases"]) for entry in found["generations"]] == [0, 2, 2]
    text = eigen("memory", "run").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["3", "all", "200", "MB", "100", "MB"] in lines
    assert ["4", "evaluate", "300", "MB", "456", "MB", "400", "MB"] in lines
    assert ["train", "400", "MB", "789", "MB", "500", "MB", "77", "MB"] in lines
    assert "held on GPU" in text
    assert "tensors on GPU" not in text
    assert "Run run has no memory report on this machine." in text


def test_the_newest_report_is_shown_with_its_files(measured: RunLocation) -> None:
    report_in(measured, "the first", 2)
    newest = report_in(measured, "the second | of *two*", 3)
    found = memory_of("run")
    assert found["report"]["reason"] == "the second | of *two*"
    assert found["files"] == [str(newest), str(newest.with_suffix(".json"))]
    assert found["older_reports"] == 1
    text = eigen("memory", "run").stdout
    assert newest.read_text() in text
    assert f"1 report in {newest.parent}" in text
    assert "the first" not in text


def test_a_run_that_trains_is_named_by_its_process(measured: RunLocation) -> None:
    with locked_by_another_process(measured.root) as pid:
        found = memory_of("run")
        assert (found["state"], found["pid"]) == ("running", pid)
        assert f"kill -USR1 {pid}" in eigen("memory", "run").stdout
        lock = measured.root / "run" / "lock"
        lock.write_text(json.dumps({"pid": os.getpid(), "host": f"not-{socket.gethostname()}"}))
        assert memory_of("run")["pid"] is None
        assert "kill -USR1 PID" in eigen("memory", "run").stdout
    assert memory_of("run")["pid"] is None


def test_what_cannot_be_shown_is_a_sentence(measured: RunLocation) -> None:
    report_in(measured, "before", 2)
    newest = report_in(measured, "a reason", 3)
    newest.with_suffix(".json").write_text("{half")
    said = refused("memory", "run", "--json")
    assert f"{newest.with_suffix('.json')} is damaged" in said
    named = [newest.with_name(name) for name in re.findall(r"(\S+\.md) and (\S+\.json)", said)[0]]
    for path in named:
        path.unlink()
    assert memory_of("run")["report"]["reason"] == "before"
    report_in(measured, "a reason", 3).with_suffix(".json").unlink()
    assert "cannot be read" in refused("memory", "run", "--json")


@pytest.fixture
def stopped_run(user_folder: Path) -> RunLocation:  # noqa: ARG001 - in that folder
    """A run with two of nine generations, in a process that would start no Prefect."""
    config = run_config("runs", Path("runs")).model_copy(update={"generations": 9})
    return save_generations(config, "run", 1, 2)


def test_the_guards_end_says_why_where_the_report_is_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, stopped_run: RunLocation, tmp_path: Path
) -> None:
    written = []

    def train(*_: object, **__: object) -> bool:
        written.append(write_memory_report(stopped_run, bare_report(), 3, "train"))
        raise MemoryGuardError("memory: 4.00 GB of 4.20 GB in train of generation 3.", bare_report(), "train", 3)

    monkeypatch.setattr("eigen_core.run.train_run", train)
    said = eigen("resume", "run", code=3).stderr
    assert said.count("\n") == 1
    assert said.startswith("eigen: memory: 4.00 GB of 4.20 GB in train of generation 3. The memory report is ")
    assert str(written[0]) in said
    assert "(eigen memory run shows it)" in said
    assert f"The last checkpoint is generation 2 in {tmp_path / 'runs' / 'run'}." in said
    assert said.endswith("Go on with: eigen resume run\n")


@pytest.mark.usefixtures("stopped_run")
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), OSError(12, "ENOMEM")]
)
def test_memory_that_cannot_be_had_to_prepare_a_run_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start_training(*_: object) -> None:
        raise error

    monkeypatch.setattr("eigen_core.generation.start_training", start_training)
    ended = eigen("resume", "run", code=3)
    assert ended.stderr.startswith("eigen: memory: an allocation failed (")
    assert "in start of generation 3." in ended.stderr
