"""Old generations go; the last, every m-th and the champion's stay, and damage never costs the last good one."""

import os
from pathlib import Path

import pytest
from checkpoint_samples import (
    blob_of,
    files_of,
    generations_of,
    in_memory,
    manifest_of,
    new_run,
    newest_of,
    sample,
    saved_run,
)
from hypothesis import given, strategies as st

from eigen_core.checkpoint.run_contents import kept_generations, missing_generations
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.config import CheckpointConfig


def removed(run: RunDirectory, keep_last: int, keep_every: int, *, keep_champion: bool = True) -> list[int]:
    return list(run.contents.clean(keep_last, keep_every, keep_champion=keep_champion).generations)


def whole_files(run: RunDirectory) -> set[str]:
    """Return the names of all files that the run's manifests need, with the manifests and what is no generation's."""
    manifests = run.contents.manifests()
    return {"config.json", "lock", *(name for found in manifests for name in (found.name, *found.blobs))}


def test_the_last_every_fifth_and_the_champions_stay(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        for generation in range(1, 14):
            run.save(sample(generation))
        # The champion of generation 13 is of generation 6.
        assert removed(run, keep_last=3, keep_every=5) == [1, 2, 3, 4, 7, 8, 9]
        assert generations_of(run) == [5, 6, 10, 11, 12, 13]
        assert files_of(run) == whole_files(run)
        assert removed(run, keep_last=3, keep_every=5) == []
        assert removed(run, keep_last=1, keep_every=0) == [5, 10, 11, 12]
        assert removed(run, keep_last=1, keep_every=0, keep_champion=False) == [6]
    assert generations_of(run) == [13]
    assert files_of(run) == whole_files(run)
    assert run.contents.verify() == []
    with pytest.raises(ValueError, match="keep_last is 0"):
        run.contents.clean(0, 0)


def test_files_whose_names_are_no_blobs_stay(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    unneeded = run.path / "blobs" / "ee" / ("e" * 64)
    theirs = [
        *(run.path / "blobs" / name for name in ("diary", "ee/diary", f"ff/{'e' * 64}", "e" * 64, f"ee/{'E' * 64}")),
        run.path / "manifests" / "notes.json",
    ]
    for path in (unneeded, *theirs):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert run.contents.clean(1, 0).blobs == (f"blobs/ee/{unneeded.name}",)
    assert not unneeded.exists()
    assert all(path.read_text() == "mine" for path in theirs)


@pytest.mark.parametrize("part", ["manifest", "population.safetensors", "0"])
def test_damaged_generations_do_not_count(tmp_path: Path, part: str) -> None:
    run = new_run(tmp_path)
    for generation in range(1, 7):
        # Whole rings: what is damaged is no other generation's.
        run = RunDirectory.open(tmp_path, "run")
        run.save(sample(generation))
    for generation in (4, 6):
        if part == "manifest":
            os.truncate(run.path / manifest_of(run, generation).name, 0)
        else:
            os.truncate(blob_of(run, generation, part), 0)
    assert removed(run, keep_last=2, keep_every=0, keep_champion=False) == [1, 2, 4]
    newest = newest_of(run)
    assert newest.snapshot.generation == 5


def test_without_a_good_generation_nothing_goes(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for generation in (1, 2):
        run.save(sample(generation))
        blob_of(run, generation, "state.json").unlink()
    before = files_of(run)
    assert removed(run, keep_last=1, keep_every=0) == []
    assert files_of(run) == before


def test_protected_generations_stay_with_all_their_manifests(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    for seconds in (1.0, 2.0):
        run.save(sample(2, seconds=seconds))
    run.save(sample(3))
    report = run.contents.clean(1, 0, keep_champion=False, protected={2})
    assert report.generations == (1,)
    assert len(run.contents.manifests()) == 3
    report = run.contents.clean(2, 0, keep_champion=False)
    assert (report.generations, len(report.blobs)) == ((), 1)
    newest = run.contents.manifests()
    assert [manifest.generation for manifest in newest] == [3, 2]
    assert run.contents.document(newest[1], "telemetry") == [{"seconds": 2.0}]


def test_blobs_that_no_manifest_named_stay_for_the_grace_period_by_the_stores_clock(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1, 2)
    store, contents = in_memory(run)
    unnamed = "blobs/aa/" + "a" * 64
    store.put(f"run/{unnamed}", b"no manifest")
    newer, older = contents.manifests()
    store.pass_time(2 * 3_600)
    freed = contents.clean(1, 0, keep_champion=False, grace_seconds=3 * 3_600.0).blobs
    assert set(freed) == older.blobs.keys() - newer.blobs.keys()
    for dry_run in (True, False):
        report = contents.clean(1, 0, grace_seconds=3_600.0, dry_run=dry_run)
        assert (report.blobs, report.bytes_freed) == ((unnamed,), 11)
    assert contents.verify() == []
    assert store.content.keys() == {"run/config.json", f"run/{newer.name}", *(f"run/{name}" for name in newer.blobs)}


def test_nothing_is_removed_unless_it_is_confirmed_after_all_was_looked_at(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1, 2)
    store, contents = in_memory(run)
    before = dict(store.content)

    def refuse() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        contents.clean(1, 0, keep_champion=False, confirm=refuse)
    assert store.content == before
    looked = [name for operation, name in store.done if operation == "objects"]
    assert looked == ["run/blobs/", "run/manifests/"], "what is completed in between is seen by its manifest"


def test_a_store_that_gives_up_in_mid_run_loses_no_generation(tmp_path: Path) -> None:
    """A manifest that cannot be read is not taken for one that is damaged, whose blobs could go."""
    store, contents = in_memory(saved_run(tmp_path, 1, 2, 3))
    before = dict(store.content)
    reads = 0

    def fail_second_read(operation: str, _name: str) -> None:
        nonlocal reads
        reads += operation == "read"
        store.away = reads == 2

    store.before = fail_second_read
    with pytest.raises(StoreUnavailableError):
        contents.clean(3, 0)
    assert store.content == before


@given(st.data())
def test_what_retention_keeps_is_missed_and_nothing_else(data: st.DataObject) -> None:
    rule = CheckpointConfig(keep_last=data.draw(st.integers(1, 4)), keep_every=data.draw(st.integers(0, 4)))
    newest = data.draw(st.integers(1, 20))
    champion = data.draw(st.integers(0, newest))
    last = range(newest, max(0, newest - rule.keep_last), -1)
    kept = kept_generations(range(1, newest + 1), list(last), rule.keep_every, champion)
    assert list(missing_generations(kept, champion, [rule])) == []
    older = sorted(kept - {newest})
    lost = data.draw(st.sets(st.sampled_from(older))) if older else set()
    assert list(missing_generations(kept - lost, champion, [rule])) == sorted(lost)
    # A rule that kept less at some time excuses what it did not keep.
    least = CheckpointConfig(keep_last=1, keep_every=0)
    assert list(missing_generations(kept - lost, champion, [rule, least])) == sorted(lost & {champion})
