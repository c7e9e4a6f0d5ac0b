"""What `eigen up` remembers of its processes."""

import threading
from pathlib import Path

import pytest
from operation_cases import record_of, sleeping

from eigen_core.common.errors import InputError
from flows.server.state_directory import StateDirectory


def test_the_folder_is_below_the_working_directory_unless_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert StateDirectory.of({}).path == tmp_path / ".eigen"
    assert StateDirectory.of({"EIGEN_HOME": " "}).path == tmp_path / ".eigen"
    assert StateDirectory.of({"EIGEN_HOME": "elsewhere"}).path == tmp_path / "elsewhere"


def test_a_part_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path / "home")
    assert home.read("worker") is None
    with sleeping() as process, home.alone():
        record = record_of(home, process.pid)
        home.write("worker", record)
        assert home.read("worker") == home.running("worker") == record
        assert home.running("server") is None
        process.kill()
        process.wait()
        assert home.running("worker") is None
        assert home.read("worker") == record
        home.forget("worker")
        home.forget("worker")
        assert home.read("worker") is None
    assert (home.path / ".gitignore").read_text() == "*\n"


def test_a_damaged_record_is_a_sentence(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    (tmp_path / "server.json").write_text('{"process": {"pid": 1}}')
    with pytest.raises(InputError, match=r"server\.json cannot be read \(it is damaged\).*remove the file"):
        home.running("server")


def test_a_file_in_the_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(InputError, match="is no folder"):
        StateDirectory(tmp_path / "home").read("server")
    with (
        pytest.raises(InputError, match=r"Cannot write to .* or set EIGEN_HOME to another folder"),
        StateDirectory(tmp_path / "home").alone(),
    ):
        pass


def test_only_one_is_at_work(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    with home.alone():
        with pytest.raises(InputError, match="at work in"), StateDirectory(tmp_path).alone():
            pass
        waiting = threading.Event()

        def wait() -> None:
            with StateDirectory(tmp_path).alone(30.0):
                waiting.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not waiting.wait(0.3)
    thread.join(20.0)
    assert waiting.is_set()


def test_the_port_is_remembered_whatever_is_forgotten(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    assert home.port() is None
    home.remember_port(4300)
    home.forget("server")
    assert StateDirectory(tmp_path).port() == 4300
    (tmp_path / "port").write_text("")
    assert home.port() is None


def test_a_server_is_used_until_the_process_that_asks_it_ends(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    assert not home.is_server_used()
    asks = (
        "from pathlib import Path",
        "from flows.server.state_directory import StateDirectory",
        f"home = StateDirectory(Path({str(tmp_path)!r}))",
    )
    with sleeping(*asks, "home.use_server()") as first, sleeping(*asks, "home.use_server()") as second:
        for process in (first, second):
            assert home.is_server_used()
            process.kill()
            process.wait()
        assert not home.is_server_used()
