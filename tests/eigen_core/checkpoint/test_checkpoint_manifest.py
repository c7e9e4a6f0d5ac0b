"""Manifests and what else carries its own checksum: the schema describes them, and no byte of them can change."""

import json
from importlib import resources
from pathlib import Path

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


def test_the_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "file-format.md").read_text()
    for kind in (Manifest, RingEntry, ShardEntry, FileEntry, TensorFacts):
        for field in kind.model_fields:
            assert f"`{field}`" in text, field


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
