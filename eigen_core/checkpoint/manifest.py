"""The manifest of a generation: lists its files and replay shards (files of rows) with sizes and checksums."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from math import prod
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from eigen_core.checkpoint.integrity import (
    REPAIR,
    Damage,
    DamagedFileError,
    DamagedGenerationError,
    blob_name,
    checksummed,
    in_words,
    manifest_name,
    parse_checksummed,
)
from eigen_core.common.errors import InputError
from eigen_core.common.records import Arithmetic, Words
from eigen_core.common.text import quoted

STEM = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Matches allowed names of replay buffer columns, and of files without their suffix."""
FORMAT_VERSION = 2
"""Version 1 also had, and version 2 does not use, `_OF_VERSION_1`."""
_OF_VERSION_1 = {"config_sha256", "seed", "raw_bytes", "compression"}
MANIFEST_LIMIT = 64 << 20
"""Most bytes that a manifest may have."""

Natural = Annotated[int, Field(ge=0, lt=10**15)]
"""A number or size (bytes) below 10^15, which every JSON reader represents exactly."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DataType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _EntryOfVersions(_Entry):
    """Keeps the fields of version 1, so that a manifest that was read keeps its checksum."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _has_no_unknown_field(self) -> Self:
        if (self.model_extra or {}).keys() - _OF_VERSION_1:
            raise ValueError("unknown fields")
        return self


class Versions(_Entry):
    """Versions of Eigen, torch and Python that wrote the generation."""

    eigen: str
    torch: str
    python: str


class TensorInfo(_Entry):
    """Name, type and shape of a tensor."""

    name: str
    dtype: DataType
    """Type of the elements, by its name in safetensors."""
    shape: tuple[Natural, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


class FileEntry(_Entry):
    """One file of a generation, stored as the blob that is named by its SHA-256."""

    name: Annotated[str, Field(pattern=rf"^{STEM.pattern}\.(safetensors|json)$")]
    bytes: Natural
    """Size of the file (bytes)."""
    sha256: Sha256
    """SHA-256 of the file's content, which is equal for equal tensors or documents."""
    tensors: tuple[TensorInfo, ...] | None
    """Tensors of a safetensors file, sorted by name; null for a JSON file."""

    @model_validator(mode="after")
    def _tensors_fit_the_kind(self) -> Self:
        if (self.tensors is None) != self.name.endswith(".json"):
            raise ValueError("a safetensors file lists its tensors, a JSON file has none")
        return self


class ShardEntry(_EntryOfVersions):
    """A shard: consecutive rows of the replay buffer, in the order in which they were appended, stored as one blob."""

    first: Natural
    """Number of the shard's first row, counted from 0 over all rows ever appended to the buffer."""
    count: Annotated[Natural, Field(ge=1)]
    """Number of the shard's rows."""
    bytes: Natural
    """Size of the blob, as stored (bytes)."""
    sha256: Sha256
    """SHA-256 of the blob, as stored."""

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def title(self) -> str:
        return f"replay shard {self.first}"


class RingEntry(_Entry):
    """The replay buffer, a ring of slots: row n (from 0) is in slot n modulo `capacity`; newer rows replace older."""

    capacity: Annotated[Natural, Field(ge=1)]
    """Number of slots."""
    size: Natural
    """Number of rows that the buffer holds: the newest ones."""
    written: Natural
    """Number of rows ever appended."""
    columns: tuple[TensorInfo, ...]
    """Columns of the buffer, sorted by name, with the type and shape of one row."""
    shards: tuple[ShardEntry, ...]
    """Shards in the order of their rows, without gaps, up to `written`; the first may contain replaced rows, too."""

    @model_validator(mode="after")
    def _shards_cover_the_rows(self) -> Self:
        names = [column.name for column in self.columns]
        if names != sorted(set(names)) or not names:
            raise ValueError("columns are not sorted by name, or a name is repeated")
        if self.size != min(self.written, self.capacity):
            raise ValueError("size is not the smaller of written and capacity")
        if any(shard.count > self.capacity for shard in self.shards):
            raise ValueError("a shard has more rows than the ring has slots")
        if any(one.stop != other.first for one, other in pairwise(self.shards)):
            raise ValueError("shards do not follow one another")
        oldest = self.written - self.size
        covered = self.shards and self.shards[0].first <= oldest < self.shards[0].stop
        if self.size == 0 and self.shards:
            raise ValueError("an empty ring has shards")
        if self.size and not (covered and self.shards[-1].stop == self.written):
            raise ValueError("shards do not cover the rows")
        return self

    @property
    def row_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)


class Manifest(_EntryOfVersions):
    """Lists the files of a generation, which exists in a store if and only if its manifest does.

    Two runs with equal results have equal entries in `files` and `ring`, except for documents that contain times;
    their `parent`, `created` and `checksum` differ.
    """

    format_version: Literal[1, 2]
    run: Words
    """Name of the run when the manifest was written."""
    generation: Natural
    champion_generation: Natural
    """Generation in which the champion was found; 0: there is no champion."""
    parent: Sha256 | None
    """`checksum` of the manifest of the generation from which training continued; null for a run's first."""
    epoch: Natural
    """Epoch (number of the holder) of the lease on the run under which it was written; 0: without a lease."""
    config: dict[str, JsonValue]
    """The complete configuration of the run in this generation."""
    versions: Versions
    computed_by: Arithmetic | None = None
    """Processor and libraries that computed the generation; left out if unknown."""
    created: str
    """Time at which the manifest was written (UTC, ISO 8601)."""
    files: tuple[FileEntry, ...]
    """The generation's files, sorted by name."""
    ring: RingEntry | None
    """The replay buffer; null if the generation has none."""
    checksum: Sha256
    """SHA-256 of all other fields as canonical JSON (sorted keys, no spaces)."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [entry.name for entry in self.files]
        if names != sorted(set(names)):
            raise ValueError("files are not sorted by name, or a name is repeated")
        if datetime.fromisoformat(self.created).tzinfo is None:
            raise ValueError("created has no time zone")
        if self.champion_generation > self.generation:
            raise ValueError("champion_generation is above generation")
        return self

    @property
    def name(self) -> str:
        """Name of the manifest's file, relative to the run's folder."""
        return manifest_name(self.generation, self.checksum)

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        return self.ring.shards if self.ring is not None else ()

    @property
    def blobs(self) -> dict[str, int]:
        """Name of each blob, relative to the run's folder -> size (bytes)."""
        files = {blob_name(entry.sha256): entry.bytes for entry in self.files}
        return files | {blob_name(shard.sha256): shard.bytes for shard in self.shards}

    @property
    def parts(self) -> dict[str, str]:
        """Name of each file and shard, as in `Damage.file` -> name of its blob."""
        files = {entry.name: blob_name(entry.sha256) for entry in self.files}
        return files | {shard.title: blob_name(shard.sha256) for shard in self.shards}

    def entry(self, name: str) -> FileEntry:
        return {entry.name: entry for entry in self.files}[name]


def manifest_bytes(manifest: Manifest) -> bytes:
    # Fields that a file left out stay out, so that a manifest that was read keeps its checksum.
    return checksummed(manifest.model_dump(mode="json", exclude={"checksum"}, exclude_unset=True))


def parse_manifest(content: bytes) -> Manifest:
    """Parse a manifest; `DamagedFileError` if it is damaged, `InputError` if a newer version of Eigen wrote it."""
    document = parse_checksummed(content)
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise InputError(
            f"Run {quoted(document.get('run'))} was written by a newer version of Eigen (checkpoint format {version}, "
            f"this version reads up to {FORMAT_VERSION}): upgrade Eigen."
        )
    try:
        return Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise DamagedFileError(f"has an unexpected form ({error.errors()[0]['msg']})") from error


def damaged_generation(manifest: Manifest, damages: list[Damage]) -> DamagedGenerationError:
    return DamagedGenerationError(
        f"Run '{manifest.run}' has a damaged generation {manifest.generation} ({in_words(damages)}): {REPAIR}.", damages
    )


@contextmanager
def reading_part(manifest: Manifest, part: str, path: str) -> Iterator[None]:
    """Raise an error of reading `part`, a file or shard of a generation at `path`, as a `DamagedGenerationError`."""
    try:
        yield
    except (DamagedFileError, OSError) as error:
        what = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        raise damaged_generation(manifest, [Damage(manifest.generation, part, what, path)]) from error
