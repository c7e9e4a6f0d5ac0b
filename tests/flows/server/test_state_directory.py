"""What `eigen up` records of its processes, which outlive their command, and how they are stopped."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from operation_cases import ROOT, record_of, sleeping

from eigen_core.common.errors import InputError
from flows.server.environment import Stopped
from flows.server.state_directory import LocalProcess, StateDirectory, last_lines


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
    with pytest.raises(InputError, match="cannot be read"):
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


def test_what_does_not_stop_is_killed() -> None:
    with sleeping("import signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        assert LocalProcess.of(process.pid).stop(0.2)
        assert process.wait(20.0) == -signal.SIGKILL


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * 200_000 + b"\n\xff one\n\n two \n\n")
    assert last_lines(log, 2) == ["� one", "two"]
    assert last_lines(tmp_path / "missing.log", 2) == []


def test_a_started_process_writes_into_its_log_and_outlives_its_starter(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    home.log("worker").write_text("before\n")
    code = f"""
import os, sys
from pathlib import Path
from flows.server.state_directory import StateDirectory, last_lines
home = StateDirectory(Path({str(tmp_path)!r}))
says = "import os, time; print(os.getcwd(), os.environ['WORD'], flush=True); time.sleep(60)"
command, environment = [sys.executable, "-c", says], {{**os.environ, "WORD": "said"}}
ready = lambda: len(last_lines(home.log("worker"), 5)) == 2
home.start("worker", command, environment, ready, 120.0, api="http://api")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=180, check=True)
    record = home.running("worker")
    assert record is not None
    assert last_lines(record.log, 5) == ["before", f"{tmp_path} said"]
    assert os.getsid(record.process.pid) == record.process.pid
    assert record.process.kill()


@pytest.mark.parametrize(
    ("code", "seconds", "how"),
    [
        ("print('why'); raise SystemExit(3)", 120.0, r"ended with status 3\. Its last line was: why\."),
        ("import time; time.sleep(600)", 1.0, r"was not ready within 1 s\. Its last line was: none\."),
    ],
    ids=["ended", "late"],
)
def test_a_process_that_does_not_become_ready_is_stopped_and_forgotten(
    tmp_path: Path, code: str, seconds: float, how: str
) -> None:
    home = StateDirectory(tmp_path)
    seen: list[LocalProcess] = []

    def ready() -> bool:
        record = home.read("server")
        assert record is not None
        seen.append(record.process)
        return False

    with pytest.raises(Stopped, match=f"The server {how} Its log is"):
        home.start("server", [sys.executable, "-c", code], os.environ, ready, seconds, api="http://api")
    assert home.read("server") is None
    assert not any(process.is_alive() for process in seen)
