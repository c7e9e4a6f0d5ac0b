"""One writer at a time, and a killed one holds up no other."""

import fcntl
import os
import re
import signal
import time
from pathlib import Path

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

from eigen_core.checkpoint.locks import FileLock, RunLockedError
from eigen_core.checkpoint.run_directory import RunDirectory


def _process_holding_the_lock(store: Path) -> int:
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


def is_locked(run: RunDirectory) -> bool:
    return FileLock(run.path / "lock").is_taken()


def test_a_second_process_may_read_and_nothing_more_until_the_first_is_killed(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    child = _process_holding_the_lock(tmp_path)
    try:
        assert is_locked(run)
        message = re.escape(f"Run 'run' is in use by process {child} on ")
        with pytest.raises(RunLockedError, match=message), run.lock():
            pytest.fail("two processes hold the lock")
        with pytest.raises(RunLockedError, match=message):
            run.save(sample(2))
        with pytest.raises(RunLockedError, match=message):
            run.clean(1, 0, 0)
        assert run.contents.verify() == []
        assert newest_of(run).snapshot.generation == 1
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
    assert not is_locked(run)
    run.save(sample(2))
    assert generations_of(run) == [1, 2]


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
            assert is_locked(run)
    finally:
        os.close(asking)


def test_locking_clears_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    blob = next(path for path in (run.path / "blobs").rglob("*") if path.is_file())
    left = [blob.parent / ".writing-0123", run.path / "manifests" / ".writing-4567"]
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
