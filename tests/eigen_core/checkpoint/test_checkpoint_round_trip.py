"""A generation is loaded as it was saved, its manifest describes it, and its champion can be exported."""

import json
import math
import os
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import safetensors.torch
import torch
from checkpoint_samples import (
    CONFIG,
    assert_same,
    assert_same_ring,
    files_of,
    generations_of,
    manifest_of,
    new_run,
    newest_of,
    sample,
    saved_run,
)
from pydantic import JsonValue
from safetensors import safe_open

import eigen_core.checkpoint
from eigen_core.checkpoint.export import read_champion, write_champion
from eigen_core.checkpoint.integrity import blob_path
from eigen_core.checkpoint.manifest import FileEntry, Manifest, RingEntry, ShardEntry, TensorInfo
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.config.stored import current_values

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def test_a_saved_generation_comes_back(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2, 3)

    reopened = RunDirectory.open(tmp_path, "run")
    assert reopened.config == CONFIG
    assert generations_of(reopened) == [1, 2, 3]
    newest = newest_of(reopened)
    assert_same(newest.snapshot, sample(3))
    assert newest.damages == []
    assert newest.manifest == reopened.contents.newest_manifest() == manifest_of(reopened, 3)
    assert_same(reopened.load(manifest_of(reopened, 1)).snapshot, sample(1))
    assert reopened.contents.verify() == []


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in TYPES], ids=TYPES)
def test_every_type_and_shape_keeps_its_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "matrix": (torch.arange(-60, 60).reshape(10, 12) % 7).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "one": torch.ones(1, dtype=dtype),
    }
    tensors["odd"] = tensors["matrix"][:7, 3].clone()
    # Bytes that are numbers, infinities and NaN in some types.
    if dtype != torch.bool:
        tensors["bits"] = torch.arange(256).repeat(8).to(torch.uint8).view(dtype)
    run = new_run(tmp_path)
    saved = run.save(Snapshot(1, {"population": tensors, "nothing": {}}, {}, 0))
    loaded = run.load(saved.manifest).snapshot.tensors
    assert loaded["nothing"] == {}
    for name, tensor in tensors.items():
        assert loaded["population"][name].dtype == dtype
        assert loaded["population"][name].shape == tensor.shape
        assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (loaded["population"][name], tensor)))


def test_views_and_shared_memory_are_stored_as_their_values(tmp_path: Path) -> None:
    bank = torch.arange(240.0, requires_grad=True).reshape(10, 24)
    tensors = {"bank": bank, "again": bank, "layer": bank[:, 2:5], "turned": bank.T, "sparse": bank[::2, ::3]}
    ring = Ring({"layer": bank[:, 3:9], "turned": torch.arange(60).reshape(6, 10).T, "sparse": bank[:, ::2]}, 10, 23)
    run = new_run(tmp_path)
    loaded = run.load(run.save(Snapshot(1, {"population": tensors}, {}, 0, ring)).manifest).snapshot
    for name, tensor in tensors.items():
        assert torch.equal(loaded.tensors["population"][name], tensor)
        assert not loaded.tensors["population"][name].requires_grad
    assert loaded.ring is not None
    assert_same_ring(loaded.ring, ring)


def test_loaded_tensors_have_memory_of_their_own(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    loaded = run.load(run.save(sample(1, size=20_000)).manifest).snapshot
    assert str(run.path) not in Path("/proc/self/maps").read_text()
    for file in (run.path / "blobs").rglob("*"):
        if file.is_file():
            os.truncate(file, 0)
    loaded.tensors["population"]["weights"].add_(0.0)
    assert_same(loaded, sample(1, size=20_000))


def test_the_manifest_describes_the_generation(tmp_path: Path) -> None:
    run = new_run(tmp_path, "gold.1")
    first = run.save(sample(1), epoch=4).manifest
    later = {**CONFIG, "generations": 80}
    saved = run.save(sample(2), later, epoch=5)
    second = saved.manifest
    assert (first.parent, second.parent) == (None, first.checksum)
    assert (first.epoch, second.epoch) == (4, 5)
    assert (first.config, second.config) == (CONFIG, later)
    listed_blobs = [(entry.sha256, entry.bytes) for entry in second.files]
    listed_blobs += [(shard.sha256, shard.bytes) for shard in second.shards]
    for digest, size in listed_blobs:
        content = blob_path(run.path, digest).read_bytes()
        assert (digest, size) == (sha256(content).hexdigest(), len(content))
    assert files_of(run) == {"config.json", "lock", *first.blobs, *second.blobs, first.name, second.name}

    fields = json.loads((run.path / second.name).read_text())
    checksum = fields.pop("checksum")
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert checksum == second.checksum == sha256(canonical).hexdigest()


def test_equal_runs_have_equal_blobs_but_for_their_times(tmp_path: Path) -> None:
    one = new_run(tmp_path, "one").save(sample(3, seconds=1.0)).manifest
    other = new_run(tmp_path, "other").save(sample(3, seconds=2.0)).manifest
    differing = [a.name for a, b in zip(one.files, other.files, strict=True) if a != b]
    assert differing == ["telemetry.json"]
    assert one.ring == other.ring


def test_saving_the_same_again_gives_the_manifest_that_is_there(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = run.save(sample(1)).manifest
    before = files_of(run)
    assert run.save(sample(1)).manifest == first
    assert RunDirectory.open(tmp_path, "run").save(sample(1)).manifest == first
    assert files_of(run) == before
    assert run.save(sample(1), epoch=1).manifest != first


def test_of_several_manifests_of_a_generation_the_last_one_counts(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    seconds = [1.0, 3.0, 2.0]
    for value in seconds:
        saved = run.save(sample(2, seconds=value), epoch=1)
        assert saved.manifest.parent == manifest_of(run, 1).checksum
    run.save(sample(2, seconds=9.0), epoch=0)
    found = [manifest for manifest in run.contents.manifests() if manifest.generation == 2]
    assert [manifest.epoch for manifest in found] == [1, 1, 1, 0]
    newest = newest_of(run)
    assert_same(newest.snapshot, sample(2, seconds=2.0))
    # The one that counts is damaged: the one before it serves.
    blob_path(run.path, newest.manifest.entry("telemetry.json").sha256).unlink()
    newest = newest_of(run)
    assert_same(newest.snapshot, sample(2, seconds=3.0))
    assert [damage.file for damage in newest.damages] == ["telemetry.json"]


COMPLEX = torch.zeros(3, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("snapshot", "config", "sentence"),
    [
        (Snapshot(1, {"population": {}}, {"history": [{"fitness": math.nan}]}, 0), CONFIG, r"history\.json"),
        (Snapshot(1, {"population": {}}, {"history": [{"fitness": math.inf}]}, 0), CONFIG, r"history\.json"),
        (Snapshot(1, {}, {}, 0), {"limit": math.nan}, "JSON"),
        (Snapshot(1, {"replay": {"z": COMPLEX}}, {"state": 1}, 0), CONFIG, r"'z' for replay\.safetensors is of type"),
        (Snapshot(1, {}, {}, 0, Ring({"a": COMPLEX}, 0, 0)), CONFIG, "'a' for the ring is of type"),
    ],
)
def test_a_snapshot_that_cannot_be_stored_is_refused_and_leaves_nothing(
    tmp_path: Path, snapshot: Snapshot, config: dict[str, JsonValue], sentence: str
) -> None:
    run = new_run(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        run.save(snapshot, config)
    assert files_of(run) == {"config.json", "lock"}


DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA = json.loads(resources.files(eigen_core.checkpoint).joinpath("manifest.schema.json").read_bytes())


def test_the_schema_in_the_package_is_that_of_the_model() -> None:
    assert {"$schema": DIALECT, **Manifest.model_json_schema()} == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "file-format.md").read_text()
    for kind in (Manifest, RingEntry, ShardEntry, FileEntry, TensorInfo):
        for field in kind.model_fields:
            assert f"`{field}`" in text, field


def test_a_hash_of_tensors_depends_on_names_types_shapes_and_values_alone() -> None:
    bank = torch.arange(24.0).reshape(4, 6)
    views = {"a": bank[:, 1:4], "b": bank.T}
    copies = {"b": bank.T.contiguous(), "a": bank[:, 1:4].clone().requires_grad_()}
    assert tensors_sha256(views) == tensors_sha256(copies)
    zeros = torch.zeros(6)
    variants = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 3)},
        {"a": zeros.reshape(3, 2)},
        {"a": zeros.to(torch.int32)},
        {"a": zeros[:5]},
        {"a": -zeros},
        {"a": zeros[:3], "b": zeros[3:]},
        {"a": zeros, "b": zeros[:0]},
        {},
    ]
    assert len({tensors_sha256(tensors) for tensors in variants}) == len(variants)


def test_the_newest_champion_is_exported_with_its_configuration(tmp_path: Path) -> None:
    run, path = new_run(tmp_path), tmp_path / "out" / "champion.safetensors"
    run.save(sample(1))
    later = {**CONFIG, "generations": 80}
    manifest = run.save(sample(2), later).manifest
    assert write_champion(run.contents, path) == manifest
    weights, config, facts = read_champion(path)
    assert torch.equal(weights, sample(2).tensors["champion"]["weights"])
    assert config == current_values(later)
    assert facts == sample(2).documents["champion"]

    with safe_open(path, framework="pt") as file:
        three_lines = file.get_tensor("weights"), json.loads(file.metadata()["config"])
    assert torch.equal(three_lines[0], weights)
    assert three_lines[1] == later


def test_a_password_that_an_earlier_version_stored_is_not_exported(tmp_path: Path) -> None:
    run, path = new_run(tmp_path), tmp_path / "champion.safetensors"
    uris: list[JsonValue] = ["http://me:hunter2@host", "http://host?token=hunter2"]
    run.save(sample(1), {**CONFIG, "reporting": {"mlflow_uri": uris[0]}, "tracked": uris})
    write_champion(run.contents, path)
    assert b"hunter2" not in path.read_bytes()
    assert read_champion(path).config == {
        **current_values(CONFIG),
        "reporting": {"mlflow_uri": (hidden := "http://...@host")},
        "tracked": [hidden, "http://host?token=..."],
    }


def test_a_run_without_a_champion_says_so(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(InputError, match="has no champion yet"):
        write_champion(run.contents, tmp_path / "x")
    run.save(Snapshot(1, {}, {}, 0))
    with pytest.raises(InputError, match="holds no champion"):
        write_champion(run.contents, tmp_path / "x")


def test_what_is_no_champion_is_passed_over(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    run.save(replace(sample(2), tensors={"champion": {"other": torch.zeros(1)}}))
    run.save(replace(sample(3), documents={"champion": [1]}))
    assert write_champion(run.contents, tmp_path / "champion.safetensors").generation == 1


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "champion.safetensors"
    with pytest.raises(InputError, match="There is no file"):
        read_champion(path)
    good = {"format": "eigen champion", "format_version": "1", "config": "{}", "facts": "{}"}
    changes = [("format", "x"), ("config", "[]"), ("config", "{"), ("facts", "1")]
    refused = "no champion that Eigen exported"
    files = [
        *(("weights", metadata, refused) for metadata in ({}, *({**good, key: text} for key, text in changes))),
        ("other", good, refused),
        ("weights", {**good, "format_version": "2"}, "newer version"),
    ]
    for tensor, metadata, sentence in files:
        safetensors.torch.save_file({tensor: torch.zeros(1)}, path, metadata)
        with pytest.raises(InputError, match=sentence):
            read_champion(path)
