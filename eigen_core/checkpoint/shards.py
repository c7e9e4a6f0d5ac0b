"""Shards: consecutive rows of the replay buffer as one stream, compressed, in bounded memory both ways.

Before compression a shard is

    8 bytes   EIGNRING
    4 bytes   length of the header (little-endian)
    header    JSON: first, count, block (rows), columns [{name, dtype, shape of a row}] by name
    blocks    of `block` rows, the last one of fewer; in each block column after column, and of a column first the
              first byte of every row, then the second byte of every row, and so on

The bytes of one value over many rows resemble each other more than the bytes of one row do, so this compresses better
than rows, and better than the bytes of one element after another.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from pydantic import JsonValue

from eigen_core.checkpoint.blobs import HashingFile
from eigen_core.checkpoint.checksums import canonical_json
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.manifest import Compression, RingEntry, ShardEntry, TensorFacts
from eigen_core.checkpoint.snapshot import Ring, slot_ranges

_MAGIC = b"EIGNRING"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LENGTH_BYTES = 4
_HEADER_LIMIT = 1 << 20
_BLOCK_BYTES = 4 << 20
_LARGEST_BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 17
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1
_ZSTD_WINDOW = 8 << 20
"""Largest window (bytes) that a reader sets aside; that of level 1 is half a megabyte."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class _Head:
    first: int
    count: int
    block: int
    columns: tuple[TensorFacts, ...]

    def spelled(self) -> bytes:
        columns: list[JsonValue] = [column.model_dump(mode="json") for column in self.columns]
        header = canonical_json({"first": self.first, "count": self.count, "block": self.block, "columns": columns})
        return _MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header


def _block_rows(columns: tuple[TensorFacts, ...], count: int) -> int:
    return max(1, min(count, _BLOCK_BYTES // max(1, sum(column.nbytes for column in columns))))


def write_shard(
    file: HashingFile,
    ring: Ring,
    columns: tuple[TensorFacts, ...],
    first: int,
    count: int,
    compression: Compression,
) -> int:
    """Write rows of a ring as a shard and return its size before compression (bytes)."""
    head = _Head(first, count, _block_rows(columns, count), columns)
    start = head.spelled()
    raw_bytes = len(start) + count * sum(column.nbytes for column in columns)
    compressor = _compressor(compression, raw_bytes)
    file.write(compressor.compress(start))
    for planes in _planes(ring, head):
        file.write(compressor.compress(planes))
    file.write(compressor.flush())
    return raw_bytes


def _planes(ring: Ring, head: _Head) -> Iterator[memoryview]:
    """Yield the blocks of a shard, column after column; each is overwritten when the next one is asked for."""
    buffers = {column.name: np.empty((column.nbytes, head.block), dtype=np.uint8) for column in head.columns}
    for start in range(head.first, head.first + head.count, head.block):
        stop = min(start + head.block, head.first + head.count)
        for column in head.columns:
            planes = buffers[column.name]
            if stop - start != planes.shape[1]:
                planes = np.empty((column.nbytes, stop - start), dtype=np.uint8)
            for row, slots in slot_ranges(ring.capacity, start, stop):
                rows = rows_as_bytes(ring.columns[column.name][slots])
                planes[:, row - start : row - start + len(rows)] = rows.T
            if column.nbytes:
                yield planes.reshape(-1).data


def rows_as_bytes(rows: torch.Tensor) -> Bytes:
    """Return rows `[count, ...]` as bytes `[count, bytes of a row]`; contiguous ones on the CPU are not copied."""
    flat = rows.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(len(rows), flat.size // len(rows))


class _Compressor(Protocol):
    def compress(self, data: bytes | memoryview, /) -> bytes | memoryview: ...

    def flush(self) -> bytes: ...


class _NoCompressor:
    def compress(self, data: bytes | memoryview, /) -> bytes | memoryview:
        return data

    def flush(self) -> bytes:
        return b""


def _compressor(compression: Compression, raw_bytes: int) -> _Compressor:
    if compression == "zstd":
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=raw_bytes)
    if compression == "gzip":
        return zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS + 16)
    return _NoCompressor()


def read_shard(file: BinaryIO, entry: RingEntry, shard: ShardEntry, columns: dict[str, Bytes]) -> None:
    """Read a verified shard into the slots of its rows; rows that have been overwritten since are left out.

    Nothing beyond the sizes in the manifest is ever decompressed.

    Args:
        file: an unbuffered file at its start.
        entry, shard: what the manifest says of the ring and the shard.
        columns: name -> the ring's memory as bytes `[capacity, bytes of a row]`.

    Raises:
        DamagedFileError: its content is not what the manifest says.
    """
    stream = _reader(file)
    try:
        head = _read_head(stream, entry, shard)
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
            raise DamagedFileError("holds more than its manifest says")
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise DamagedFileError(f"cannot be decompressed ({error})") from error


def _read_head(stream: "_Reader", entry: RingEntry, shard: ShardEntry) -> _Head:
    """Read what stands before the blocks, which must be what this very shard's writer wrote."""
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
    head = _Head(shard.first, shard.count, block, entry.columns)
    if head.spelled() != bytes(start + header):
        raise DamagedFileError("has an unexpected header")
    if block > 1 and block * entry.row_bytes > _LARGEST_BLOCK_BYTES:
        raise DamagedFileError("has blocks that are too large")
    if len(start) + length + shard.count * entry.row_bytes != shard.raw_bytes:
        raise DamagedFileError("has another size than its rows")
    return head


class _Reader(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


def _read_exactly(stream: _Reader, buffer: memoryview) -> None:
    while len(buffer):
        count = stream.readinto(buffer)
        if not count:
            raise DamagedFileError("ends too early")
        buffer = buffer[count:]


def _reader(file: BinaryIO) -> _Reader:
    """Return a stream of what a file holds, decompressed; how it was compressed is seen from its first bytes."""
    magic = file.read(len(_ZSTD_MAGIC))
    file.seek(0)
    if magic == _ZSTD_MAGIC:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return decompressor.stream_reader(file, read_size=_READ_BYTES, read_across_frames=True, closefd=False)
    if magic.startswith(_GZIP_MAGIC):
        return _GzipReader(file)
    return file  # type: ignore[return-value]  # typeshed leaves readinto out of BinaryIO; raw files have it


class _GzipReader:
    """Decompresses one gzip member, never more than is asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail or self._file.read(_READ_BYTES)
            content = self._decompressor.decompress(compressed, len(buffer))
            buffer[: len(content)] = content
            if content:
                return len(content)
            if not compressed:
                raise EOFError("the stream ends too early")
        if self._decompressor.unused_data or self._file.read(1):
            raise EOFError("there is something after its end")
        return 0
