"""What `eigen up` records of its processes, which outlive their command, and how they are stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from operation_cases import record_of, sleeping

from eigen_core.common.errors import InputError
from flows.server.state_directory import LocalProcess, StateDirectory, last_lines, start


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


def test_a_number_alone_means_nothing() -> None:
    with sleeping() as process:
        found = LocalProcess.of(process.pid)
        assert found.is_alive()
        assert found.started is not None
        later = found.model_copy(update={"started": found.started + 1})
        assert not later.is_alive()
        later.send(signal.SIGKILL)
        assert later.kill()
        assert later.children() == []
        assert process.poll() is None


def test_a_process_that_was_not_waited_for_has_ended() -> None:
    with sleeping() as process:
        found = LocalProcess.of(process.pid)
        process.kill()
        assert found.wait(5.0)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert not found.runs("-c")


def test_children_are_told_by_their_commands_and_killed_with_their_parent() -> None:
    code = (
        "import subprocess, sys",
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'prefect.engine'])",
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'prefect.engineer'])",
    )
    with sleeping(*code) as process:
        parent = LocalProcess.of(process.pid)
        children = parent.children()
        assert len(children) == 2
        assert [child.runs("prefect.engine") for child in children].count(True) == 1
        assert parent.kill()
        assert not any(child.is_alive() for child in [parent, *children])


def test_a_started_process_has_a_session_of_its_own_and_writes_into_its_log(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_text("before\n")
    code = "import os, sys, time; print(os.getcwd(), os.environ['WORD'], flush=True); time.sleep(60)"
    started = start([sys.executable, "-c", code], {**os.environ, "WORD": "said"}, log, tmp_path)
    try:
        assert os.getsid(started.process.pid) == started.process.pid
        end = time.monotonic() + 20.0
        while len(last_lines(log, 5)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert last_lines(log, 5) == ["before", f"{tmp_path} said"]
        assert started.ended() is None
    finally:
        started.stop()
    assert started.ended() == -signal.SIGTERM
    assert not started.process.is_alive()


def test_what_does_not_stop_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    log = tmp_path / "some.log"
    started = start([sys.executable, "-c", code], os.environ, log, tmp_path)
    end = time.monotonic() + 20.0
    while not last_lines(log, 1) and time.monotonic() < end:
        time.sleep(0.05)
    started.stop(0.2)
    assert started.ended() == -signal.SIGKILL


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * 200_000 + b"\n\xff one\n\n two \n\n")
    assert last_lines(log, 2) == ["� one", "two"]
    assert last_lines(tmp_path / "missing.log", 2) == []


def test_a_process_goes_on_when_its_starter_has_ended(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from flows.server.state_directory import start
command = [sys.executable, "-c", "import time; time.sleep(60)"]
folder = Path({str(tmp_path)!r})
print(start(command, os.environ, folder / "some.log", folder).process.model_dump_json())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    process = LocalProcess.model_validate_json(ended.stdout)
    assert process.is_alive()
    assert process.kill()
