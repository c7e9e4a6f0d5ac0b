"""The ring that comes back is the ring itself; a shard that lies is refused."""

import gzip
import io
import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
import torch
import zstandard
from checkpoint_samples import assert_same_ring, new_run, newest_of, ring_of
from hypothesis import given, settings, strategies as st
from known import known

from eigen_core.checkpoint import replay_shards as ring_module
from eigen_core.checkpoint.integrity import DamagedFileError, blob_path
from eigen_core.checkpoint.manifest import RingEntry, ShardEntry, TensorInfo
from eigen_core.checkpoint.replay_shards import Ring, empty_ring, read_shard, ring_columns, rows_as_bytes
from eigen_core.checkpoint.run_directory import RunDirectory, SavedGeneration
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.machine.allocation import lazy_zeros
from eigen_core.machine.memory_usage import own_resident_bytes


def save(run: RunDirectory, generation: int, ring: Ring) -> SavedGeneration:
    return run.save(Snapshot(generation, {}, {}, 0, ring))


def ring_entry(saved: SavedGeneration) -> RingEntry:
    return known(saved.manifest.ring)


def loaded_ring(run: RunDirectory) -> Ring:
    loaded = newest_of(run)
    assert loaded.damages == []
    return known(loaded.snapshot.ring)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 45)),
        st.tuples(
            st.sampled_from(["reopen", "load", "older", "lose a shard", "cut a shard", "clean", "forget"]), st.just(0)
        ),
        st.tuples(st.just("save"), st.just(0)),
    ),
    max_size=16,
)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), EVENTS)
def test_any_history_of_a_ring_ends_in_the_ring_itself(capacity: int, events: list[tuple[str, int]]) -> None:
    """Against the obvious model: the number of rows at each saved generation, since a row's content is its number."""
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(Path(folder))
        written = generation = 0
        saved: dict[int, int] = {}
        for event, value in events:
            if event == "append":
                written += value
            elif event == "save":
                generation += 1
                save(run, generation, ring_of(written, capacity))
                saved[generation] = written
            elif event == "reopen":  # what was not saved is lost
                run = RunDirectory.open(Path(folder), "run")
                written, generation = _back_to(saved, max(saved, default=0))
                assert (run.load_newest() is None) == (not saved)
            elif event == "forget":  # a process that saves without having loaded anything
                run = RunDirectory.open(Path(folder), "run")
            elif event == "load" and saved:
                assert_same_ring(loaded_ring(run), ring_of(saved[max(saved)], capacity))
                written, generation = _back_to(saved, max(saved))
            elif event == "older" and len(saved) > 1:
                before = sorted(saved)[-2]
                manifests = run.contents.manifests()
                older = known(run.load(next(found for found in manifests if found.generation == before)).snapshot.ring)
                assert_same_ring(older, ring_of(saved[before], capacity))
                written = saved[before]
            elif event in ("lose a shard", "cut a shard") and saved and saved[max(saved)]:
                # Noticed when the next generation is saved, which then has all it needs; the older ones are gone.
                shard = blob_of_newest(run)
                if event == "lose a shard":
                    shard.unlink()
                else:
                    shard.write_bytes(shard.read_bytes()[:-1])
                generation += 1
                save(run, generation, ring_of(written, capacity))
                saved = {generation: written}
                run.contents.clean(1, 0)
            elif event == "clean":
                run.contents.clean(2, 0)
                saved = {number: saved[number] for number in sorted(saved)[-2:]}
            if saved:
                ring = newest_of(RunDirectory.open(Path(folder), "run"))
                assert_same_ring(known(ring.snapshot.ring), ring_of(saved[max(saved)], capacity))


def _back_to(saved: dict[int, int], generation: int) -> tuple[int, int]:
    return saved.get(generation, 0), generation


def blob_of_newest(run: RunDirectory) -> Path:
    manifest = known(run.contents.newest_manifest())
    return blob_path(run.path, manifest.shards[-1].sha256)


def test_only_what_was_appended_is_written(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = save(run, 1, ring_of(17))
    second = save(run, 2, ring_of(34))
    third = save(run, 3, ring_of(34))
    fourth = save(run, 4, ring_of(70))
    assert [(shard.first, shard.count) for shard in ring_entry(second).shards] == [(0, 17), (17, 17)]
    assert ring_entry(second).shards[0] == ring_entry(first).shards[0]
    assert second.ring_bytes == ring_entry(second).shards[1].bytes
    assert third.ring_bytes == 0
    # Rows 30 to 69 are left: the first shard serves no more, the second in part.
    assert [(shard.first, shard.count) for shard in ring_entry(fourth).shards] == [(17, 17), (34, 36)]
    last = save(run, 5, ring_of(200))
    assert [(shard.first, shard.count) for shard in ring_entry(last).shards] == [(160, 40)]


def test_a_resumed_run_writes_the_very_shards_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    straight, stopping = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    for generation in range(1, 9):
        one = save(straight, generation, ring_of(17 * generation))
        save(stopping, generation, ring_of(17 * generation))
        stopping = RunDirectory.open(tmp_path / "b", "run")
        assert_same_ring(loaded_ring(stopping), ring_of(17 * generation))
        other = known(stopping.contents.newest_manifest())
        assert other.ring == one.manifest.ring


TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4),
    st.integers(1, 9),
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
)
def test_columns_of_all_types_and_shapes(
    kinds: list[tuple[torch.dtype, list[int]]], capacity: int, appends: list[int]
) -> None:
    columns = {
        f"c{index}": torch.randint(0, 2, (capacity, *shape)).to(dtype) for index, (dtype, shape) in enumerate(kinds)
    }
    with tempfile.TemporaryDirectory() as folder:
        run, written = new_run(Path(folder)), 0
        for generation, count in enumerate(appends, 1):
            for row in range(written, written + count):
                for column in columns.values():
                    column[row % capacity] = torch.randint(0, 2, column.shape[1:]).to(column.dtype)
            written += count
            ring = Ring(columns, min(written, capacity), written)
            save(run, generation, ring)
            assert_same_ring(loaded_ring(RunDirectory.open(Path(folder), "run")), ring)


def test_large_rings_are_spread_and_long_histories_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = sum(column.nbytes for column in ring_columns(ring_of(1)))
    monkeypatch.setattr(ring_module, "_SHARD_BYTES", 10 * row_bytes)
    monkeypatch.setattr(ring_module, "_SMALL_SHARDS", 4)
    run = new_run(tmp_path)
    counts = [shard.count for shard in ring_entry(save(run, 1, ring_of(33))).shards]
    assert counts == [8, 8, 8, 9]
    sizes = []
    for generation in range(2, 40):
        saved = save(run, generation, ring_of(33 + generation))
        sizes.append(len(ring_entry(saved).shards))
        assert_same_ring(loaded_ring(run), ring_of(33 + generation))
    assert max(sizes) <= 4 + 4
    assert sizes.count(4) >= 3


@pytest.mark.parametrize(
    ("columns", "written", "sentence"),
    [
        ({"a": 3, "b": 4}, 0, "same number of slots"),
        ({}, 0, "same number of slots"),
        ({"a": 3}, 4, "cannot hold 4"),
        ({"../a": 3}, 0, "cannot name a column"),
    ],
)
def test_a_ring_that_is_none_is_refused(columns: dict[str, int], written: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Ring({name: torch.zeros(length) for name, length in columns.items()}, written, written)


def test_a_ring_of_another_shape_is_written_as_a_whole(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, 1, ring_of(30))
    for generation, ring in enumerate((ring_of(35, capacity=20), ring_of(5)), 2):
        saved = save(run, generation, ring)
        assert len(ring_entry(saved).shards) == 1
        assert_same_ring(loaded_ring(run), ring)


def test_loading_takes_what_is_stored_whatever_the_capacity(tmp_path: Path) -> None:
    columns = {"values": lazy_zeros((5_000_000, 100), torch.float32)}
    columns["values"][:20_000] = 1.0
    run = new_run(tmp_path)
    save(run, 1, Ring(columns, 20_000, 20_000))
    before = own_resident_bytes()
    ring = loaded_ring(run)
    # Of 2 GB.
    assert own_resident_bytes() - before < 60_000_000
    assert torch.equal(ring.columns["values"][:20_001], columns["values"][:20_001])


WRITTEN = 30


@pytest.fixture
def stream(tmp_path: Path) -> tuple[bytes, RingEntry]:
    run = new_run(tmp_path)
    entry = ring_entry(save(run, 1, ring_of(WRITTEN)))
    content = blob_of_newest(run).read_bytes()
    return zstandard.ZstdDecompressor().decompress(content), entry


def read(content: bytes, entry: RingEntry, **changes: int) -> Ring:
    ring = empty_ring(entry)
    memory = {name: rows_as_bytes(column) for name, column in ring.columns.items()}
    shard = entry.shards[0].model_copy(update={"bytes": len(content), **changes})
    read_shard(io.BytesIO(content), entry, shard, memory)
    return ring


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(content)


def test_a_stream_of_another_length_is_refused(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    for length in (0, 1, 7, 11, 12, 40, len(content) // 2, len(content) - 1):
        with pytest.raises(DamagedFileError, match="ends too early"):
            read(zstd(content[:length]), entry)
    with pytest.raises(DamagedFileError, match="more bytes than the manifest says"):
        read(zstd(content + b"\0"), entry)
    stored = zstd(content)
    for length in {4, 10, 20, *range(30, len(stored), 29)}:
        with pytest.raises(DamagedFileError):
            read(stored[:length], entry)
    for other in (stored + b"garbage", stored + stored, content, gzip.compress(content)):
        with pytest.raises(DamagedFileError):
            read(other, entry)


def bomb(content: bytes) -> bytes:
    """The stream followed by 256 MB of zeros, compressed to less than a megabyte."""
    squeezer = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [squeezer.compress(content), *(squeezer.compress(bytes(16 << 20)) for _ in range(16))]
    return b"".join([*pieces, squeezer.flush()])


def test_a_bomb_takes_no_memory(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    for compressed in (bomb(content), bomb(b"")):
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


def with_header(content: bytes, header: bytes) -> bytes:
    length = int.from_bytes(content[8:12], "little")
    return content[:8] + len(header).to_bytes(4, "little") + header + content[12 + length :]


def header_fields(content: bytes, **changes: object) -> bytes:
    length = int.from_bytes(content[8:12], "little")
    return json.dumps(
        {**json.loads(content[12 : 12 + length]), **changes}, sort_keys=True, separators=(",", ":")
    ).encode()


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"[" * 100_000, b"null", b"{}", b"\xff"),
        *({"first": 1}, {"count": 29}, {"x": 1}, {"columns": []}),
        *({"block": block} for block in (0, 31, "4", True)),
    ],
)
def test_another_header_is_refused(stream: tuple[bytes, RingEntry], header: bytes | dict[str, object]) -> None:
    content, entry = stream
    header = header if isinstance(header, bytes) else header_fields(content, **header)
    with pytest.raises(DamagedFileError, match="unexpected header"):
        read(zstd(with_header(content, header)), entry)


def test_a_shard_of_other_rows_is_refused(stream: tuple[bytes, RingEntry]) -> None:
    content, entry = stream
    with pytest.raises(DamagedFileError, match="unexpected header"):
        read(zstd(content), entry, first=2)
    for start in (b"EIGNRINK" + content[8:12], content[:8] + (1 << 30).to_bytes(4, "little")):
        with pytest.raises(DamagedFileError, match="no shard"):
            read(zstd(start + content[12:]), entry)


def test_blocks_of_any_length_are_read(stream: tuple[bytes, RingEntry]) -> None:
    """As another version of the writer may choose them."""
    content, entry = stream
    for block in (1, 7, 29, 30):
        ring, planes = ring_of(WRITTEN), b""
        for start in range(0, WRITTEN, block):
            for column in entry.columns:
                rows = ring.columns[column.name][start : min(start + block, WRITTEN)]
                if rows.numel():
                    table = rows.contiguous().reshape(-1).view(torch.uint8).reshape(len(rows), -1)
                    planes += table.T.contiguous().numpy().tobytes()
        header = header_fields(content, block=block)
        other = content[:8] + len(header).to_bytes(4, "little") + header + planes
        assert_same_ring(read(zstd(other), entry), ring)


def test_a_ring_for_which_there_is_no_memory_is_damage() -> None:
    shard = ShardEntry(first=0, count=1, bytes=1, sha256="0" * 64)
    column = TensorInfo(name="a", dtype="F64", shape=(9,))
    entry = RingEntry(capacity=10**14, size=1, written=1, columns=(column,), shards=(shard,))
    with pytest.raises(DamagedFileError, match="more memory than there is"):
        empty_ring(entry)
