"""The ring that comes back is the ring itself, whatever was appended, saved, loaded and killed before."""

import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import zstandard
from checkpoint_samples import assert_same_ring, blob_of, new_run, ring_of, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen_core.checkpoint import ring as ring_module
from eigen_core.checkpoint.integrity import checksummed
from eigen_core.checkpoint.manifest import Manifest, RingEntry
from eigen_core.checkpoint.ring import Ring, ring_columns
from eigen_core.checkpoint.run_directory import RunDirectory, Saved
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.machine import unwritten_zeros
from eigen_core.machine.usage import own_resident_bytes

OTHER_WRITERS: dict[str, Callable[[bytes], bytes]] = {"none": bytes, "gzip": gzip.compress}
"""How earlier versions could store a shard, too."""


def save(run: RunDirectory, generation: int, ring: Ring) -> Saved:
    return run.save(Snapshot(generation, {}, {}, 0, ring))


def ring_entry(saved: Saved) -> RingEntry:
    assert saved.manifest.ring is not None
    return saved.manifest.ring


def loaded_ring(run: RunDirectory) -> Ring:
    loaded = run.load_newest()
    assert loaded is not None
    assert loaded.damages == []
    assert loaded.snapshot.ring is not None
    return loaded.snapshot.ring


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 45)),
        st.tuples(st.sampled_from(["reopen", "load", "older", "lose a shard", "clean", "forget"]), st.just(0)),
        st.tuples(st.just("save"), st.just(0)),
    ),
    max_size=16,
)


@settings(deadline=None, max_examples=60)
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
                older = run.load(next(found for found in manifests if found.generation == before)).snapshot.ring
                assert older is not None
                assert_same_ring(older, ring_of(saved[before], capacity))
                written = saved[before]
            elif event == "lose a shard" and saved and saved[max(saved)]:
                # Noticed when the next generation is saved, which then has all it needs; the older ones are gone.
                blob_of_newest(run).unlink()
                generation += 1
                save(run, generation, ring_of(written, capacity))
                saved = {generation: written}
                run.clean(1, 0)
            elif event == "clean":
                run.clean(2, 0)
                saved = {number: saved[number] for number in sorted(saved)[-2:]}
            if saved:
                ring = RunDirectory.open(Path(folder), "run").load_newest()
                assert ring is not None
                assert ring.snapshot.ring is not None
                assert_same_ring(ring.snapshot.ring, ring_of(saved[max(saved)], capacity))


def _back_to(saved: dict[int, int], generation: int) -> tuple[int, int]:
    return saved.get(generation, 0), generation


def blob_of_newest(run: RunDirectory) -> Path:
    manifest = run.contents.newest_manifest()
    assert manifest is not None
    return run.blob_path(manifest.shards[-1].sha256)


def test_only_what_was_appended_is_written(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = save(run, 1, ring_of(17))
    second = save(run, 2, ring_of(34))
    third = save(run, 3, ring_of(34))
    fourth = save(run, 4, ring_of(70))
    assert [(shard.first, shard.count) for shard in ring_entry(second).shards] == [(0, 17), (17, 17)]
    assert ring_entry(second).shards[0] == ring_entry(first).shards[0]
    assert second.ring_bytes == ring_entry(second).shards[1].bytes
    assert (third.ring_bytes, third.ring_raw_bytes, third.ring_share_saved) == (0, 0, 0.0)
    # Rows 30 to 69 are left: the first shard serves no more, the second in part.
    assert [(shard.first, shard.count) for shard in ring_entry(fourth).shards] == [(17, 17), (34, 36)]
    assert fourth.ring_share_saved == 1.0 - fourth.ring_bytes / fourth.ring_raw_bytes
    last = save(run, 5, ring_of(200))
    assert [(shard.first, shard.count) for shard in ring_entry(last).shards] == [(160, 40)]


def test_a_resumed_run_writes_the_very_shards_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    straight, stopping = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    for generation in range(1, 9):
        one = save(straight, generation, ring_of(17 * generation))
        save(stopping, generation, ring_of(17 * generation))
        stopping = RunDirectory.open(tmp_path / "b", "run")
        assert_same_ring(loaded_ring(stopping), ring_of(17 * generation))
        other = stopping.contents.newest_manifest()
        assert other is not None
        assert other.ring == one.manifest.ring


@pytest.mark.parametrize("kind", OTHER_WRITERS)
def test_a_run_whose_shards_an_earlier_version_stored_goes_on(tmp_path: Path, kind: str) -> None:
    run = new_run(tmp_path)
    _store_as(run, save(run, 1, ring_of(13)).manifest, kind)
    run = RunDirectory.open(tmp_path, "run")
    assert_same_ring(loaded_ring(run), ring_of(13))
    saved = save(run, 2, ring_of(30))
    assert [shard.compression for shard in ring_entry(saved).shards] == [kind, "zstd"]
    assert run.contents.verify() == []
    assert_same_ring(loaded_ring(RunDirectory.open(tmp_path, "run")), ring_of(30))


def _store_as(run: RunDirectory, manifest: Manifest, kind: str) -> None:
    """Replace a generation's only shard by one with the same rows that was compressed in another way."""
    fields = json.loads((run.path / manifest.name).read_bytes())
    fields.pop("checksum")
    (shard,) = manifest.shards
    blob = run.blob_path(shard.sha256)
    content = OTHER_WRITERS[kind](zstandard.ZstdDecompressor().decompress(blob.read_bytes()))
    blob.unlink()
    sha256 = hashlib.sha256(content).hexdigest()
    run.blob_path(sha256).parent.mkdir(exist_ok=True)
    run.blob_path(sha256).write_bytes(content)
    fields["ring"]["shards"][0] |= {"sha256": sha256, "bytes": len(content), "compression": kind}
    other = Manifest.model_validate_json(checksummed(fields))
    (run.path / manifest.name).unlink()
    (run.path / other.name).write_bytes(checksummed(fields))


TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


@settings(deadline=None, max_examples=40)
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


def test_views_and_turned_columns_are_stored_as_their_values(tmp_path: Path) -> None:
    bank = torch.arange(240.0).reshape(10, 24)
    columns = {"view": bank[:, 3:9], "turned": torch.arange(60).reshape(6, 10).T, "every_other": bank[:, ::2]}
    run = new_run(tmp_path)
    save(run, 1, Ring(columns, 10, 23))
    assert_same_ring(loaded_ring(run), Ring(columns, 10, 23))


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


def test_a_lost_or_cut_shard_is_made_good_by_the_next_save(tmp_path: Path) -> None:
    for damage in ("lost", "cut"):
        run = new_run(tmp_path, damage)
        run.save(sample(1))
        shard = blob_of(run, 1, "0")
        if damage == "lost":
            shard.unlink()
        else:
            shard.write_bytes(shard.read_bytes()[:-1])
        run.save(sample(2))
        newest = RunDirectory.open(tmp_path, damage).load_newest()
        assert newest is not None
        assert newest.damages == []
        assert newest.snapshot.generation == 2


def test_a_ring_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="equally long"):
        Ring({"a": torch.zeros(3), "b": torch.zeros(4)}, 0, 0)
    with pytest.raises(ValueError, match="equally long"):
        Ring({}, 0, 0)
    with pytest.raises(ValueError, match="cannot store 4"):
        Ring({"a": torch.zeros(3)}, 4, 4)
    with pytest.raises(ValueError, match="name of a column"):
        Ring({"../a": torch.zeros(3)}, 0, 0)


def test_a_ring_of_another_shape_is_written_as_a_whole(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, 1, ring_of(30))
    for generation, ring in enumerate((ring_of(35, capacity=20), ring_of(5)), 2):
        saved = save(run, generation, ring)
        assert len(ring_entry(saved).shards) == 1
        assert_same_ring(loaded_ring(run), ring)


def test_loading_takes_what_is_stored_whatever_the_capacity(tmp_path: Path) -> None:
    columns = {"values": unwritten_zeros((5_000_000, 100), torch.float32)}
    columns["values"][:20_000] = 1.0
    run = new_run(tmp_path)
    save(run, 1, Ring(columns, 20_000, 20_000))
    before = own_resident_bytes()
    ring = loaded_ring(run)
    # Of 2 GB.
    assert own_resident_bytes() - before < 60_000_000
    assert torch.equal(ring.columns["values"][:20_001], columns["values"][:20_001])
