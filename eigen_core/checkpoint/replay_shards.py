"""The replay buffer (a ring of slots) as shards, files of consecutive rows; each generation writes only its new rows.

A shard is one stream, compressed with zstd, and written and read in bounded memory. Before compression it is

    8 bytes   EIGNRING
    4 bytes   length of the header (little-endian)
    header    JSON: first, count, block (rows), columns [{name, dtype, shape of a row}] by name
    blocks    of `block` rows, the last one shorter; a block has column after column, and each column the first byte of
              every row, then the second byte of every row, and so on

The bytes of one value over many rows resemble each other more than the bytes of one row do, so this order compresses
better than row after row, or value after value.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from pydantic import JsonValue

from eigen_core.checkpoint.integrity import (
    BytesDone,
    DamagedFileError,
    blob_name,
    blob_path,
    canonical_json,
    write_blob,
)
from eigen_core.checkpoint.manifest import STEM, Manifest, RingEntry, ShardEntry, TensorInfo, reading_part
from eigen_core.checkpoint.tensors import TORCH_TYPES, tensor_bytes, tensor_infos
from eigen_core.common.files import open_regular_file
from eigen_core.machine.allocation import lazy_zeros

_MAGIC = b"EIGNRING"
_LENGTH_BYTES = 4
_HEADER_LIMIT = 1 << 20
_BLOCK_BYTES = 4 << 20
_LARGEST_BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 17
_ZSTD_LEVEL = 1
# The largest zstd window (bytes) that a reader allocates; level 1 writes shards with a window of half a megabyte.
_ZSTD_WINDOW = 8 << 20
_SHARD_BYTES = 64 << 20
# If a ring had more than this many shards in addition to those that its size requires, it is written anew.
_SMALL_SHARDS = 256
_WORKERS = 2

Bytes = NDArray[np.uint8]

RowRange = tuple[int, int]
"""Number of the first row (counted from 0 over all rows ever appended), and number of rows."""


@dataclass(frozen=True)
class Ring:
    """The newest rows of a table to which rows are only appended, in a fixed number of slots (`capacity`).

    Row number n (counted from 0 over all rows ever appended) is in slot n % capacity. Slots without a row may hold any
    values, after loading zeros. The constructor raises `ValueError` if its arguments do not fit together.
    """

    columns: Mapping[str, torch.Tensor]
    """Name -> tensor `[capacity, ...]`, on any device and possibly a view; after loading a contiguous CPU tensor."""
    size: int
    """Number of rows in the ring: the smaller of `written` and the capacity."""
    written: int
    """Number of rows ever appended."""

    def __post_init__(self) -> None:
        lengths = {column.shape[0] if column.ndim else 0 for column in self.columns.values()}
        if len(lengths) != 1 or min(lengths) < 1:
            raise ValueError(f"all columns of a ring must have the same number of slots above 0, not {sorted(lengths)}")
        if self.size != min(self.written, self.capacity) or self.written < 0:
            raise ValueError(f"a ring of {self.capacity} slots, after {self.written} rows, cannot hold {self.size}")
        for name in self.columns:
            if not STEM.fullmatch(name):
                raise ValueError(f"'{name}' cannot name a column of a ring: it must match {STEM.pattern}")

    @property
    def capacity(self) -> int:
        return int(next(iter(self.columns.values())).shape[0])


def slot_ranges(capacity: int, first: int, stop: int, most: int | None = None) -> Iterator[tuple[int, slice]]:
    """Divide rows `first` to `stop` (exclusive) into ranges of up to `most` rows; yield first row and slots of each."""
    while first < stop:
        slot = first % capacity
        count = min(stop - first, capacity - slot, stop if most is None else most)
        yield first, slice(slot, slot + count)
        first += count


def ring_columns(ring: Ring) -> tuple[TensorInfo, ...]:
    """Return name, type and shape of a row in each column, sorted by name; `ValueError` if a type cannot be stored."""
    return tensor_infos("the ring", {name: column[0] for name, column in ring.columns.items()})


def _plan_shards(
    ring: Ring, row_bytes: int, known: Sequence[ShardEntry], run: Path
) -> tuple[list[ShardEntry], list[RowRange]]:
    """Return the shards in `known` (of an earlier state of the ring) to reuse, and the ranges of rows to write."""
    oldest = ring.written - ring.size
    kept = [shard for shard in known if shard.stop > oldest]
    reaches = kept and kept[0].first <= oldest and kept[-1].stop <= ring.written
    paths = {blob_path(run, shard.sha256): shard.bytes for shard in kept}
    if not reaches or not all(path.is_file() and path.stat().st_size == size for path, size in paths.items()):
        kept = []
    new = _spread(kept[-1].stop if kept else oldest, ring.written, row_bytes)
    whole = _spread(oldest, ring.written, row_bytes)
    if len(kept) + len(new) > _SMALL_SHARDS + len(whole):
        return [], whole
    return kept, new


def _spread(first: int, stop: int, row_bytes: int) -> list[RowRange]:
    count = stop - first
    parts = min(count, math.ceil(count * row_bytes / _SHARD_BYTES) or 1)
    bounds = [first + count * part // parts for part in range(parts + 1)] if count else []
    return [(low, high - low) for low, high in pairwise(bounds)]


def write_ring(ring: Ring | None, base: RingEntry | None, run: Path) -> tuple[RingEntry | None, int]:
    """Write the rows of a ring that have no shard yet to the folder `run`; return the ring's entry and bytes written.

    `base`: manifest entry of an earlier state of this ring, to which rows were only appended since; None: write all.
    """
    if ring is None:
        return None, 0
    columns = ring_columns(ring)
    row_bytes = sum(column.nbytes for column in columns)
    known: tuple[ShardEntry, ...] = ()
    if base is not None and base.columns == columns and base.capacity == ring.capacity:
        known = base.shards
    kept, ranges = _plan_shards(ring, row_bytes, known, run)
    progress = BytesDone("save", sum(count for _, count in ranges) * row_bytes)

    def write(rows: RowRange) -> ShardEntry:
        first, count = rows
        head = _Header(first, count, max(1, min(count, _BLOCK_BYTES // max(1, row_bytes))), columns)
        sha256, size = write_blob(run, partial(_write_shard, ring=ring, head=head))
        progress.add(count * row_bytes)
        return ShardEntry(first=first, count=count, bytes=size, sha256=sha256)

    with ThreadPoolExecutor(_WORKERS) as threads:
        written = list(threads.map(write, ranges))
    entry = RingEntry(
        capacity=ring.capacity, size=ring.size, written=ring.written, columns=columns, shards=(*kept, *written)
    )
    return entry, sum(shard.bytes for shard in written)


def empty_ring(entry: RingEntry) -> Ring:
    """Return a ring of zeros of the size in a manifest's `entry`; `DamagedFileError` if memory does not suffice."""
    try:
        columns = {
            column.name: lazy_zeros((entry.capacity, *column.shape), TORCH_TYPES[column.dtype])
            for column in entry.columns
        }
    except MemoryError as error:
        raise DamagedFileError(f"needs more memory than there is ({error})") from error
    return Ring(columns, entry.size, entry.written)


@dataclass(frozen=True)
class _Header:
    first: int
    count: int
    block: int
    columns: tuple[TensorInfo, ...]

    def encoded(self) -> bytes:
        columns: list[JsonValue] = [column.model_dump(mode="json") for column in self.columns]
        header = canonical_json({"first": self.first, "count": self.count, "block": self.block, "columns": columns})
        return _MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header

    @property
    def raw_bytes(self) -> int:
        """Size of the shard, header included, before compression (bytes)."""
        return len(self.encoded()) + self.count * sum(column.nbytes for column in self.columns)


def _write_shard(path: Path, ring: Ring, head: _Header) -> None:
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=head.raw_bytes)
    with open(path, "wb") as file:
        file.write(compressor.compress(head.encoded()))
        for planes in _planes(ring, head):
            file.write(compressor.compress(planes))
        file.write(compressor.flush())


def _planes(ring: Ring, head: _Header) -> Iterator[memoryview]:
    """Yield the bytes of a shard after its header: block after block, and in each block column after column."""
    for start in range(head.first, head.first + head.count, head.block):
        stop = min(start + head.block, head.first + head.count)
        for column in head.columns:
            planes = np.empty((column.nbytes, stop - start), dtype=np.uint8)
            for row, slots in slot_ranges(ring.capacity, start, stop):
                rows = rows_as_bytes(ring.columns[column.name][slots])
                planes[:, row - start : row - start + len(rows)] = rows.T
            if column.nbytes:
                yield planes.reshape(-1).data


def rows_as_bytes(rows: torch.Tensor) -> Bytes:
    """Return rows `[count, ...]` as uint8 `[count, bytes of a row]`, a view if they are contiguous and on the CPU."""
    flat = tensor_bytes(rows)
    return flat.reshape(len(rows), flat.size // len(rows))


def read_shard(file: BinaryIO, entry: RingEntry, shard: ShardEntry, columns: dict[str, Bytes]) -> None:
    """Read a shard, whose SHA-256 the caller has verified, into the slots of its rows, unless newer rows replace them.

    No more bytes are decompressed than the manifest says; `DamagedFileError` if the content does not fit the manifest.
    `columns` maps each column's name to its slots in memory as uint8 `[capacity, bytes of a row]`.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    stream = decompressor.stream_reader(file, read_size=_READ_BYTES, read_across_frames=True, closefd=False)
    try:
        head = _read_header(stream, entry, shard)
        oldest = max(shard.first, entry.written - entry.size)
        for start in range(shard.first, shard.stop, head.block):
            stop = min(start + head.block, shard.stop)
            for column in head.columns:
                planes = np.empty((column.nbytes, stop - start), dtype=np.uint8)
                _read_exactly(stream, planes.reshape(-1).data)
                for row, slots in slot_ranges(entry.capacity, max(start, oldest), stop):
                    rows = planes[:, row - start : row - start + (slots.stop - slots.start)]
                    columns[column.name][slots] = rows.T
        if stream.readinto(memoryview(bytearray(1))):
            raise DamagedFileError("holds more bytes than the manifest says")
    except zstandard.ZstdError as error:
        raise DamagedFileError(f"cannot be decompressed ({error})") from error


def _read_header(stream: zstandard.ZstdDecompressionReader, entry: RingEntry, shard: ShardEntry) -> _Header:
    start = bytearray(len(_MAGIC) + _LENGTH_BYTES)
    _read_exactly(stream, memoryview(start))
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if start[: len(_MAGIC)] != _MAGIC or length > _HEADER_LIMIT:
        raise DamagedFileError("is no shard of a replay buffer")
    header = bytearray(length)
    _read_exactly(stream, memoryview(header))
    try:
        block = json.loads(header)["block"]
    except (ValueError, TypeError, KeyError, RecursionError):
        block = None
    if type(block) is not int or not 1 <= block <= shard.count:
        raise DamagedFileError("has an unexpected header")
    head = _Header(shard.first, shard.count, block, entry.columns)
    if head.encoded() != bytes(start + header):
        raise DamagedFileError("has an unexpected header")
    if block > 1 and block * entry.row_bytes > _LARGEST_BLOCK_BYTES:
        raise DamagedFileError(f"has blocks of more than {_LARGEST_BLOCK_BYTES:,} bytes")
    return head


def _read_exactly(stream: zstandard.ZstdDecompressionReader, buffer: memoryview) -> None:
    while len(buffer):
        count = stream.readinto(buffer)
        if not count:
            raise DamagedFileError("ends too early")
        buffer = buffer[count:]


def read_ring(manifest: Manifest, entry: RingEntry, run: Path) -> Ring:
    """Read the ring of a generation, whose blobs the caller has verified; `DamagedGenerationError` if that fails."""
    with reading_part(manifest, "replay", manifest.name):
        ring = empty_ring(entry)
    memory = {name: rows_as_bytes(column) for name, column in ring.columns.items()}

    def read(shard: ShardEntry) -> None:
        path = blob_path(run, shard.sha256)
        with (
            reading_part(manifest, shard.title, blob_name(shard.sha256)),
            open_regular_file(path, follow=False) as file,
        ):
            read_shard(file, entry, shard, memory)

    with ThreadPoolExecutor(_WORKERS) as threads:
        list(threads.map(read, entry.shards))
    return ring
