"""What is saved comes back, and the manifest says what it is."""

import json
import os
import platform
from hashlib import sha256
from pathlib import Path

import pytest
import safetensors.torch
import torch
from checkpoint_samples import CONFIG, assert_same, new_run, sample

from eigen_core.checkpoint import RunDirectory, Snapshot, tensors_sha256
from eigen_core.errors import InputError

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def test_a_saved_generation_comes_back(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for generation in (1, 2, 3):
        run.save(sample(generation))

    reopened = RunDirectory.open(str(tmp_path), "run")
    assert reopened.config == CONFIG
    assert reopened.generations() == [1, 2, 3]
    newest = reopened.load_newest()
    assert newest is not None
    assert_same(newest.snapshot, sample(3))
    assert newest.damages == []
    assert newest.manifest == reopened.newest_manifest() == reopened.manifest(3)
    assert_same(reopened.load(1).snapshot, sample(1))
    assert reopened.verify(2) == []
    assert reopened.plots == tmp_path / "run" / "plots"


def test_a_run_without_generations_loads_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert run.load_newest() is None
    assert run.newest_manifest() is None
    assert run.generations() == []
    with pytest.raises(InputError, match="has no generation 4"):
        run.load(4)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_and_shape_keeps_its_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "matrix": (torch.arange(-60, 60).reshape(10, 12) % 7).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "one": torch.ones(1, dtype=dtype),
    }
    tensors["odd"] = tensors["matrix"][:7, 3].clone()
    run = new_run(tmp_path)
    run.save(Snapshot(1, {"population": tensors, "replay": {}}, {}, 0))
    loaded = run.load(1).snapshot.tensors
    assert loaded["replay"] == {}
    for name, tensor in tensors.items():
        assert loaded["population"][name].dtype == dtype
        assert loaded["population"][name].shape == tensor.shape
        assert torch.equal(loaded["population"][name], tensor)


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC01234, 0x7F800000, -0x80000000, 1], dtype=torch.int32)
    run = new_run(tmp_path)
    run.save(Snapshot(1, {"population": {"weights": bits.view(torch.float32)}}, {}, 0))
    assert torch.equal(run.load(1).snapshot.tensors["population"]["weights"].view(torch.int32), bits)


def test_views_and_shared_memory_are_stored_as_their_values(tmp_path: Path) -> None:
    bank = torch.arange(40.0, requires_grad=True).reshape(4, 10)
    tensors = {"bank": bank, "again": bank, "layer": bank[:, 2:5], "turned": bank.T, "sparse": bank[::2, ::3]}
    run = new_run(tmp_path)
    run.save(Snapshot(1, {"population": tensors}, {}, 0))
    loaded = run.load(1).snapshot.tensors["population"]
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
        assert not loaded[name].requires_grad


def test_loaded_tensors_have_memory_of_their_own(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save(sample(1, size=20_000))
    loaded = run.load(1).snapshot
    assert str(run.path) not in Path("/proc/self/maps").read_text()
    for file in (run.path / "generation-0001").iterdir():
        os.truncate(file, 0)
    loaded.tensors["population"]["weights"].add_(0.0)
    assert_same(loaded, sample(1, size=20_000))


def test_tensor_files_are_plain_safetensors(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save(sample(2))
    loaded = safetensors.torch.load_file(run.path / "generation-0002" / "replay.safetensors")
    for name, tensor in sample(2).tensors["replay"].items():
        assert torch.equal(loaded[name], tensor)


def test_the_manifest_describes_the_generation(tmp_path: Path) -> None:
    run = new_run(tmp_path, "gold.1")
    first, second = run.save(sample(1)), run.save(sample(2))
    assert (second.run, second.generation, second.champion_generation, second.seed) == ("gold.1", 2, 1, 7)
    assert (first.parent, second.parent) == (None, first.checksum)
    assert (second.versions.torch, second.versions.python) == (torch.__version__, platform.python_version())
    assert first.config_sha256 == second.config_sha256
    folder = run.path / "generation-0002"
    assert sorted(os.listdir(folder)) == sorted([entry.name for entry in second.files] + ["manifest.json"])
    for entry in second.files:
        content = (folder / entry.name).read_bytes()
        assert (entry.bytes, entry.sha256) == (len(content), sha256(content).hexdigest())
    for stem, tensors in sample(2).tensors.items():
        assert second.entry(f"{stem}.safetensors").content_sha256 == tensors_sha256(tensors)
    with pytest.raises(KeyError):
        second.entry("nothing.json")

    fields = json.loads((folder / "manifest.json").read_text())
    checksum = fields.pop("checksum")
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert checksum == second.checksum == sha256(canonical).hexdigest()


def test_equal_runs_have_equal_files_but_for_their_times(tmp_path: Path) -> None:
    one = new_run(tmp_path, "one").save(sample(3, seconds=1.0))
    other = new_run(tmp_path, "other").save(sample(3, seconds=2.0))
    differing = [a.name for a, b in zip(one.files, other.files, strict=True) if a != b]
    assert differing == ["telemetry.json"]


def test_saving_the_same_again_changes_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = run.save(sample(1))
    file = run.path / "generation-0001" / "population.safetensors"
    before = (file.stat().st_ino, file.stat().st_mtime_ns)
    assert run.save(sample(1)) == first
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before


def test_saving_something_else_again_replaces_the_generation(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save(sample(1, seconds=1.0))
    run.save(sample(1, seconds=2.0))
    assert_same(run.load(1).snapshot, sample(1, seconds=2.0))
    assert sorted(os.listdir(run.path)) == ["config.json", "generation-0001", "lock"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_know_are_refused_and_leave_nothing(tmp_path: Path, value: float) -> None:
    run = new_run(tmp_path)
    with pytest.raises(ValueError, match=r"history\.json"):
        run.save(Snapshot(1, {"population": {}}, {"history": [{"fitness": value}]}, 0))
    assert sorted(os.listdir(run.path)) == ["config.json", "lock"]


def test_tensors_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(ValueError, match=r"'z' for replay\.safetensors is of type torch\.complex64"):
        run.save(Snapshot(1, {"replay": {"z": torch.zeros(2, dtype=torch.complex64)}}, {}, 0))
    assert run.generations() == []


@pytest.mark.parametrize("stem", ["", "../up", "Upper", "with-dash", "a.b", "7"])
def test_file_stems_are_plain_words(stem: str) -> None:
    with pytest.raises(ValueError, match="cannot be the stem"):
        Snapshot(1, {stem: {}}, {}, 0)


def test_a_snapshot_does_not_take_reserved_names() -> None:
    with pytest.raises(ValueError, match="written by the checkpoint itself"):
        Snapshot(1, {}, {"manifest": {}}, 0)
    with pytest.raises(ValueError, match="__metadata__"):
        Snapshot(1, {"population": {"__metadata__": torch.zeros(1)}}, {}, 0)
    with pytest.raises(ValueError, match="negative"):
        Snapshot(-1, {}, {}, 0)
