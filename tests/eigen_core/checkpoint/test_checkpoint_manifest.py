"""Manifests and what else carries its own checksum: the schema describes them, and no byte of them can change."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from checkpoint_samples import CONFIG, new_run, sample
from hypothesis import given
from hypothesis import strategies as st

import eigen_core.checkpoint
from eigen_core.checkpoint.integrity import DamagedFileError, checksummed, parse_checksummed
from eigen_core.checkpoint.manifest import (
    FileEntry,
    Manifest,
    RingEntry,
    ShardEntry,
    TensorFacts,
    manifest_bytes,
    parse_manifest,
)
from eigen_core.checkpoint.snapshot import Snapshot

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA = json.loads(resources.files(eigen_core.checkpoint).joinpath("manifest.schema.json").read_bytes())


def test_the_schema_in_the_package_is_that_of_the_model() -> None:
    assert {"$schema": DIALECT, **Manifest.model_json_schema()} == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return new_run(tmp_path).save(sample(3)).manifest


def test_real_manifests_match_the_schema(tmp_path: Path, manifest: Manifest) -> None:
    without_ring = new_run(tmp_path, "other").save(Snapshot(1, {}, {}, 0)).manifest
    for found in (manifest, without_ring):
        document = json.loads(manifest_bytes(found))
        jsonschema.validate(document, SCHEMA)
        assert parse_manifest(manifest_bytes(found)) == found


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("generation", "7"),
        ("epoch", -1),
        ("checksum", "0"),
        ("files", None),
        ("files.0.sha256", "x" * 64),
        ("files.0.name", "../up.json"),
        ("ring.shards.0.compression", "rar"),
        ("ring.columns.0.dtype", "complex64"),
        ("unknown", 1),
    ],
)
def test_the_schema_refuses_what_is_none(manifest: Manifest, place: str, value: object) -> None:
    document: Any = json.loads(manifest_bytes(manifest))
    inner = document
    *path, last = place.split(".")
    for part in path:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    inner[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "file-format.md").read_text()
    for kind in (Manifest, RingEntry, ShardEntry, FileEntry, TensorFacts):
        for field in kind.model_fields:
            assert f"`{field}`" in text, field


DOCUMENTS = st.dictionaries(
    st.text(max_size=4).filter(lambda key: key != "checksum"),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(DOCUMENTS)
def test_a_document_with_a_checksum_comes_back(fields: dict[str, Any]) -> None:
    assert parse_checksummed(checksummed(fields)) == fields


@given(st.data())
def test_a_document_with_a_checksum_notices_every_change(data: st.DataObject) -> None:
    content = checksummed({"config": dict(CONFIG), "number": 0.1, "text": "words"})
    position = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "delete"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = {
        "flip": content[:position] + bytes([content[position] ^ (byte[0] or 1)]) + content[position + 1 :],
        "cut": content[:position],
        "insert": content[:position] + byte + content[position:],
        "delete": content[:position] + content[position + 1 :],
    }[kind]
    with pytest.raises(DamagedFileError):
        parse_checksummed(changed)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"checksum": NaN}'])
def test_what_is_no_document_with_a_checksum_is_said(content: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"is not JSON|has no checksum|does not match its own checksum"):
        parse_checksummed(content)
