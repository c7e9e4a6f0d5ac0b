"""A shard that lies is refused: bombs, short streams, trailing bytes, headers of something else."""

import gzip
import io
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import zstandard
from checkpoint_samples import assert_same_ring, new_run, ring_of

from eigen_core.checkpoint.integrity import DamagedFileError
from eigen_core.checkpoint.manifest import RingEntry, ShardEntry, TensorFacts
from eigen_core.checkpoint.ring import Ring, empty_ring, read_shard
from eigen_core.checkpoint.snapshot import Snapshot

WRITTEN = 30


@pytest.fixture
def stream(tmp_path: Path) -> tuple[bytes, RingEntry]:
    """A shard before compression, and the ring's entry."""
    run = new_run(tmp_path)
    saved = run.save(Snapshot(1, {}, {}, 0, ring_of(WRITTEN)))
    assert saved.manifest.ring is not None
    (shard,) = saved.manifest.ring.shards
    content = run.blob_path(shard.sha256).read_bytes()
    return zstandard.ZstdDecompressor().decompress(content), saved.manifest.ring


def read(content: bytes, entry: RingEntry, **changes: int) -> Ring:
    ring = ring_of(0)
    columns = {name: torch.zeros_like(column) for name, column in ring.columns.items()}
    memory = {
        name: column.reshape(-1).view(torch.uint8).numpy().reshape(len(column), -1 if column.numel() else 0)
        for name, column in columns.items()
    }
    shard = entry.shards[0].model_copy(update={"bytes": len(content), **changes})
    read_shard(io.BytesIO(content), entry, shard, memory)
    return Ring(columns, entry.size, entry.written)


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(content)


WRAPS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, zstd]
NAMES = ["none", "gzip", "zstd"]


@pytest.mark.parametrize("wrap", WRAPS, ids=NAMES)
def test_any_program_may_have_compressed_it(stream: tuple[bytes, RingEntry], wrap: Callable[[bytes], bytes]) -> None:
    content, entry = stream
    assert_same_ring(read(wrap(content), entry), ring_of(WRITTEN))


@pytest.mark.parametrize("wrap", WRAPS, ids=NAMES)
def test_a_stream_of_another_length_is_refused(stream: tuple[bytes, RingEntry], wrap: Callable[[bytes], bytes]) -> None:
    content, entry = stream
    for length in (0, 1, 7, 11, 12, 40, len(content) // 2, len(content) - 1):
        with pytest.raises(DamagedFileError, match="ends too early"):
            read(wrap(content[:length]), entry)
    with pytest.raises(DamagedFileError, match="more than its manifest says"):
        read(wrap(content + b"\0"), entry)


@pytest.mark.parametrize("wrap", WRAPS[1:], ids=NAMES[1:])
def test_a_cut_or_lengthened_compressed_stream_is_refused(
    stream: tuple[bytes, RingEntry], wrap: Callable[[bytes], bytes]
) -> None:
    content, entry = stream
    compressed = wrap(content)
    for length in {4, 10, 20, *range(30, len(compressed), 29)}:
        with pytest.raises(DamagedFileError):
            read(compressed[:length], entry)
    for tail in (b"garbage", compressed):
        with pytest.raises(DamagedFileError):
            read(compressed + tail, entry)


def bomb(content: bytes) -> list[bytes]:
    """The stream followed by 256 MB of zeros, compressed to a megabyte or two."""
    bombs = []
    packer = zlib.compressobj(1, wbits=31)
    squeezer = zstandard.ZstdCompressor(level=1).compressobj()
    for pack in (packer, squeezer):
        pieces = [pack.compress(content)]
        pieces += [pack.compress(bytes(16 << 20)) for _ in range(16)]
        bombs.append(b"".join([*pieces, pack.flush()]))
    return bombs


def test_a_bomb_takes_no_memory(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    for compressed in (*bomb(content), *bomb(b"")):
        assert len(compressed) < 2 << 20
        tracemalloc.start()
        with pytest.raises(DamagedFileError):
            read(compressed, entry)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 << 20


def test_a_window_that_takes_much_memory_is_refused(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    wide = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=27))
    compressor = wide.compressobj()
    with pytest.raises(DamagedFileError, match="too much memory"):
        read(compressor.compress(content) + compressor.flush(), entry)


def test_lengths_that_lie_take_no_memory(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    start = content[:8] + (1 << 30).to_bytes(4, "little") + content[12:]
    with pytest.raises(DamagedFileError, match="no shard"):
        read(start, entry)


@pytest.mark.parametrize(
    "change",
    [
        {"first": 1},
        {"count": 29},
        {"block": 0},
        {"block": 31},
        {"block": "4"},
        {"block": True},
        {"x": 1},
        {"columns": []},
    ],
)
def test_a_header_of_something_else_is_refused(stream: tuple[bytes, RingEntry], change: dict[str, object]) -> None:
    content, entry = stream
    length = int.from_bytes(content[8:12], "little")
    fields = {**json.loads(content[12 : 12 + length]), **change}
    header = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(DamagedFileError, match="header"):
        read(content[:8] + len(header).to_bytes(4, "little") + header + content[12 + length :], entry)


@pytest.mark.parametrize("header", [b"", b"[" * 100_000, b"null", b"{}", b"\xff"])
def test_a_header_that_is_none_is_refused(stream: tuple[bytes, RingEntry], header: bytes) -> None:
    content, entry = stream
    with pytest.raises(DamagedFileError, match="unexpected header"):
        read(content[:8] + len(header).to_bytes(4, "little") + header, entry)


def test_a_shard_of_other_rows_is_refused(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    with pytest.raises(DamagedFileError, match="unexpected header"):
        read(content, entry, first=2)
    with pytest.raises(DamagedFileError, match="another size than its rows"):
        read(content, entry, raw_bytes=len(content) - 1)
    with pytest.raises(DamagedFileError, match="no shard"):
        read(b"EIGNRINK" + content[8:], entry)


@pytest.mark.parametrize("wrap", WRAPS, ids=NAMES)
def test_blocks_of_any_length_are_read(stream: tuple[bytes, RingEntry], wrap: Callable[[bytes], bytes]) -> None:
    """As another version of the writer may choose them."""
    content, entry = stream
    length = int.from_bytes(content[8:12], "little")
    fields = json.loads(content[12 : 12 + length])
    for block in (1, 7, 29, 30):
        header = json.dumps({**fields, "block": block}, sort_keys=True, separators=(",", ":")).encode()
        ring, planes = ring_of(WRITTEN), b""
        for start in range(0, WRITTEN, block):
            for column in entry.columns:
                rows = ring.columns[column.name][start : min(start + block, WRITTEN)]
                if rows.numel():
                    table = rows.contiguous().reshape(-1).view(torch.uint8).reshape(len(rows), -1)
                    planes += table.T.contiguous().numpy().tobytes()
        other = content[:8] + len(header).to_bytes(4, "little") + header + planes
        assert_same_ring(read(wrap(other), entry, raw_bytes=len(other)), ring)


def test_a_ring_for_which_there_is_no_memory_is_damage() -> None:
    shard = ShardEntry(first=0, count=1, bytes=1, sha256="0" * 64, raw_bytes=1, compression="none")
    column = TensorFacts(name="a", dtype="F64", shape=(9,))
    entry = RingEntry(capacity=10**14, size=1, written=1, columns=(column,), shards=(shard,))
    with pytest.raises(DamagedFileError, match="more memory than there is"):
        empty_ring(entry)
