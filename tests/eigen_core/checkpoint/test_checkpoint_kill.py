"""Killed at any instant, a run has all that was committed, and nothing half."""

import errno
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from checkpoint_samples import (
    CONFIG,
    assert_same,
    files_of,
    generations_of,
    new_run,
    newest_of,
    record_syncs,
    sample,
    saved_run,
    seconds_of,
    work_in_progress,
)
from upload_cases import FORK

from eigen_core.checkpoint.run_contents import list_runs
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import LocalStore
from eigen_core.common.errors import InputError

# What Python announces before it changes or reads the file system.
CALLS = ("link", "listdir", "mkdir", "remove", "rename", "rmdir", "scandir", "truncate")
STEPS = {"open", *(f"os.{call}" for call in CALLS)}


def _kill_at_step(number: int) -> None:
    left = number

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _short_run(store: Path, acknowledge: int, killed_at: int) -> None:
    def done(what: str) -> None:
        os.write(acknowledge, f"{what}\n".encode())

    _kill_at_step(killed_at)
    run = new_run(store)
    done("run")
    with run.lock():
        run.save(sample(1))
        done("1")
        run.save(sample(2, seconds=1.0))
        done("2")
        run.save(sample(2, seconds=2.0))
        done("again")
        run.save(sample(3))
        done("3")
        run.contents.clean(keep_last=2, keep_every=0, keep_champion=False)
        done("removed")


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)], ids=["some steps", "every step"])
def test_killed_at_the_steps_of_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    # A killed process loses nothing that it has handed to the system, so there is no need to wait for the disk.
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    number = 1 - stride
    code: int | None = -signal.SIGKILL
    while code != 0:
        number += stride
        store = tmp_path / str(number)
        reading, writing = os.pipe()

        child = FORK.Process(target=_short_run, args=(store, writing, number))
        child.start()
        os.close(writing)
        with open(reading) as acknowledged:
            done = acknowledged.read().split()
        child.join()
        code = child.exitcode
        assert code in (0, -signal.SIGKILL)
        _check_after_kill(store, done)
        shutil.rmtree(store, ignore_errors=True)
    assert number > 200


def _check_after_kill(store: Path, done: list[str]) -> None:
    made = "run" in done or list_runs(LocalStore(store)) == ["run"]
    run = RunDirectory.open(store, "run") if made else new_run(store)
    assert run.config == CONFIG
    with run.lock():
        assert work_in_progress(run) == []
        assert [name for name in os.listdir(store) if name != "run"] == []
        assert run.contents.verify() == []
        expected = 3 if "3" in done else 2 if "2" in done else 1 if "1" in done else 0
        newest = run.load_newest()
        found = newest.snapshot.generation if newest is not None else 0
        assert found in (expected, expected + 1)
        if newest is not None:
            assert newest.damages == []
            seconds = seconds_of(newest.snapshot)
            assert_same(newest.snapshot, sample(found, seconds=seconds))
            assert seconds == {1: 0.0, 2: 2.0, 3: 0.0}[found] or (found == 2 and "again" not in done)
        if "removed" in done:
            assert generations_of(run) == [2, 3]
        elif expected >= 1:
            assert set(range(2, expected + 1)) <= set(generations_of(run))
        run.save(sample(found + 1))
        loaded = newest_of(RunDirectory.open(store, "run"))
        assert_same(loaded.snapshot, sample(found + 1))
        run.contents.clean(1, 0, keep_champion=False)
        assert files_of(run) == {"config.json", "lock", loaded.manifest.name, *loaded.manifest.blobs}


def test_a_generation_gets_its_name_when_all_of_it_will_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loss of power would break: each blob lasts before it has its name, all names before the manifest's."""
    run = new_run(tmp_path)
    steps = record_syncs(monkeypatch)
    manifest = run.save(sample(1)).manifest
    committed = steps.index(("link", str(run.path / manifest.name)))
    before = steps[:committed]
    assert "fsync" in [call for call, _ in before[-1:]]
    for name in manifest.blobs:
        blob = run.path / name
        (renamed,) = [what for call, what in before if call == "replace" and what.endswith(f" -> {blob}")]
        at = before.index(("replace", renamed))
        assert ("fsync", renamed.split(" -> ")[0]) in before[:at]
        assert ("fsync", str(blob.parent)) in before[at:]
    assert ("fsync", str(run.path)) in before
    assert ("fsync", str(run.path / "manifests")) in steps[committed:]


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "is read-only")])
@pytest.mark.parametrize("call", ["fsync", "replace", "link", "mkdir"])
def test_a_save_that_fails_at_any_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, reason: str
) -> None:
    run = saved_run(tmp_path, 1, 2)
    original, failures = getattr(os, call), 0
    with run.lock():
        for nth in range(1, 60):
            calls = count(1)

            def failing(*arguments: object, calls: Iterator[int] = calls, nth: int = nth, **options: object) -> object:
                if next(calls) == nth:
                    raise OSError(number, os.strerror(number))
                return original(*arguments, **options)

            monkeypatch.setattr(os, call, failing)
            try:
                run.save(sample(3))
            except InputError as error:
                failures += 1
                assert reason in str(error)  # noqa: PT017 - most of the calls must fail, the last must not
            else:
                break
            finally:
                monkeypatch.undo()
            assert run.contents.verify() == []
            assert work_in_progress(run) == []
            newest = newest_of(RunDirectory.open(tmp_path, "run")).snapshot
            assert newest.generation in (2, 3)
            assert_same(newest, sample(newest.generation))
            for manifest in run.contents.manifests():
                if manifest.generation == 3:
                    (run.path / manifest.name).unlink()
            run.contents.clean(2, 0, keep_champion=False)
            run.load_newest()
    assert failures >= 1
    assert_same(newest_of(RunDirectory.open(tmp_path, "run")).snapshot, sample(3))


def test_a_disk_that_takes_no_more_at_any_byte_leaves_what_was_there(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save(sample(1, size=5_000))
    before, (soft, hard) = files_of(run), resource.getrlimit(resource.RLIMIT_FSIZE)
    with run.lock():
        for limit in (0, 1, 100, 700, 5_000, 20_300, 30_000, 79_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                with pytest.raises(InputError, match="exceed the size limit"):
                    run.save(sample(2, size=5_000))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert work_in_progress(run) == []
            assert generations_of(run) == [1]
            assert run.contents.verify() == []
        run.save(sample(2, size=5_000))
    assert before < files_of(run)
    newest = newest_of(RunDirectory.open(tmp_path, "run"))
    assert_same(newest.snapshot, sample(2, size=5_000))
