"""One writer at a time, and a killed one holds up no other."""

import fcntl
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import (
    exit_code,
    generations_of,
    in_fork,
    new_run,
    newest_of,
    sample,
    saved_run,
    work_in_progress,
)

from eigen_core.checkpoint import run_directory as run_module
from eigen_core.checkpoint.file_lock import RunLockedError
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import compose_manifest
from eigen_core.common.errors import InputError


def _process_holding_the_lock(store: Path) -> int:
    """Start a process that takes the lock of the run and keeps it; return its number once it has it."""
    reading, writing = os.pipe()

    def work() -> None:
        with RunDirectory.open(store, "run").lock():
            os.write(writing, b"locked\n")
            signal.pause()

    child = in_fork(work)
    os.close(writing)
    assert os.read(reading, 100) == b"locked\n"
    os.close(reading)
    return child


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert not run.is_locked()
    child = _process_holding_the_lock(tmp_path)
    try:
        assert run.is_locked()
        message = re.escape(f"Run 'run' is in use by process {child} on ")
        with pytest.raises(RunLockedError, match=message), run.lock():
            pytest.fail("two processes hold the lock")
        with pytest.raises(RunLockedError, match=message):
            run.save(sample(1))
        with pytest.raises(RunLockedError, match=message):
            run.clean(1, 0, 0)
        assert generations_of(run) == []
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
    assert not run.is_locked()
    with run.lock():
        assert run.is_locked()
        run.save(sample(1))
    assert not run.is_locked()
    assert generations_of(run) == [1]


def test_the_lock_is_an_input_error_and_runs_are_apart(tmp_path: Path) -> None:
    run, other = new_run(tmp_path), new_run(tmp_path, "other")
    with run.lock(), other.lock():
        assert run.is_locked()
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} on "), run.lock():
            pytest.fail("the lock was given twice")
        assert run.is_locked()
        run.save(sample(1))
        assert run.is_locked()
    assert not run.is_locked()


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(KeyError), run.lock():
        raise KeyError("inside")
    assert not run.is_locked()


def test_a_question_at_that_instant_does_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking holds a shared lock for an instant; it ends here while the writer waits for its next attempt."""
    run = new_run(tmp_path)
    with run.lock():
        pass
    asking = os.open(run.path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _seconds: fcntl.flock(asking, fcntl.LOCK_UN))
    try:
        with run.lock():
            assert run.is_locked()
    finally:
        os.close(asking)


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    child = _process_holding_the_lock(tmp_path)
    try:
        assert generations_of(run) == [1]
        assert run.contents.verify() == []
        assert run.load_newest() is not None
    finally:
        os.kill(child, signal.SIGKILL)
        exit_code(child)


def test_locking_clears_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    blob = next(path for path in (run.path / "blobs").rglob("*") if path.is_file())
    left = [run.path / ".saving" / "0123", blob.parent / ".writing-0123", run.path / "manifests" / ".writing-4567"]
    others = [run.path / ".notes", run.path / "plots" / "notes.txt"]
    for path in (*left, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    with run.lock():
        assert work_in_progress(run) == [".notes"]
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in others)
        assert generations_of(run) == [1]
        assert run.contents.verify() == []


def test_a_save_and_a_removal_by_another_thread_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its blobs and its manifest a generation looks like garbage: it must not be cleaned then."""
    run = saved_run(tmp_path, 1)
    blobs_are_there, reports = threading.Event(), []

    def composed_later(*arguments: Any) -> Manifest:
        blobs_are_there.set()
        time.sleep(0.2)
        return compose_manifest(*arguments)

    def clean() -> None:
        blobs_are_there.wait(10)
        reports.append(run.clean(1, 0, 0))

    monkeypatch.setattr(run_module, "compose_manifest", composed_later)
    thread = threading.Thread(target=clean)
    with run.lock():
        thread.start()
        run.save(sample(2))
        thread.join()
    assert [report.generations for report in reports] == [(1,)]
    newest = newest_of(run)
    assert newest.snapshot.generation == 2
    assert newest.damages == []
