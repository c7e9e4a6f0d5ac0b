"""The end of uploads, and what is told of them meanwhile."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from upload_cases import KEEP_UPLOADED, REFUSED, RUN, Machine, commit

from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.uploads import STATUS_NAME, Uploader, UploadsEndedError, read_status


def test_closing_cuts_an_upload_short_and_leaves_nothing_visible(machine: Machine) -> None:
    large = machine.directory.path / "large"
    large.write_bytes(bytes(40 << 20))
    in_the_middle, go_on = threading.Event(), threading.Event()

    def hold(operation: str, _name: str) -> None:
        if operation == "chunk":
            in_the_middle.set()
            assert go_on.wait(30)

    machine.memory.before = hold
    machine.uploader.add_file("plots/large", large)
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
    machine = Machine(tmp_path, config=KEEP_UPLOADED)
    machine.train(1)
    slow = KEEP_UPLOADED.model_copy(update={"upload_mb_per_second": 1e-6})
    for away, config in ((True, KEEP_UPLOADED), (False, slow)):
        machine.memory.away = away
        uploader = Uploader(machine.directory, machine.target, machine.lease, config)
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
    machine = Machine(tmp_path, config=KEEP_UPLOADED.model_copy(update={"queue_generations": 1}))
    asked = threading.Event()

    def die(operation: str, _name: str) -> None:
        if operation == "put_file":
            assert asked.wait(30)
            raise ZeroDivisionError

    machine.memory.before = die
    commit(machine.directory, 1)
    uploader = Uploader(machine.directory, machine.target, machine.lease, machine.config)
    with uploader:
        threading.Timer(0.01, asked.set).start()
        with pytest.raises(UploadsEndedError, match="ZeroDivisionError"):
            ask(machine, uploader)
    assert uploader.status().state == "died"
    assert "ZeroDivisionError" in str(uploader.status().last_error)
    assert "have ended by an error" in caplog.text
    assert machine.here() == [1]


def test_the_end_waits_for_the_last_generation(machine: Machine) -> None:
    machine.memory.away = True
    uploader = Uploader(machine.directory, machine.target, machine.lease, KEEP_UPLOADED)
    tried = threading.Event()
    machine.memory.before = lambda _operation, _name: tried.set()
    with uploader:
        uploader.add(commit(machine.directory, 1))
        uploader.add_file("plots/a.png", machine.directory.path / "config.json")
        assert tried.wait(30)
        with pytest.raises(StoreUnavailableError, match=r"after 0 s.*generation 1, plots/a.png.*Resume the run here"):
            uploader.finish(0.0)
        machine.memory.away = False
        uploader.finish(60)
        assert machine.stored() == [1]
        assert f"{RUN}/plots/a.png" in machine.memory.content


def test_whoever_waits_for_the_end_shortens_a_long_pause(machine: Machine) -> None:
    uploader = Uploader(machine.directory, machine.target, machine.lease, KEEP_UPLOADED)
    refused = threading.Event()
    machine.memory.before = lambda operation, _name: refused.set() if operation == "put_file" else None
    machine.memory.refusal = REFUSED
    with uploader:
        uploader.add(commit(machine.directory, 1))
        assert refused.wait(30)
        while uploader.status().state != "waiting":
            pass
        machine.memory.refusal = None
        uploader.finish(25)
    assert machine.stored() == [1]


def test_status_is_there_for_other_processes(machine: Machine) -> None:
    folder = machine.directory.path
    assert read_status(folder) is None
    machine.memory.away = True
    machine.train(1)
    machine.clock.sleep(7)
    machine.uploader.step()
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.pending, status.failed, status.oldest_seconds) == ("waiting", 1, 1, 7.0)
    assert "1 pending" in str(status)
    assert "the store is away" in status.waiting
    machine.memory.away = False
    machine.drain()
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.pending, status.done) == ("idle", 0, 1)
    assert [(upload.generation, upload.state, upload.attempts) for upload in status.generations] == [(1, "done", 1)]
    (folder / STATUS_NAME).write_bytes(b"{")
    assert read_status(folder) is None


def test_a_status_that_cannot_be_written_stops_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    (machine.directory.path / STATUS_NAME).mkdir()
    (machine.directory.path / STATUS_NAME / "x").touch()
    machine.train(1)
    machine.drain()
    assert machine.stored() == [1]
    assert caplog.text.count("state of its uploads cannot be written") == 1


def test_the_end_waits_for_what_is_being_removed_from_the_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path, config=KEEP_UPLOADED.model_copy(update={"keep_last": 1, "keep_every": 0}))
    machine.train(1)
    machine.drain()
    removing, go_on = threading.Event(), threading.Event()

    def hold(operation: str, _name: str) -> None:
        if operation == "delete":
            removing.set()
            assert go_on.wait(30)

    machine.memory.before = hold
    ended = threading.Event()
    with Uploader(machine.directory, machine.target, machine.lease, machine.config) as uploader:
        uploader.add(commit(machine.directory, 2))
        assert removing.wait(30)

        def finish() -> None:
            uploader.finish(60)
            ended.set()

        waiting = threading.Thread(target=finish, daemon=True)
        waiting.start()
        assert not ended.wait(0.05)
        go_on.set()
        assert ended.wait(30)
    assert machine.stored() == [2]
