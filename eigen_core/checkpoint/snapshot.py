"""Snapshots: the whole state of a training run at the end of a generation, its files and their expected form."""

import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import JsonValue

from eigen_core import __version__
from eigen_core.checkpoint.integrity import (
    Damage,
    blob_name,
    blob_path,
    checksummed,
    document_bytes,
    parse_document,
    write_blob,
)
from eigen_core.checkpoint.manifest import FORMAT_VERSION, FileEntry, Manifest, RingEntry, TensorInfo, reading_part
from eigen_core.checkpoint.replay_shards import Ring, read_ring, ring_columns
from eigen_core.checkpoint.tensors import read_tensors, tensor_infos, write_tensors
from eigen_core.common.records import Arithmetic


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a training run after a generation: named tensors, JSON documents and the replay buffer.

    Tensors may be views, may share memory and may be on any device; a loaded snapshot has them on the CPU, each in its
    own memory. Documents must not contain NaN or infinity. A document of bytes is JSON text, which is stored unchanged.
    """

    generation: int
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """File name without suffix -> named tensors, which are written to that safetensors file."""
    documents: Mapping[str, JsonValue | bytes]
    """File name without suffix -> JSON document, which is written to that JSON file."""
    champion_generation: int
    """Generation in which the champion was found, which therefore stays in the store. 0: there is no champion."""
    ring: Ring | None = None
    """The replay buffer, of which only new rows are written; None: the snapshot has none."""
    computed_by: Arithmetic | None = None
    """Processor and libraries that computed the generation; None: unknown."""


_HEADER_LIMIT = 1 << 20
"""Most bytes that a safetensors file may have in addition to its tensors."""


class LoadedGeneration(NamedTuple):
    snapshot: Snapshot
    manifest: Manifest
    damages: list[Damage]
    """Damages of the newer generations that were skipped because of them, newest generation first."""


def read_snapshot(manifest: Manifest, run: Path) -> Snapshot:
    """Read a generation, whose blobs were verified, from the folder `run`; `DamagedGenerationError` if that fails."""
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    documents: dict[str, JsonValue | bytes] = {}
    for entry in manifest.files:
        stem, path = Path(entry.name).stem, blob_path(run, entry.sha256)
        with reading_part(manifest, entry.name, blob_name(entry.sha256)):
            if entry.tensors is not None:
                tensors[stem] = read_tensors(path, entry.tensors)
            else:
                documents[stem] = parse_document(path.read_bytes())
    ring = None if manifest.ring is None else read_ring(manifest, manifest.ring, run)
    return Snapshot(manifest.generation, tensors, documents, manifest.champion_generation, ring, manifest.computed_by)


@dataclass(frozen=True)
class SnapshotForm:
    """The form that a run's snapshots must have; a manifest is compared with it before its files are read.

    `files` maps each file's name to its tensors (None: a JSON file). `capacity` (slots) and `columns` are those of the
    replay buffer, and `generation_rows` contains the possible numbers of rows that one generation appends to it.
    """

    files: Mapping[str, tuple[TensorInfo, ...] | None]
    capacity: int
    columns: tuple[TensorInfo, ...]
    generation_rows: range

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Mapping[str, torch.Tensor]],
        documents: Collection[str],
        ring: Ring,
        generation_rows: range,
    ) -> Self:
        """Return the form of snapshots with `tensors`, `documents` and a `ring` of these names, types and shapes."""
        held = {f"{stem}.safetensors": tensor_infos(stem, named) for stem, named in tensors.items()}
        texts = dict.fromkeys(f"{stem}.json" for stem in documents)
        return cls({**held, **texts}, ring.capacity, ring_columns(ring), generation_rows)

    def damages(self, manifest: Manifest) -> list[Damage]:
        found = [*self._file_damages(manifest), *self._ring_damages(manifest.ring, manifest.generation)]
        return [Damage(manifest.generation, part, what, manifest.name) for part, what in found]

    def _file_damages(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        there = {entry.name: entry for entry in manifest.files}
        for name in sorted(there.keys() | self.files.keys()):
            if name not in there:
                yield name, "is not in the manifest"
            elif name not in self.files:
                yield name, "is not known to this version of Eigen"
            elif (wanted := self.files[name]) is not None:
                entry = there[name]
                header = entry.bytes - sum(tensor.nbytes for tensor in wanted)
                if what := _difference(entry.tensors or (), wanted):
                    yield name, what
                elif not 0 <= header <= _HEADER_LIMIT:
                    yield name, f"has {entry.bytes:,} bytes, which do not fit its tensors"

    def _ring_damages(self, ring: RingEntry | None, generation: int) -> Iterator[tuple[str, str]]:
        if ring is None:
            yield "replay", "is not in the manifest"
        elif what := _difference(ring.columns, self.columns):
            yield "replay", what
        elif ring.capacity != self.capacity:
            yield "replay", f"has {ring.capacity:,} slots instead of {self.capacity:,}"
        else:
            fewest, most = generation * self.generation_rows[0], generation * self.generation_rows[-1]
            if not fewest <= ring.written <= most:
                wanted = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
                yield "replay", f"counts {ring.written:,} appended rows instead of {wanted}"


def _difference(found: Collection[TensorInfo], wanted: Collection[TensorInfo]) -> str | None:
    there = {tensor.name: tensor for tensor in found}
    expected = {tensor.name: tensor for tensor in wanted}
    for name in sorted(there.keys() | expected.keys()):
        if there.get(name) != expected.get(name):
            return f"lists the tensor {name} as {_in_words(there.get(name))}, expected {_in_words(expected.get(name))}"
    return None if len(found) == len(there) else "lists a tensor twice"


def _in_words(tensor: TensorInfo | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def write_files(snapshot: Snapshot, run: Path) -> list[FileEntry]:
    """Write tensors and documents as blobs to folder `run`; if one cannot be stored, write none, raise `ValueError`."""
    infos = {stem: tensor_infos(f"{stem}.safetensors", held) for stem, held in sorted(snapshot.tensors.items())}
    texts = {stem: document_bytes(f"{stem}.json", held) for stem, held in sorted(snapshot.documents.items())}
    entries = []
    for stem, tensors in infos.items():
        held = snapshot.tensors[stem]
        sha256, size = write_blob(run, partial(write_tensors, tensors=held))
        entries.append(FileEntry(name=f"{stem}.safetensors", bytes=size, sha256=sha256, tensors=tensors))
    for stem, text in texts.items():
        sha256, size = write_blob(run, partial(Path.write_bytes, data=text))
        entries.append(FileEntry(name=f"{stem}.json", bytes=size, sha256=sha256, tensors=None))
    return entries


def compose_manifest(
    run: str,
    snapshot: Snapshot,
    files: Sequence[FileEntry],
    ring: RingEntry | None,
    parent: str | None,
    epoch: int,
    config: Mapping[str, JsonValue],
) -> Manifest:
    fields: dict[str, JsonValue] = {
        "format_version": FORMAT_VERSION,
        "run": run,
        "generation": snapshot.generation,
        "champion_generation": snapshot.champion_generation,
        "parent": parent,
        "epoch": epoch,
        "config": dict(config),
        "versions": {"eigen": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "files": [entry.model_dump(mode="json") for entry in sorted(files, key=lambda entry: entry.name)],
        "ring": None if ring is None else ring.model_dump(mode="json"),
    }
    if snapshot.computed_by is not None:
        fields["computed_by"] = snapshot.computed_by.model_dump(mode="json")
    return Manifest.model_validate_json(checksummed(fields))
