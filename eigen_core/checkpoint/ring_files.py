"""The replay buffer as shards: what was appended since the last generation is one, what is still needed is kept."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from eigen_core.checkpoint.blobs import BlobFolder, HashingFile
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.manifest import DATA_TYPES, TORCH_TYPES, Compression, RingEntry, ShardEntry, TensorFacts
from eigen_core.checkpoint.shards import write_shard
from eigen_core.checkpoint.snapshot import Ring
from eigen_core.memory import unwritten_zeros

_SHARD_BYTES = 64 << 20
"""Rows of more bytes than this are spread over several shards."""
_SMALL_SHARDS = 256
"""With so many shards beyond those that the ring's size asks for, the ring is written anew as a whole."""
_WORKERS = 2

Item = TypeVar("Item")
Result = TypeVar("Result")

RowRange = tuple[int, int]
"""Number of a first row, and how many."""


def ring_columns(ring: Ring) -> tuple[TensorFacts, ...]:
    """Return name, type and shape of one row of each of a ring's columns, by name.

    Raises:
        ValueError: a column's type cannot be stored.
    """
    for name, column in ring.columns.items():
        if column.dtype not in DATA_TYPES:
            raise ValueError(f"column '{name}' of the ring is of type {column.dtype}, which cannot be stored")
    return tuple(
        TensorFacts(name=name, dtype=DATA_TYPES[column.dtype], shape=tuple(column.shape[1:]))
        for name, column in sorted(ring.columns.items())
    )


def plan_shards(
    ring: Ring, row_bytes: int, known: Sequence[ShardEntry], is_there: Callable[[ShardEntry], bool]
) -> tuple[list[ShardEntry], list[RowRange]]:
    """Return which of the known shards still serve, and which rows must be written.

    Args:
        ring: the ring to be saved.
        row_bytes: size of a row (bytes).
        known: shards of an earlier state of this ring, rising and without gaps; none if that is not known.
        is_there: whether a shard's blob can be read again.
    """
    oldest = ring.written - ring.size
    kept = [shard for shard in known if shard.stop > oldest]
    reaches = kept and kept[0].first <= oldest and kept[-1].stop <= ring.written
    if not reaches or not all(is_there(shard) for shard in kept):
        kept = []
    new = _spread(kept[-1].stop if kept else oldest, ring.written, row_bytes)
    whole = _spread(oldest, ring.written, row_bytes)
    if len(kept) + len(new) > _SMALL_SHARDS + len(whole):
        return [], whole
    return kept, new


def _spread(first: int, stop: int, row_bytes: int) -> list[RowRange]:
    """Split rows into as few equal ranges as keep each below the size of a shard."""
    count = stop - first
    parts = min(count, math.ceil(count * row_bytes / _SHARD_BYTES) or 1)
    bounds = [first + count * part // parts for part in range(parts + 1)] if count else []
    return [(low, high - low) for low, high in pairwise(bounds)]


def write_ring(
    ring: Ring | None, base: RingEntry | None, blobs: BlobFolder, compression: Compression
) -> tuple[RingEntry | None, list[ShardEntry]]:
    """Write what of a ring is not stored yet; return the ring's entry and the shards that were written.

    Args:
        ring: the ring; None: the snapshot has none.
        base: entry of an earlier state of this very ring, to which rows were only appended since; None: none is known.
        blobs: where shards are written.
        compression: how.
    """
    if ring is None:
        return None, []
    columns = ring_columns(ring)
    row_bytes = sum(column.nbytes for column in columns)
    known: tuple[ShardEntry, ...] = ()
    if base is not None and base.columns == columns and base.capacity == ring.capacity:
        known = base.shards
    kept, ranges = plan_shards(ring, row_bytes, known, lambda shard: _has_size(blobs.path(shard.sha256), shard.bytes))
    progress = BytesDone("save", sum(count for _, count in ranges) * row_bytes)

    def write(rows: RowRange) -> ShardEntry:
        first, count = rows
        raw_bytes = 0

        def fill(file: HashingFile) -> None:
            nonlocal raw_bytes
            raw_bytes = write_shard(file, ring, columns, first, count, compression)

        sha256, size = blobs.write(fill)
        progress.add(count * row_bytes)
        return ShardEntry(
            first=first, count=count, bytes=size, sha256=sha256, raw_bytes=raw_bytes, compression=compression
        )

    written = in_threads(write, ranges)
    entry = RingEntry(
        capacity=ring.capacity,
        size=ring.size,
        written=ring.written,
        columns=columns,
        shards=(*kept, *written),
    )
    return entry, written


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except FileNotFoundError:
        return False


def empty_ring(entry: RingEntry) -> Ring:
    """Return a ring as a manifest describes it, all of whose rows are still zeros.

    Raises:
        DamagedFileError: there is not enough memory for it.
    """
    try:
        columns = {
            column.name: unwritten_zeros((entry.capacity, *column.shape), TORCH_TYPES[column.dtype])
            for column in entry.columns
        }
    except MemoryError as error:
        raise DamagedFileError(f"needs more memory than there is ({error})") from error
    return Ring(columns, entry.size, entry.written)


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Do the work for each item, a few at a time; the first error is raised once all that began has ended."""
    with ThreadPoolExecutor(_WORKERS) as threads:
        return list(threads.map(work, items))
