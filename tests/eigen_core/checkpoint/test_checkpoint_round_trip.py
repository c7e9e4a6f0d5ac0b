"""A generation is loaded as it was saved, its manifest describes it, its champion can be exported; old ones go.

The last, every m-th and the champion's stay, and damage never costs the last good one.
"""

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
    blob_of,
    files_of,
    generations_of,
    in_memory,
    manifest_of,
    new_run,
    newest_of,
    sample,
    saved_run,
)
from hypothesis import given, strategies as st
from pydantic import JsonValue
from safetensors import safe_open

import eigen_core.checkpoint
from eigen_core.checkpoint.export import read_champion, write_champion
from eigen_core.checkpoint.integrity import blob_path
from eigen_core.checkpoint.manifest import FileEntry, Manifest, RingEntry, ShardEntry, TensorInfo
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.run_contents import kept_generations, missing_generations
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.config import CheckpointConfig
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


def removed(run: RunDirectory, keep_last: int, keep_every: int, *, keep_champion: bool = True) -> list[int]:
    return list(run.contents.clean(keep_last, keep_every, keep_champion=keep_champion).generations)


def whole_files(run: RunDirectory) -> set[str]:
    """Return the names of all files that the run's manifests need, with the manifests and what is no generation's."""
    manifests = run.contents.manifests()
    return {"config.json", "lock", *(name for found in manifests for name in (found.name, *found.blobs))}


def test_the_last_every_fifth_and_the_champions_stay(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        for generation in range(1, 14):
            run.save(sample(generation))
        # The champion of generation 13 is of generation 6.
        assert removed(run, keep_last=3, keep_every=5) == [1, 2, 3, 4, 7, 8, 9]
        assert generations_of(run) == [5, 6, 10, 11, 12, 13]
        assert files_of(run) == whole_files(run)
        assert removed(run, keep_last=3, keep_every=5) == []
        assert removed(run, keep_last=1, keep_every=0) == [5, 10, 11, 12]
        assert removed(run, keep_last=1, keep_every=0, keep_champion=False) == [6]
    assert generations_of(run) == [13]
    assert files_of(run) == whole_files(run)
    assert run.contents.verify() == []
    with pytest.raises(ValueError, match="keep_last is 0"):
        run.contents.clean(0, 0)


def test_files_whose_names_are_no_blobs_stay(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    unneeded = run.path / "blobs" / "ee" / ("e" * 64)
    theirs = [
        *(run.path / "blobs" / name for name in ("diary", "ee/diary", f"ff/{'e' * 64}", "e" * 64, f"ee/{'E' * 64}")),
        run.path / "manifests" / "notes.json",
    ]
    for path in (unneeded, *theirs):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert run.contents.clean(1, 0).blobs == (f"blobs/ee/{unneeded.name}",)
    assert not unneeded.exists()
    assert all(path.read_text() == "mine" for path in theirs)


@pytest.mark.parametrize("part", ["manifest", "population.safetensors", "0"])
def test_damaged_generations_do_not_count(tmp_path: Path, part: str) -> None:
    run = new_run(tmp_path)
    for generation in range(1, 7):
        # Whole rings: what is damaged is no other generation's.
        run = RunDirectory.open(tmp_path, "run")
        run.save(sample(generation))
    for generation in (4, 6):
        if part == "manifest":
            os.truncate(run.path / manifest_of(run, generation).name, 0)
        else:
            os.truncate(blob_of(run, generation, part), 0)
    assert removed(run, keep_last=2, keep_every=0, keep_champion=False) == [1, 2, 4]
    newest = newest_of(run)
    assert newest.snapshot.generation == 5


def test_without_a_good_generation_nothing_goes(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for generation in (1, 2):
        run.save(sample(generation))
        blob_of(run, generation, "state.json").unlink()
    before = files_of(run)
    assert removed(run, keep_last=1, keep_every=0) == []
    assert files_of(run) == before


def test_protected_generations_stay_with_all_their_manifests(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    for seconds in (1.0, 2.0):
        run.save(sample(2, seconds=seconds))
    run.save(sample(3))
    report = run.contents.clean(1, 0, keep_champion=False, protected={2})
    assert report.generations == (1,)
    assert len(run.contents.manifests()) == 3
    report = run.contents.clean(2, 0, keep_champion=False)
    assert (report.generations, len(report.blobs)) == ((), 1)
    newest = run.contents.manifests()
    assert [manifest.generation for manifest in newest] == [3, 2]
    assert run.contents.document(newest[1], "telemetry") == [{"seconds": 2.0}]


def test_blobs_that_no_manifest_named_stay_for_the_grace_period_by_the_stores_clock(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1, 2)
    store, contents = in_memory(run)
    unnamed = "blobs/aa/" + "a" * 64
    store.put(f"run/{unnamed}", b"no manifest")
    newer, older = contents.manifests()
    store.pass_time(2 * 3_600)
    freed = contents.clean(1, 0, keep_champion=False, grace_seconds=3 * 3_600.0).blobs
    assert set(freed) == older.blobs.keys() - newer.blobs.keys()
    for dry_run in (True, False):
        report = contents.clean(1, 0, grace_seconds=3_600.0, dry_run=dry_run)
        assert (report.blobs, report.bytes_freed) == ((unnamed,), 11)
    assert contents.verify() == []
    assert store.content.keys() == {"run/config.json", f"run/{newer.name}", *(f"run/{name}" for name in newer.blobs)}


def test_nothing_is_removed_unless_it_is_confirmed_after_all_was_looked_at(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1, 2)
    store, contents = in_memory(run)
    before = dict(store.content)

    def refuse() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        contents.clean(1, 0, keep_champion=False, confirm=refuse)
    assert store.content == before
    looked = [name for operation, name in store.done if operation == "objects"]
    assert looked == ["run/blobs/", "run/manifests/"], "what is completed in between is seen by its manifest"


def test_a_store_that_gives_up_in_mid_run_loses_no_generation(tmp_path: Path) -> None:
    """A manifest that cannot be read is not taken for one that is damaged, whose blobs could go."""
    store, contents = in_memory(saved_run(tmp_path, 1, 2, 3))
    before = dict(store.content)
    reads = 0

    def fail_second_read(operation: str, _name: str) -> None:
        nonlocal reads
        reads += operation == "read"
        store.away = reads == 2

    store.before = fail_second_read
    with pytest.raises(StoreUnavailableError):
        contents.clean(3, 0)
    assert store.content == before


@given(st.data())
def test_what_retention_keeps_is_missed_and_nothing_else(data: st.DataObject) -> None:
    rule = CheckpointConfig(keep_last=data.draw(st.integers(1, 4)), keep_every=data.draw(st.integers(0, 4)))
    newest = data.draw(st.integers(1, 20))
    champion = data.draw(st.integers(0, newest))
    last = range(newest, max(0, newest - rule.keep_last), -1)
    kept = kept_generations(range(1, newest + 1), list(last), rule.keep_every, champion)
    assert list(missing_generations(kept, champion, [rule])) == []
    older = sorted(kept - {newest})
    lost = data.draw(st.sets(st.sampled_from(older))) if older else set()
    assert list(missing_generations(kept - lost, champion, [rule])) == sorted(lost)
    # A rule that kept less at some time excuses what it did not keep.
    least = CheckpointConfig(keep_last=1, keep_every=0)
    assert list(missing_generations(kept - lost, champion, [rule, least])) == sorted(lost & {champion})
