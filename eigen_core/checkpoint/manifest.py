"""The manifest of a generation: its files with sizes and checksums, and a checksum of its own; it is written last."""

import json
import platform
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from eigen_core import __version__
from eigen_core.checkpoint.content import json_sha256
from eigen_core.checkpoint.snapshot import STEM, Snapshot
from eigen_core.errors import InputError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

Sha256 = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Versions(_Part):
    """What wrote the generation."""

    eigen: str
    torch: str
    python: str


class FileEntry(_Part):
    """One file of a generation."""

    name: Annotated[str, Field(pattern=rf"\A{STEM.pattern}\.(safetensors|json)\z")]
    bytes: Annotated[int, Field(ge=0)]
    """Size of the file (bytes)."""
    sha256: Sha256
    """SHA-256 of the file."""
    content_sha256: Sha256
    """SHA-256 of what the file holds, independent of its format: `tensors_sha256`, or that of the canonical JSON."""


class Manifest(_Part):
    """What a generation consists of. A generation exists when its manifest does.

    Equal runs have equal entries in `files`, except for documents that hold times; `parent`, `created` and `checksum`
    differ with them.
    """

    format_version: Literal[1]
    run: str
    """Name that the run had."""
    generation: Annotated[int, Field(ge=0)]
    champion_generation: Annotated[int, Field(ge=0)]
    """Generation in which the champion was found; 0: there is no champion."""
    parent: Sha256 | None
    """`checksum` of the manifest of the newest older generation in the run; None for the first."""
    config_sha256: Sha256
    """SHA-256 of the run's configuration (canonical JSON)."""
    seed: int | None
    """Seed in that configuration."""
    versions: Versions
    created: str
    """When it was written (UTC, ISO 8601)."""
    files: tuple[FileEntry, ...]
    """All other files of the generation, by name."""
    checksum: Sha256
    """SHA-256 of the canonical JSON of all other fields."""

    @model_validator(mode="after")
    def _names_are_usable(self) -> Self:
        names = [entry.name for entry in self.files]
        if names != sorted(set(names)) or MANIFEST_NAME in names:
            raise ValueError("files are not sorted by unique names, or the manifest is among them")
        return self

    def entry(self, name: str) -> FileEntry:
        """Return the entry of the file `name`; `KeyError` if there is none."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise KeyError(name)


def compose_manifest(
    run: str, snapshot: Snapshot, files: list[FileEntry], parent: str | None, config: dict[str, JsonValue]
) -> Manifest:
    """Return the manifest of a snapshot whose files are written, stamped with the current time and versions."""
    seed = config.get("seed")
    fields: dict[str, JsonValue] = {
        "format_version": FORMAT_VERSION,
        "run": run,
        "generation": snapshot.generation,
        "champion_generation": snapshot.champion_generation,
        "parent": parent,
        "config_sha256": json_sha256(config),
        "seed": seed if isinstance(seed, int) else None,
        "versions": {"eigen": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "files": [entry.model_dump() for entry in sorted(files, key=lambda entry: entry.name)],
    }
    return Manifest.model_validate({**fields, "checksum": json_sha256(fields)})


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the one spelling of a manifest's file."""
    return _spell(manifest.model_dump(mode="json"))


def parse_manifest(content: bytes) -> Manifest | str:
    """Return the manifest in a file's content, or what is wrong with it.

    The file must be spelled exactly as `manifest_bytes` does it, so that no changed byte goes unnoticed.

    Raises:
        InputError: the manifest is whole, but written by a newer version of Eigen.
    """
    try:
        document = json.loads(content)
        if not isinstance(document, dict) or "checksum" not in document:
            return "has no checksum"
        fields = {name: value for name, value in document.items() if name != "checksum"}
        if json_sha256(fields) != document["checksum"] or _spell(document) != content:
            return "does not match its own checksum"
    except (ValueError, RecursionError):
        return "is not JSON"
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise InputError(
            f"Run '{document.get('run')}' was written by a newer version of Eigen (checkpoint format {version}, this "
            f"version reads up to {FORMAT_VERSION}): upgrade Eigen."
        )
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        return f"has an unexpected form ({error.errors()[0]['msg']})"


def _spell(document: JsonValue) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")
