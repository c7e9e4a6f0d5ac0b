"""Planted files are refused, and nothing in them is ever run, even where all checksums are right."""

import io
import json
import os
import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_samples import assert_same, manifest_of, newest_of, sample, saved_run

from benchmarks.fuzz import manifests, run_files
from benchmarks.fuzz.cases import findings, fuzz
from eigen_core.checkpoint.export import read_champion, write_champion
from eigen_core.checkpoint.integrity import blob_path, checksummed, manifest_name
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import CheckpointConfig


class _Planted:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


def _pickled(trap: _Planted) -> bytes:
    return pickle.dumps(trap)


def _by_torch(trap: _Planted) -> bytes:
    buffer = io.BytesIO()
    torch.save(trap, buffer)
    return buffer.getvalue()


def _by_numpy(trap: _Planted) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([trap], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _header_with_a_pickle(trap: _Planted) -> bytes:
    header = json.dumps({"__metadata__": {"pickle": pickle.dumps(trap).hex()}, "weights": "!"}).encode()
    return len(header).to_bytes(8, "little") + header + pickle.dumps(trap)


KINDS = [_pickled, _by_torch, _by_numpy, _header_with_a_pickle]
PARTS = ["population.safetensors", "champion.safetensors", "state.json", "0"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = saved_run(tmp_path, 1)
    run.save(sample(2))
    return run


def plant(run: RunDirectory, part: str, content: bytes, listed: bool) -> None:
    """Put `content` in the place of a part of generation 2; if `listed`, with a manifest that says so."""
    manifest = manifest_of(run, 2)
    fields = manifest.model_dump(mode="json", exclude={"checksum"})
    parts = fields["ring"]["shards"] if part.isdigit() else fields["files"]
    (entry,) = [parts[-1]] if part.isdigit() else [entry for entry in parts if entry["name"] == part]
    if not listed:
        blob_path(run.path, entry["sha256"]).write_bytes(content)
        return
    entry.update(bytes=len(content), sha256=sha256(content).hexdigest())
    blob = blob_path(run.path, entry["sha256"])
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(content)
    replace_manifest(run, fields)


def replace_manifest(run: RunDirectory, fields: dict[str, Any]) -> None:
    (run.path / manifest_of(run, 2).name).unlink()
    content = checksummed(fields)
    (run.path / manifest_name(2, json.loads(content)["checksum"])).write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("listed", [False, True], ids=["unlisted", "listed"])
def test_planted_content_is_refused_and_never_run(
    run: RunDirectory, tmp_path: Path, kind: Callable[[_Planted], bytes], part: str, listed: bool
) -> None:
    trace = tmp_path / "executed"
    plant(run, part, kind(_Planted(trace)), listed)
    newest = newest_of(RunDirectory.open(tmp_path, "run"))
    assert_same(newest.snapshot, sample(1))
    title = "replay shard 17" if part == "0" else part
    assert [found.file for found in newest.damages] == [title]
    assert (run.contents.verify() == []) == listed
    if part == "champion.safetensors":
        write_champion(run.contents, tmp_path / "champion.safetensors")
        assert torch.equal(
            read_champion(tmp_path / "champion.safetensors").weights, sample(1).tensors["champion"]["weights"]
        )
    assert not trace.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["manifest", "further manifest", "config.json", "champion file"])
def test_planted_documents_are_refused_and_never_run(
    run: RunDirectory, tmp_path: Path, kind: Callable[[_Planted], bytes], place: str
) -> None:
    trace = tmp_path / "executed"
    content = kind(_Planted(trace))
    manifest = manifest_of(run, 2)
    path = {
        "manifest": run.path / manifest.name,
        "further manifest": run.path / "manifests" / f"000009-{'0' * 8}.json",
        "config.json": run.path / "config.json",
        "champion file": tmp_path / "champion.safetensors",
    }[place]
    path.write_bytes(content)
    if place == "champion file":
        with pytest.raises(InputError, match="is no champion that Eigen exported"):
            read_champion(path)
    else:
        newest = newest_of(RunDirectory.open(tmp_path, "run"))
        assert newest.snapshot.generation == (1 if place == "manifest" else 2)
        assert len(run.contents.verify()) == 1
    assert not trace.exists()


OUTSIDE = {"name": "../../outside.json", "bytes": 1, "sha256": "0" * 64, "tensors": None}
SHARD = {"bytes": 1, "sha256": "0" * 64}


def with_shards(*rows: tuple[int, int], **ring: int) -> dict[str, Any]:
    return {"ring": {**ring, "shards": [{**SHARD, "first": first, "count": count} for first, count in rows]}}


@pytest.mark.parametrize(
    "change",
    [
        {"files": [OUTSIDE]},
        {"files": [{**OUTSIDE, "name": "state.json", "sha256": "../../../etc/passwd"}]},
        {"files": [{**OUTSIDE, "name": "state.safetensors"}]},
        {"files": [{**OUTSIDE, "name": "b.json"}, {**OUTSIDE, "name": "a.json"}]},
        {"ring": {"capacity": 3, "size": 4, "written": 4, "columns": [], "shards": []}},
        {"generation": -1},
        {"generation": 2.0},
        {"generation": True},
        {"champion_generation": 3},
        {"epoch": 10**17},
        {"created": "yesterday"},
        {"created": "2026-01-01"},
        {"x": 1},
        *(with_shards(), with_shards((0, 33)), with_shards((0, 35)), with_shards((1, 33))),
        *(with_shards((0, 17), (18, 16)), with_shards((0, 18), (17, 17))),
        *(with_shards((17, 17), (0, 17)), with_shards((0, 34), (34, 0))),
        # Rows that are not needed could be unpacked without end.
        with_shards((0, 51), written=51, size=40),
        *({"ring": {"capacity": capacity}} for capacity in (1e30, 10**30, 10**15)),
    ],
)
def test_a_manifest_of_another_form_is_damage_even_with_a_right_checksum(
    run: RunDirectory, change: dict[str, Any]
) -> None:
    fields = manifest_of(run, 2).model_dump(mode="json", exclude={"checksum"})
    ring = {"ring": {**fields["ring"], **change.get("ring", {})}}
    replace_manifest(run, {**fields, **change, **ring})
    (damage,) = run.contents.verify()
    assert "unexpected form" in str(damage)
    newest = newest_of(run)
    assert newest.snapshot.generation == 1


def test_a_huge_generation_costs_no_time(run: RunDirectory) -> None:
    fields = manifest_of(run, 2).model_dump(mode="json", exclude={"checksum"})
    content = checksummed({**fields, "generation": 10**14})
    (run.path / manifest_name(10**14, json.loads(content)["checksum"])).write_bytes(content)
    missing = run.contents.missing_generations([CheckpointConfig(keep_last=1_000_000, keep_every=5)])
    assert [damage.generation for damage in missing][:3] == [5, 10, 15]
    assert run.contents.verify() == []


def test_a_newer_format_is_not_taken_for_damage(run: RunDirectory) -> None:
    fields = manifest_of(run, 2).model_dump(mode="json", exclude={"checksum"})
    replace_manifest(run, {**fields, "format_version": 3, "something": "new"})
    with pytest.raises(InputError, match="newer version of Eigen"):
        run.load_newest()


def test_tensors_other_than_those_listed_are_damage(run: RunDirectory) -> None:
    fields = manifest_of(run, 2).model_dump(mode="json", exclude={"checksum"})
    (entry,) = [entry for entry in fields["files"] if entry["name"] == "population.safetensors"]
    entry["tensors"][1]["shape"] = [50, 4]
    replace_manifest(run, fields)
    newest = newest_of(run)
    assert str(newest.damages[0]).startswith("generation 2: population.safetensors does not hold the tensors")


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b"\xff\xfe", b"", *(b'{"a": %s}' % word for word in (b"", b"NaN", b"Infinity"))],
)
def test_documents_that_are_no_json_are_damage_even_with_a_right_checksum(run: RunDirectory, text: bytes) -> None:
    plant(run, "state.json", text, listed=True)
    newest = newest_of(run)
    assert str(newest.damages[0]).startswith("generation 2: state.json is not JSON")


@pytest.mark.parametrize(
    ("name", "one_case"),
    [pytest.param("manifests", manifests.one_case, marks=pytest.mark.thorough), ("run_files", run_files.one_case)],
)
def test_changed_files_are_refused_gone_around_or_trained_on_rightly(tmp_path: Path, name: str, one_case: Any) -> None:
    assert findings(fuzz(one_case, name, tmp_path, range(8), seed=7), name, 7).faults == []
