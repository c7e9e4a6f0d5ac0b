"""Uploads: a generation is in the store as a whole or not at all, and none that is queued is lost."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from known import known
from memory_store import MemoryStore
from upload_cases import REFUSED, RUN, Machine, commit

from eigen_core.checkpoint import uploads
from eigen_core.checkpoint.integrity import BLOBS, MANIFESTS, blob_path
from eigen_core.checkpoint.locks import LeaseLostError
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.uploads import (
    NOTHING_TO_DO,
    STATUS_NAME,
    Uploader,
    UploadsEndedError,
    UploadStatus,
    read_status,
)
from eigen_core.common.text import count


def test_unchanged_blobs_are_sent_once_by_this_process_and_by_a_later_one(machine: Machine, tmp_path: Path) -> None:
    machine.train(1, 2, 3)
    machine.drain()
    sent = machine.memory.written("put_file")
    assert len(sent) == len(set(sent)) == 1 + 3 * 3
    assert machine.memory.written("holds") == [], "what this object has sent it does not look at again"
    machine.lease.release()

    again = Machine(tmp_path / "here", machine.memory, again=True)
    again.train(4)
    again.drain()
    assert len(machine.memory.written("put_file")) == len(sent) + 3
    assert again.stored() == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_blob_that_is_damaged_in_the_store_is_sent_again_after_a_restart(
    machine: Machine, tmp_path: Path, damage: str
) -> None:
    machine.train(1)
    machine.drain()
    machine.lease.release()
    content = machine.memory.content
    for name in [name for name in content if f"/{BLOBS}" in name or MANIFESTS in name]:
        whole = content.pop(name)
        if damage != "remove":
            content[name] = whole[:-1] if damage == "cut" else bytes([whole[0] ^ 1]) + whole[1:]
    Machine(tmp_path / "here", machine.memory, again=True).drain()
    assert machine.stored() == [1]


@pytest.mark.parametrize("is_refused", [False, True], ids=["away", "refused"])
def test_while_the_store_cannot_be_written_to_nothing_is_lost_and_pauses_grow(
    machine: Machine, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def close_store(closed: bool) -> None:
        machine.memory.away = closed and not is_refused
        machine.memory.refusal = REFUSED if closed and is_refused else None

    error = str(REFUSED) if is_refused else "the store is away"
    close_store(True)
    machine.train(1, 2)
    pauses = [machine.uploader.step() for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert machine.uploader.status().last_error == error
    assert error in caplog.text
    assert machine.here() == [1, 2]
    close_store(False)
    machine.drain()
    assert machine.stored() == [1, 2]
    close_store(True)
    machine.train(3)
    assert machine.uploader.step() == 1, "after a success pauses begin anew"


@pytest.mark.parametrize("is_done", [False, True], ids=["goes away", "loses the reply"])
def test_a_store_that_fails_at_any_request_has_no_manifest_or_a_whole_generation(tmp_path: Path, is_done: bool) -> None:
    Machine(tmp_path, keep_local=100).train(1, 2)
    requests = 0
    finished = False
    while not finished:
        machine = Machine(tmp_path, again=True, keep_local=100)
        memory, last = machine.memory, len(machine.memory.done) + requests

        def fail(_operation: str, _name: str, memory: MemoryStore = memory, last: int = last) -> None:
            failing = len(memory.done) >= last
            memory.away, memory.lost_replies = failing and not is_done, int(failing and is_done)

        memory.before = fail
        finished = machine.steps()[-1] == NOTHING_TO_DO
        memory.before, memory.away, memory.lost_replies = None, False, 0
        assert machine.stored() in ([], [1], [1, 2])
        machine.drain()
        assert machine.stored() == [1, 2]
        requests += 1
    assert requests > 20


def test_a_lost_lease_stops_everything_before_the_manifest(machine: Machine) -> None:
    machine.train(1)
    machine.memory.create(f"{RUN}/lease/000002", b"?")
    with pytest.raises(LeaseLostError):
        machine.uploader.step()
    assert machine.stored() == []
    for refused in (machine.uploader.wait_for_queue, lambda: machine.uploader.finish(60), lambda: machine.train(2)):
        with pytest.raises(LeaseLostError, match="taken over"):
            refused()
    assert machine.here() == [1, 2], "what was trained is still on this machine"


def test_a_damaged_file_here_never_reaches_the_store_and_the_others_do(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.train(1, 2)
    manifest = machine.directory.contents.manifests()[0]
    path = blob_path(machine.directory.path, manifest.entry("population.safetensors").sha256)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    machine.drain()
    assert machine.stored() == [1]
    assert "generation 2 of run 'run' cannot be uploaded" in caplog.text.lower()
    with pytest.raises(
        StoreUnavailableError, match=r"Generation 2 of run 'run' is not in .*does not match its SHA-256"
    ):
        machine.uploader.finish(60)
    machine.train(2)
    machine.drain()
    assert machine.stored() == [1, 2]
    machine.uploader.finish(60)


def test_small_files_go_too_and_the_latest_wins(machine: Machine) -> None:
    name = "plots/fitness.png"
    for content in (b"one", b"two"):
        machine.draw(name, content)
    machine.memory.away = True
    machine.uploader.step()
    machine.memory.away = False

    def repaint(operation: str, stored: str) -> None:
        if operation == "chunk" and stored.endswith(name):
            machine.memory.before = None
            machine.draw(name, b"three")

    machine.memory.before = repaint
    machine.uploader.add_file("plots/missing.png")
    machine.drain()
    assert machine.memory.content[f"{RUN}/{name}"] == b"three"
    assert machine.uploader.status().pending_files == 0


def test_rate_stays_below_the_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, upload_mb_per_second=2.0)
    for _ in range(2):
        start = machine.clock()
        machine.draw("large", bytes(40 << 20))
        machine.drain()
        assert machine.clock() - start == pytest.approx((40 << 20) / 2e6), "idle time is not saved up"
        machine.clock.sleep(1_000)


def test_a_newer_version_that_comes_while_the_older_one_is_on_its_way_is_not_taken_for_it(machine: Machine) -> None:
    def commit_again(operation: str, name: str) -> None:
        if operation == "create" and MANIFESTS in name:
            machine.memory.before = None
            machine.uploader.add(commit(machine.directory, 1, champion=1))

    machine.train(1)
    machine.memory.before = commit_again
    machine.uploader.step()
    assert machine.uploader.status().pending == 1
    machine.drain()
    assert machine.target.newest_manifest() == machine.directory.contents.newest_manifest()


def test_closing_cuts_an_upload_short_and_leaves_nothing_visible(machine: Machine) -> None:
    in_the_middle, go_on = threading.Event(), threading.Event()

    def hold(operation: str, _name: str) -> None:
        if operation == "chunk":
            in_the_middle.set()
            assert go_on.wait(30)

    machine.memory.before = hold
    machine.draw("plots/large", bytes(40 << 20))
    with machine.uploader:
        assert in_the_middle.wait(30)
        machine.uploader._closing.set()
        go_on.set()
    assert not machine.uploader._thread.is_alive()
    assert f"{RUN}/plots/large" not in machine.memory.content
    assert machine.memory.written("chunk") == [f"{RUN}/plots/large"], "no second block"
    assert machine.uploader.status().state == "ended"
    for refused in (machine.uploader.wait_for_queue, lambda: machine.uploader.finish(1), lambda: machine.train(1)):
        with pytest.raises(UploadsEndedError, match="closed"):
            refused()


def test_closing_does_not_wait_for_a_pause_or_the_rate_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.train(1)
    for away, rate in ((True, 0.0), (False, 1e-6)):
        machine.memory.away = away
        uploader = machine.uploader_in_a_thread(upload_mb_per_second=rate)
        reached = threading.Event()
        machine.memory.before = lambda operation, _name, reached=reached, away=away: (
            reached.set() if away or operation == "chunk" else None
        )
        with uploader:
            assert reached.wait(30)
        uploader._thread.join(30)
        assert not uploader._thread.is_alive()


def _add_again_and_again(machine: Machine, uploader: Uploader) -> None:
    while True:
        uploader.add(machine.directory.contents.manifests()[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "ask",
    [
        lambda _machine, uploader: uploader.wait_for_queue(),
        lambda _machine, uploader: uploader.finish(60),
        _add_again_and_again,
    ],
)
def test_the_death_of_the_thread_is_never_silent(
    tmp_path: Path, ask: Callable[[Machine, Uploader], None], caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, queue_generations=1)
    asked = threading.Event()

    def die(operation: str, _name: str) -> None:
        if operation == "put_file":
            assert asked.wait(30)
            raise ZeroDivisionError

    machine.memory.before = die
    commit(machine.directory, 1)
    uploader = machine.uploader_in_a_thread()
    with uploader:
        threading.Timer(0.01, asked.set).start()
        with pytest.raises(UploadsEndedError, match="ZeroDivisionError"):
            ask(machine, uploader)
    assert uploader.status().state == "ended"
    assert "ZeroDivisionError" in str(uploader.status().last_error)
    assert "an error has ended its uploads" in caplog.text
    assert machine.here() == [1]


def test_the_end_waits_for_the_last_generation(machine: Machine) -> None:
    machine.memory.away = True
    uploader = machine.uploader_in_a_thread()
    tried = threading.Event()
    machine.memory.before = lambda _operation, _name: tried.set()
    with uploader:
        uploader.add(commit(machine.directory, 1))
        machine.draw("plots/a.png")
        uploader.add_file("plots/a.png")
        assert tried.wait(30)
        with pytest.raises(StoreUnavailableError, match=r"after 0 s.*generation 1, plots/a.png.*Resume the run here"):
            uploader.finish(0.0)
        machine.memory.away = False
        uploader.finish(60)
        assert machine.stored() == [1]
        assert f"{RUN}/plots/a.png" in machine.memory.content


def test_whoever_waits_for_the_end_shortens_a_long_pause(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_MOST_RETRY_SECONDS_AT_END", 0.1)
    uploader = machine.uploader_in_a_thread()
    machine.memory.refusal = REFUSED
    uploader.add(commit(machine.directory, 1))
    while uploader.step() < 60:
        pass
    refused = threading.Event()
    machine.memory.before = lambda operation, _name: refused.set() if operation == "put_file" else None
    with uploader:
        assert refused.wait(30)
        while uploader.status().state != "waiting":
            time.sleep(0.01)
        machine.memory.refusal = None
        uploader.finish(25)
    assert machine.stored() == [1]


BOUNDS = {"generations": ({"queue_generations": 3}, 3), "MB": ({"queue_generations": 100, "queue_mb": 1e-6}, 1)}


@pytest.mark.parametrize(("bound", "generations"), BOUNDS.values(), ids=BOUNDS)
def test_training_waits_only_above_the_bound_and_is_told_why_again_and_again(
    tmp_path: Path,
    bound: dict[str, Any],
    generations: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(tmp_path, **bound)
    monkeypatch.setattr(uploads, "_WARN_SECONDS", 0.01)
    machine.uploader._clock = time.monotonic
    machine.memory.away = True
    for generation in range(1, generations + 1):
        machine.uploader.wait_for_queue()
        machine.train(generation)
        machine.uploader.step()
    passed = threading.Event()

    def wait() -> None:
        machine.uploader.wait_for_queue()
        passed.set()

    threading.Thread(target=wait, daemon=True).start()
    said = f"training waits for uploads. Not in memory://bucket yet: {count(generations, 'generation')}"
    while caplog.text.count(said) < 3:
        assert not passed.is_set()
    machine.memory.away = False
    machine.drain()
    assert passed.wait(30)
    assert "the store is away" in caplog.text


def test_status_is_there_for_other_processes(machine: Machine) -> None:
    folder = machine.directory.path
    assert read_status(folder) is None
    machine.memory.away = True
    machine.train(1)
    machine.clock.sleep(7)
    machine.uploader.step()
    status = known(read_status(folder))
    assert (status.state, status.pending, status.oldest_seconds) == ("waiting", 1, 7.0)
    machine.memory.away = False
    machine.drain()
    status = known(read_status(folder))
    assert (status.state, status.pending, status.done) == ("idle", 0, 1)
    (folder / STATUS_NAME).write_bytes(b"{")
    assert read_status(folder) is None
    far = UploadStatus(run=RUN, store="gs://bucket/" + "/".join(["a" * 60] * 4), updated=datetime.now(UTC))
    (folder / STATUS_NAME).write_text(far.model_dump_json())
    assert read_status(folder) == far


def test_a_status_that_cannot_be_written_stops_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    (machine.directory.path / STATUS_NAME).mkdir()
    (machine.directory.path / STATUS_NAME / "x").touch()
    machine.train(1)
    machine.drain()
    assert machine.stored() == [1]
    assert "upload status file cannot be written" in caplog.text


def test_without_the_lease_neither_small_files_nor_retention_touch_the_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path, keep_last=1, keep_every=0)
    machine.train(1)
    machine.drain()
    machine.train(2)
    content: dict[str, bytes] = {}

    def take_over(operation: str, name: str) -> None:
        if operation == "delete" and "/lease/" in name and not content:
            machine.memory.create(f"{RUN}/lease/000002", b"?")
            content.update(machine.memory.content)
            content.pop(name)

    machine.memory.before = take_over
    with pytest.raises(LeaseLostError):
        machine.uploader.step()
    assert content
    machine.draw("plots/x.png")
    with pytest.raises(LeaseLostError):
        machine.uploader.step()
    assert {name: content[name] for name in content if ".beat" not in name} == {
        name: machine.memory.content[name] for name in machine.memory.content if ".beat" not in name
    }


def test_generations_that_retention_no_longer_keeps_leave_the_queue_and_this_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, keep_last=2, keep_every=5)
    machine.train(1)
    machine.drain()
    machine.memory.before = lambda operation, _name: setattr(machine.memory, "away", operation == "put_file")
    for generation in range(2, 13):
        machine.train(generation, champion=4 if generation >= 4 else 0)
        assert machine.steps()[-1] != NOTHING_TO_DO
    assert machine.uploader.status().pending == 5
    assert machine.here() == [4, 5, 10, 11, 12]
    machine.memory.before, machine.memory.away = None, False
    machine.drain()
    machine.uploader.finish(0)
    assert machine.stored() == [4, 5, 10, 11, 12]
    assert machine.here() == [12]


def test_a_generation_that_is_on_its_way_is_not_dropped(tmp_path: Path) -> None:
    machine = Machine(tmp_path, keep_last=1, keep_every=0)

    def train_on(operation: str, _name: str) -> None:
        if operation == "create":
            machine.memory.before = None
            machine.train(2)
            assert machine.here() == [1, 2]

    machine.train(1)
    machine.memory.before = train_on
    assert machine.uploader.step() == 0
    assert machine.stored() == [1]
    machine.drain()
    assert machine.stored() == [2]
    assert machine.uploader.status().done == 2


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.thorough
def test_at_any_time_what_retention_keeps_is_whole_in_the_store_or_here(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    machine = Machine(
        tmp_path_factory.mktemp("run"),
        keep_last=data.draw(st.integers(1, 3)),
        keep_every=data.draw(st.integers(0, 4)),
        keep_local=data.draw(st.integers(1, 2)),
    )
    config = machine.config
    generation = champion = 0
    for event in data.draw(st.lists(st.sampled_from(["train", "train", "step", "away", "back", "cut"]), max_size=20)):
        if event == "train":
            generation += 1
            champion = generation if data.draw(st.booleans()) else champion
            machine.train(generation, champion=champion)
        elif event == "step":
            machine.uploader.step()
        elif event == "cut":
            limit = len(machine.memory.done) + data.draw(st.integers(0, 12))
            machine.memory.before = lambda _operation, _name, limit=limit: setattr(
                machine.memory, "away", len(machine.memory.done) >= limit
            )
            machine.uploader.step()
            machine.memory.before = None
        machine.memory.away = event == "away"
        away, machine.memory.away = machine.memory.away, False
        kept = {number for number in range(1, generation + 1) if config.keep_every and number % config.keep_every == 0}
        kept |= {champion} - {0} | set(range(max(1, generation - config.keep_last + 1), generation + 1))
        assert kept <= {*machine.stored(), *machine.here()}
        machine.memory.away = away
    machine.memory.away = False
    machine.drain()
    assert machine.stored()[-1:] == ([generation] if generation else [])


def test_neither_generations_nor_files_starve(machine: Machine) -> None:
    machine.train(1)
    machine.draw("plots/a.png")
    machine.train(2)
    machine.drain()
    arrived = [name for _, name in machine.memory.done if "plots" in name or MANIFESTS in name]
    assert arrived.index(f"{RUN}/plots/a.png") < len(arrived) - 1, "the file did not wait for later generations"

    machine.memory.before = lambda _operation, name: setattr(
        machine.memory, "refusal", REFUSED if "plots" in name else None
    )
    machine.draw("plots/a.png")
    machine.train(3, 4)
    for _ in range(6):
        machine.uploader.step()
    assert machine.stored() == [1, 2, 3, 4]


def test_retention_in_the_store_that_fails_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path, keep_last=1, keep_every=0)
    machine.memory.before = lambda operation, _name: setattr(
        machine.memory, "refusal", REFUSED if operation == "delete" else None
    )
    machine.train(1)
    machine.drain()
    machine.train(2)
    machine.drain()
    assert "old generations in" in caplog.text
    assert machine.stored() == [1, 2]
    machine.memory.before, machine.memory.refusal = None, None
    machine.train(3)
    machine.drain()
    assert machine.stored() == [3]


def test_a_generation_that_is_committed_anew_is_kept_here_until_that_is_safe_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.train(1, 2)
    machine.drain()
    machine.memory.away = True
    machine.uploader.add(commit(machine.directory, 1, champion=1))
    machine.train(3)
    assert machine.here() == [1, 1, 3]
