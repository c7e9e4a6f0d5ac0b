"""Read snapshots back from a manifest and blobs on this machine, and compare their form before that."""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import JsonValue

from eigen_core.checkpoint.blobs import check_blob, opened
from eigen_core.checkpoint.integrity import BytesDone, Damage, DamagedFileError
from eigen_core.checkpoint.manifest import (
    Manifest,
    RingEntry,
    ShardEntry,
    TensorFacts,
    damaged_generation,
    reading_part,
)
from eigen_core.checkpoint.names import blob_name
from eigen_core.checkpoint.ring import empty_ring, in_threads, read_shard, ring_columns, rows_as_bytes
from eigen_core.checkpoint.snapshot import Ring, Snapshot
from eigen_core.checkpoint.tensors import parse_document, read_tensors, tensor_facts

_WORKERS = 2
_HEADER_LIMIT = 1 << 20
"""Most bytes that a safetensors file may have beside its tensors."""

PathOf = Callable[[str], Path]
"""Gives the file of the blob with a SHA-256."""


class LoadedGeneration(NamedTuple):
    """A generation read from a run."""

    snapshot: Snapshot
    manifest: Manifest
    damages: list[Damage]
    """Damages of the newer generations that were skipped, newest first."""


def read_snapshot(manifest: Manifest, path_of: PathOf) -> Snapshot:
    """Return the snapshot that a manifest describes. Nothing is parsed before everything is verified.

    Raises:
        DamagedGenerationError: it is damaged.
    """
    verify_parts(manifest, manifest.parts, path_of)
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    documents: dict[str, JsonValue | bytes] = {}
    for entry in manifest.files:
        stem, path = Path(entry.name).stem, path_of(entry.sha256)
        with reading_part(manifest, entry.name, blob_name(entry.sha256)):
            if entry.tensors is not None:
                tensors[stem] = read_tensors(path, entry.tensors)
            else:
                documents[stem] = parse_document(path.read_bytes())
    ring = None if manifest.ring is None else read_ring(manifest, manifest.ring, path_of)
    return Snapshot(manifest.generation, tensors, documents, manifest.champion_generation, ring, manifest.computed_by)


def verify_parts(manifest: Manifest, parts: dict[str, str], path_of: PathOf) -> None:
    """Compare the blobs of parts of a generation with their sizes and SHA-256.

    Args:
        manifest: the generation's.
        parts: some of the manifest's parts.
        path_of: the file of a blob.

    Raises:
        DamagedGenerationError: it names all that is wrong.
    """
    sizes = manifest.blobs
    blobs = sorted(set(parts.values()), key=lambda name: -sizes[name])
    progress = BytesDone("load", sum(sizes[name] for name in blobs))

    def damage_of(name: str) -> str | None:
        try:
            check_blob(path_of(name.rpartition("/")[2]), sizes[name], progress.add)
        except DamagedFileError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(_WORKERS) as threads:
        wrong = dict(zip(blobs, threads.map(damage_of, blobs), strict=True))
    found = ((part, name, wrong[name]) for part, name in parts.items())
    damages = [Damage(manifest.generation, part, what, name) for part, name, what in found if what is not None]
    if damages:
        raise damaged_generation(manifest, damages)


def read_ring(manifest: Manifest, entry: RingEntry, path_of: PathOf) -> Ring:
    """Return the ring that verified shards make up.

    Raises:
        DamagedGenerationError: a shard is damaged, or there is not enough memory.
    """
    with reading_part(manifest, "replay", manifest.name):
        ring = empty_ring(entry)
    memory = {name: rows_as_bytes(column) for name, column in ring.columns.items()}

    def read(shard: ShardEntry) -> None:
        with (
            reading_part(manifest, shard.title, blob_name(shard.sha256)),
            opened(path_of(shard.sha256)) as file,
        ):
            read_shard(file, entry, shard, memory)

    in_threads(read, entry.shards)
    return ring


@dataclass(frozen=True)
class SnapshotForm:
    """The form of a run's snapshots. It is compared with a manifest, before anything that it names is read.

    Attributes:
        files: name of each file -> its tensors; None for JSON.
        capacity: slots of the ring.
        columns: one row of the ring.
        generation_rows: how many rows a generation can append to it.
    """

    files: Mapping[str, tuple[TensorFacts, ...] | None]
    capacity: int
    columns: tuple[TensorFacts, ...]
    generation_rows: range

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Mapping[str, torch.Tensor]],
        documents: Collection[str],
        ring: Ring,
        generation_rows: range,
    ) -> Self:
        """Return the form of snapshots with tensors, documents and a ring like these, whatever they hold."""
        held = {f"{stem}.safetensors": tensor_facts(stem, named) for stem, named in tensors.items()}
        texts = dict.fromkeys(f"{stem}.json" for stem in documents)
        return cls({**held, **texts}, ring.capacity, ring_columns(ring), generation_rows)

    def damages(self, manifest: Manifest) -> list[Damage]:
        """Return the differences of a manifest from this form."""
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
                beside = entry.bytes - sum(tensor.nbytes for tensor in wanted)
                if what := _difference(entry.tensors or (), wanted):
                    yield name, what
                elif not 0 <= beside <= _HEADER_LIMIT:
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
                yield "replay", f"has had {ring.written:,} rows instead of {wanted}"


def _difference(found: Collection[TensorFacts], wanted: Collection[TensorFacts]) -> str | None:
    """Return the first difference between two sets of tensors, None if there is none."""
    there = {tensor.name: tensor for tensor in found}
    expected = {tensor.name: tensor for tensor in wanted}
    for name in sorted(there.keys() | expected.keys()):
        if there.get(name) != expected.get(name):
            return f"holds {name} as {_in_words(there.get(name))} instead of {_in_words(expected.get(name))}"
    return None if len(found) == len(there) else "names a tensor twice"


def _in_words(tensor: TensorFacts | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
