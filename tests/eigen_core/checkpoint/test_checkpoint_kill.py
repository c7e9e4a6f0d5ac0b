"""Killed at any instant, a run has all that was committed, and nothing half."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, assert_same, exit_code, in_fork, new_run, sample, seconds_of, work_in_progress

from eigen_core.checkpoint import RunDirectory, list_runs
from eigen_core.errors import InputError
from eigen_core.randomness import keyed_generator

# What Python announces before it changes or reads the file system.
STEPS = {"open", "os.listdir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.truncate"}


def _kill_at_step(number: int) -> None:
    """Kill this process just before its `number`-th step on the file system."""
    left = number

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _lines(descriptor: int) -> list[str]:
    content = b""
    while chunk := os.read(descriptor, 4096):
        content += chunk
    os.close(descriptor)
    return content.decode().split()


def _short_run(store: Path, acknowledge: int) -> None:
    """Make a run with two generations, write the second again with other times, add a third, remove the first."""

    def done(what: str) -> None:
        os.write(acknowledge, f"{what}\n".encode())

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
        run.apply_retention(keep_last=2, keep_every=0, champion_generation=0)
        done("removed")


def test_killed_at_every_step_of_a_short_run(tmp_path: Path) -> None:
    number = 0
    code = -signal.SIGKILL
    while code != 0:
        number += 1
        store = tmp_path / str(number)
        reading, writing = os.pipe()

        def work(store: Path = store, number: int = number, writing: int = writing) -> None:
            _kill_at_step(number)
            _short_run(store, writing)

        child = in_fork(work)
        os.close(writing)
        done = _lines(reading)
        code = exit_code(child)
        assert code in (0, -signal.SIGKILL)
        _check_after_kill(store, done)
    assert number > 50


def _check_after_kill(store: Path, done: list[str]) -> None:
    made = "run" in done or list_runs(str(store)) == ["run"]
    run = RunDirectory.open(str(store), "run") if made else new_run(store)
    assert run.config == CONFIG
    with run.lock():
        assert work_in_progress(run) == []
        assert [name for name in os.listdir(store) if name != "run"] == []
        for generation in run.generations():
            assert run.verify(generation) == []
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
            assert run.generations() == [2, 3]
        elif expected >= 1:
            assert set(range(2, expected + 1)) <= set(run.generations())
        run.save(sample(found + 1))
        assert_same(run.load(found + 1).snapshot, sample(found + 1))


def test_killed_at_random_instants_of_a_long_run(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    instants = keyed_generator(1, "kills").uniform(0.0, 0.15, 12)
    for instant in instants:
        reading, writing = os.pipe()

        def work(writing: int = writing) -> None:
            mine = RunDirectory.open(str(tmp_path), "run")
            with mine.lock():
                loaded = mine.load_newest()
                generation = loaded.snapshot.generation if loaded is not None else 0
                while True:
                    generation += 1
                    mine.save(sample(generation, size=2_000))
                    os.write(writing, f"{generation}\n".encode())
                    mine.apply_retention(keep_last=3, keep_every=10, champion_generation=1)

        child = in_fork(work)
        os.close(writing)
        first = os.read(reading, 100).decode().split()
        time.sleep(instant)
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        newest = int([*first, *_lines(reading)][-1])
        loaded = run.load_newest()
        assert loaded is not None
        found = loaded.snapshot.generation
        assert found in (newest, newest + 1)
        assert loaded.damages == []
        assert_same(loaded.snapshot, sample(found, size=2_000))
        kept = {1, *range(max(1, newest - 2), newest + 1), *range(10, newest + 1, 10)}
        assert kept <= set(run.generations())
    assert newest >= len(instants)


def test_a_generation_gets_its_name_when_all_of_it_will_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loss of power would break: files first, the manifest last, then the folder, the name, the run's folder."""
    run = new_run(tmp_path)
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(descriptor: int) -> None:
        steps.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def recorded_rename(old: Path, new: Path) -> None:
        steps.append(f"{Path(old).name} -> {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    manifest = run.save(sample(1))
    *files, last, folder, name, parent = steps
    assert sorted(files) == [entry.name for entry in manifest.files]
    assert last == "manifest.json"
    assert folder.startswith(".saving-generation-0001-")
    assert name == f"{folder} -> generation-0001"
    assert parent == "run"


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir", "open"])
def test_a_save_that_fails_at_any_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = new_run(tmp_path)
    run.save(sample(1))
    run.save(sample(2, seconds=1.0))
    original = getattr(os, call)
    failures = 0
    with run.lock():
        for number in range(1, 30):
            left = number

            def failing(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(28, "No space left on device")
                return original(*arguments, **options)

            monkeypatch.setattr(os, call, failing)
            try:
                run.save(sample(2, seconds=2.0))
            except InputError as error:
                failures += 1
                assert "no space left" in str(error)  # noqa: PT017 - most of the calls must fail, the last must not
                outcome = {1.0, 2.0}
            else:
                outcome = {2.0}
            monkeypatch.undo()
            assert run.verify(1) == run.verify(2) == []
            assert seconds_of(run.load(2).snapshot) in outcome
            assert not [name for name in work_in_progress(run) if "saving" in name]
            run.save(sample(2, seconds=1.0))
            if outcome == {2.0}:
                break
    assert failures >= 1
    assert outcome == {2.0}
