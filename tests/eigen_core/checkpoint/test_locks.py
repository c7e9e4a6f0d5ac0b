"""One process at a time writes to a run, whoever dies, however wrong the clocks are, whatever the store does."""

import fcntl
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_samples import (
    generations_of,
    new_run,
    newest_of,
    sample,
    saved_run,
    work_in_progress,
)
from memory_store import Clock, MemoryStore
from upload_cases import FORK, locked_by_another_process

from eigen_core.checkpoint import locks
from eigen_core.checkpoint.locks import (
    FileLock,
    InUseError,
    Lease,
    LeaseLostError,
    ProcessIdentity,
    is_live,
    lease_state,
    this_process,
)
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import StoreUnavailableError

ELSEWHERE = ProcessIdentity(host="elsewhere", pid=7, boot="another-boot", namespace="pid:[1]", started=5)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def held_elsewhere(store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lease]:
    def take(holder: ProcessIdentity = ELSEWHERE) -> Lease:
        with monkeypatch.context() as patch:
            patch.setattr(locks, "this_process", lambda: holder)
            return Lease.acquire(store, "run", 90.0, clock=clock)

    return take


def test_a_silent_holder_elsewhere_is_named_and_loses_the_lease_after_its_own_time_not_the_takers(
    store: MemoryStore, clock: Clock, held_elsewhere: Callable[[], Lease]
) -> None:
    silent = held_elsewhere()
    store.pass_time(30)
    named = r"process 7 on elsewhere, which renewed its lease 30 s ago.*resumed here in 60 s"
    with pytest.raises(InUseError, match=named):
        Lease.acquire(store, "run", 10.0, clock=clock)
    store.pass_time(59.9)
    with pytest.raises(InUseError):
        Lease.acquire(store, "run", 10.0, clock=clock)
    store.pass_time(0.2)
    assert Lease.acquire(store, "run", 10.0, clock=clock).epoch == 2
    with pytest.raises(LeaseLostError, match=r"epoch 2, here 1"):
        silent.check()


def test_beats_keep_the_lease_by_the_stores_clock_however_wrong_ours_are(
    store: MemoryStore, held_elsewhere: Callable[[], Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    beating = held_elsewhere()
    for _ in range(5):
        store.pass_time(80)
        beating.renew()
    store.pass_time(80)
    with pytest.raises(InUseError, match="renewed its lease 80 s ago"):
        Lease.acquire(store, "run", 90.0, clock=Clock())
    beating.check()


@pytest.mark.parametrize("ending", ["released", "ended here", "the run is locked here"])
def test_a_lease_whose_holder_has_certainly_ended_is_free_at_once(
    store: MemoryStore, clock: Clock, held_elsewhere: Callable[..., Lease], ending: str
) -> None:
    me, is_locked_here = this_process(), ending == "the run is locked here"
    ended = me.model_copy(update={"started": (me.started or 0) - 1})
    holder = held_elsewhere(ended if ending == "ended here" else ELSEWHERE)
    if ending == "released":
        holder.release()
    assert is_live(store, "run") == is_locked_here
    assert Lease.acquire(store, "run", 90.0, clock=clock, holder_has_ended=is_locked_here).epoch == 2


def test_a_lease_that_this_process_could_not_give_back_is_free_for_it_at_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lease.acquire(store, "run", 90.0)
    with pytest.raises(InUseError):
        Lease.acquire(store, "run", 90.0)
    store.away = True
    lease.release()
    assert "cannot be released" in caplog.text
    store.away = False
    assert Lease.acquire(store, "run", 90.0).epoch == 2


def test_a_creation_that_succeeded_unnoticed_blocks_no_process_here(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_then_fail(name: str, content: bytes) -> None:
        MemoryStore.create(store, name, content)
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "create", create_then_fail)
        with pytest.raises(StoreUnavailableError):
            Lease.acquire(store, "run", 90.0)
    assert Lease.acquire(store, "run", 90.0).epoch == 2


def test_a_lease_that_lapsed_while_the_store_was_unavailable_is_kept_unless_it_was_taken(
    store: MemoryStore, clock: Clock, held_elsewhere: Callable[[], Lease]
) -> None:
    lease = Lease.acquire(store, "run", 90.0, clock=clock)
    store.away = True
    clock.sleep(1_000)
    store.pass_time(1_000)
    with pytest.raises(StoreUnavailableError):
        lease.check()
    store.away = False
    lease.check()
    assert is_live(store, "run"), "the check has renewed it"

    store.pass_time(1_000)
    other = held_elsewhere()
    beats = [name for name in store.written("put") if name.endswith("000001.beat")]
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            lease.check()
    with pytest.raises(LeaseLostError):
        lease.renew()
    lease.release()
    assert [name for name in store.written("put") if name.endswith("000001.beat")] == beats
    other.check()


@pytest.mark.parametrize("holders", [1, 21], ids=["one is faster", "so many that old epochs were cleared away"])
def test_of_two_who_decide_at_the_same_time_the_slower_is_turned_away(store: MemoryStore, holders: int) -> None:
    others: list[Lease] = []

    def overtake(operation: str, _name: str) -> None:
        if operation == "create":
            store.before = None
            for _ in range(holders - 1):
                Lease.acquire(store, "run", 90.0).release()
            others.append(Lease.acquire(store, "run", 90.0))

    store.before = overtake
    with pytest.raises(InUseError):
        Lease.acquire(store, "run", 90.0)
    (other,) = others
    assert other.epoch == holders
    other.check()


def test_old_records_are_cleared_away_and_the_newest_stay(store: MemoryStore) -> None:
    for _ in range(30):
        Lease.acquire(store, "run", 90.0).release()
    names = sorted(store.content)
    assert len(names) <= 16
    assert names[-2:] == ["run/lease/000030", "run/lease/000030.beat"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": "x"}', b"\xff\xfe"])
def test_a_damaged_record_lapses_by_its_age(store: MemoryStore, content: bytes) -> None:
    store.create("run/lease/000003", content)
    store.pass_time(89)
    with pytest.raises(InUseError, match="another process"):
        Lease.acquire(store, "run", 10.0)
    store.pass_time(2)
    assert Lease.acquire(store, "run", 10.0).epoch == 4


def test_a_damaged_beat_still_shows_that_the_holder_lives(
    store: MemoryStore, held_elsewhere: Callable[[], Lease]
) -> None:
    held_elsewhere()
    store.pass_time(89)
    store.put("run/lease/000001.beat", b"\x00")
    store.pass_time(89)
    assert is_live(store, "run")
    store.pass_time(2)
    assert not is_live(store, "run")


def test_foreign_names_in_the_folder_are_no_epochs(store: MemoryStore) -> None:
    for name in ("run/lease/x", "run/lease/12", "run/lease/000099.beat", "run/lease/-00001", "run/lease/000001x"):
        store.create(name, b"")
    assert lease_state(store, "run") is None
    assert Lease.acquire(store, "run", 90.0).epoch == 1


def test_background_renewal_goes_on_while_the_store_is_away_and_ends_with_the_lease(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    beats = threading.Semaphore(0)
    tried = threading.Semaphore(0)

    def watch(operation: str, name: str) -> None:
        if operation == "put" and name.endswith(".beat"):
            (tried if store.away else beats).release()

    store.before = watch
    with Lease.acquire(store, "run", 0.02) as lease, caplog.at_level(logging.WARNING):
        assert beats.acquire(timeout=30)
        store.away = True
        for _ in range(3):
            assert tried.acquire(timeout=30)
        store.away = False
        while beats.acquire(blocking=False):
            pass
        assert beats.acquire(timeout=30)
        lease.check()
    assert "could not be renewed" in caplog.text
    assert lease_state(store, "run") is not None
    assert not is_live(store, "run")
    assert lease._thread is not None
    lease._thread.join(30)
    assert not lease._thread.is_alive()


def test_background_renewal_notices_that_the_lease_is_lost(store: MemoryStore) -> None:
    with Lease.acquire(store, "run", 0.02) as lease:
        store.create("run/lease/000002", b"?")
        assert lease._thread is not None
        lease._thread.join(30)
        assert not lease._thread.is_alive()
        store.away = True
        with pytest.raises(LeaseLostError):
            lease.check()


def test_only_what_is_proved_counts_as_ended() -> None:
    me = this_process()
    assert me.started is not None
    assert not me.has_ended()
    assert me.model_copy(update={"started": me.started - 1}).has_ended(), "its number is another process's now"
    child = FORK.Process(target=time.sleep, args=(60,))
    child.start()
    assert child.pid is not None
    process = ProcessIdentity.of(child.pid)
    assert not process.has_ended()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.has_ended(), "killed, and not yet reaped"
    child.join()
    assert process.has_ended()
    for unknown in ({"boot": None}, {"boot": "x"}, {"namespace": None}, {"namespace": "pid:[1]"}, {"started": None}):
        assert not process.model_copy(update=unknown).has_ended(), unknown
    for pid in (0, -1, 1 << 70):
        assert not process.model_copy(update={"pid": pid}).has_ended(), pid


def is_locked(run: RunDirectory) -> bool:
    return FileLock(run.path / "lock").is_taken()


def test_a_second_process_may_read_and_nothing_more_until_the_first_is_killed(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    with locked_by_another_process(tmp_path) as child:
        assert is_locked(run)
        message = re.escape(f"Run 'run' is in use by process {child} on ")
        with pytest.raises(InUseError, match=message), run.lock():
            pytest.fail("two processes hold the lock")
        with pytest.raises(InUseError, match=message):
            run.save(sample(2))
        assert run.contents.verify() == []
        assert newest_of(run).snapshot.generation == 1
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


def test_a_machine_may_have_a_name_in_any_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "müller")
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    assert lock.holder() == locks.this_process()
    lock.release()
