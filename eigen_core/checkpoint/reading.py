"""From a manifest and blobs on this machine back to a snapshot."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import JsonValue

from eigen_core.checkpoint.blobs import check_blob, opened
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.damage import Damage, DamagedFileError
from eigen_core.checkpoint.manifest import Manifest, RingEntry, ShardEntry, damaged_generation, reading_part
from eigen_core.checkpoint.names import blob_name
from eigen_core.checkpoint.ring_files import empty_ring, in_threads
from eigen_core.checkpoint.shards import read_shard, rows_as_bytes
from eigen_core.checkpoint.snapshot import Ring, Snapshot
from eigen_core.checkpoint.tensor_files import parse_document, read_tensors

_WORKERS = 2

PathOf = Callable[[str], Path]
"""Gives the file of the blob with a SHA-256."""


class LoadedGeneration(NamedTuple):
    """A generation read from a run."""

    snapshot: Snapshot
    manifest: Manifest
    damages: list[Damage]
    """What is wrong with the newer generations that were skipped, newest first."""


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
