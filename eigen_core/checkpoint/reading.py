"""From a manifest and verified blobs on this machine back to a snapshot."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from pydantic import JsonValue

from eigen_core.checkpoint.blobs import blob_damage
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.contents import parts_of, shard_title
from eigen_core.checkpoint.manifest import FileEntry, Manifest, RingEntry
from eigen_core.checkpoint.names import blob_name
from eigen_core.checkpoint.ring_files import read_ring
from eigen_core.checkpoint.snapshot import Damage, Ring, Snapshot
from eigen_core.checkpoint.tensor_files import parse_document, read_tensors

_WORKERS = 2

PathOf = Callable[[str], Path]
"""Gives the file of the blob with a SHA-256."""


def read_snapshot(manifest: Manifest, path_of: PathOf) -> Snapshot | list[Damage]:
    """Return the snapshot that a manifest describes, or all that is wrong with it.

    Nothing is parsed before everything is verified.
    """
    damages = verified(manifest, dict(parts_of(manifest)), path_of)
    if damages:
        return damages
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    documents: dict[str, JsonValue | bytes] = {}
    for entry in manifest.files:
        stem = Path(entry.name).stem
        content = _read_file(entry, path_of(entry.sha256))
        if isinstance(content, str):
            damages.append(Damage(manifest.generation, entry.name, content, blob_name(entry.sha256)))
        elif isinstance(content, dict):
            tensors[stem] = content
        else:
            documents[stem] = content[0]
    ring = None if manifest.ring is None or damages else _read_ring(manifest, manifest.ring, path_of)
    if isinstance(ring, list):
        damages += ring
    if damages or isinstance(ring, list):
        return damages
    return Snapshot(manifest.generation, tensors, documents, manifest.champion_generation, ring, manifest.computed_by)


def verified(manifest: Manifest, parts: dict[str, str], path_of: PathOf) -> list[Damage]:
    """Return what is wrong with parts of a generation: sizes and SHA-256 of their blobs.

    Args:
        manifest: the generation's.
        parts: what each is called -> its blob's name, as `parts_of` gives them.
        path_of: the file of a blob.
    """
    sizes = manifest.blobs
    blobs = sorted(set(parts.values()), key=lambda name: -sizes[name])
    progress = BytesDone("load", sum(sizes[name] for name in blobs))

    def check(name: str) -> str | None:
        sha256 = name.rsplit("/", 1)[1]
        return blob_damage(path_of(sha256), sizes[name], sha256, progress.add)

    with ThreadPoolExecutor(_WORKERS) as threads:
        wrong = dict(zip(blobs, threads.map(check, blobs), strict=True))
    found = ((part, name, wrong[name]) for part, name in parts.items())
    return [Damage(manifest.generation, part, what, name) for part, name, what in found if what is not None]


def _read_file(entry: FileEntry, path: Path) -> dict[str, torch.Tensor] | tuple[JsonValue] | str:
    if entry.tensors is not None:
        return read_tensors(path, entry.tensors)
    try:
        return parse_document(path.read_bytes())
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _read_ring(manifest: Manifest, entry: RingEntry, path_of: PathOf) -> Ring | list[Damage]:
    ring = read_ring(entry, path_of)
    if isinstance(ring, Ring):
        return ring
    return [
        Damage(manifest.generation, "replay", what, manifest.name)
        if shard is None
        else Damage(manifest.generation, shard_title(shard.first), what, blob_name(shard.sha256))
        for shard, what in ring
    ]
