"""What `eigen up` records of its processes, which outlive their command, and how they are stopped.

tests/e2e has its usual form, with trainings.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from flow_cases import free_port, started
from known import known
from operated import Operated
from operation_cases import record_of, sleeping

from eigen_core.common.errors import InputError, Stopped
from flows.server.state_directory import COMPONENTS, LocalProcess, StateDirectory
from flows.server.up import DownResult, bring_down


def test_what_cannot_be_read_or_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"process": {"pid": 1}}')
    with pytest.raises(InputError, match=r"server\.json cannot be read \(it is damaged\).*remove the file"):
        StateDirectory(tmp_path).running("server")
    (tmp_path / "home").write_text("")
    with (
        pytest.raises(InputError, match=r"Cannot write to .* or set EIGEN_HOME to another folder"),
        StateDirectory(tmp_path / "home").locked(),
    ):
        pass


def test_only_its_own_files_are_examined(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("notes", "launched", "worker.yaml"):
        (home / name).symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(home)
    environment = {"EIGEN_HOME": str(tmp_path / "linked")}
    with StateDirectory.of(environment).locked():
        pass
    os.mkfifo(home / "worker.json")
    with pytest.raises(InputError, match=r"worker\.json is a pipe"):
        StateDirectory.of(environment)
    (home / "server.log").symlink_to(home)
    with pytest.raises(InputError, match=r"server\.log is a symbolic link"):
        StateDirectory.of(environment)


def test_only_one_is_at_work(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    with home.locked():
        with pytest.raises(InputError, match="at work in"), StateDirectory(tmp_path).locked():
            pass
        waiting = threading.Event()

        def wait() -> None:
            with StateDirectory(tmp_path).locked(30.0):
                waiting.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not waiting.wait(0.3)
    thread.join(20.0)
    assert waiting.is_set()


def test_a_number_alone_means_nothing() -> None:
    with sleeping() as process:
        found = LocalProcess.of(process.pid)
        assert found.is_alive()
        later = found.model_copy(update={"started": known(found.started) + 1})
        assert not later.is_alive()
        later.send(signal.SIGKILL)
        assert later.kill()
        assert later.children() == []
        assert process.poll() is None


def test_what_does_not_stop_is_killed_with_its_children() -> None:
    code = (
        "import signal, subprocess, sys",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "for word in ('prefect.engine', 'prefect.engineer'):",
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', word])",
    )
    with sleeping(*code) as process:
        parent = LocalProcess.of(process.pid)
        children = parent.children()
        assert sorted(child.runs("prefect.engine") for child in children) == [False, True]
        assert parent.stop(0.2)
        assert process.wait(20.0) == -signal.SIGKILL
        assert not any(child.is_alive() for child in children)


@pytest.mark.parametrize(
    ("code", "seconds", "how"),
    [
        ("print('why'); raise SystemExit(3)", 120.0, r"ended with status 3\. The last line that it printed was: why\."),
        ("import time; time.sleep(600)", 1.0, r"was not ready within 1 s\. The last line that it printed was: none\."),
    ],
    ids=["ended", "late"],
)
def test_a_process_that_does_not_become_ready_is_stopped_and_forgotten(
    tmp_path: Path, code: str, seconds: float, how: str
) -> None:
    home = StateDirectory(tmp_path)
    seen: list[LocalProcess] = []

    def ready() -> bool:
        record = known(home.read("server"))
        seen.append(record.process)
        return False

    with pytest.raises(Stopped, match=f"The server {how} Its log is"):
        home.start("server", [sys.executable, "-c", code], os.environ, ready, seconds, api="http://api")
    assert home.read("server") is None
    assert not any(process.is_alive() for process in seen)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SIGTERM", "eigen down"])
def test_in_the_foreground_it_ends_with_what_it_started(tmp_path: Path, way: str) -> None:
    command = ["up", "--port", str(free_port()), "--foreground"]
    with Operated(tmp_path) as operated, started(command, operated.environment, operated.folder) as process:
        assert process.stdout is not None
        assert any("PREFECT_API_URL" in line for line in iter(process.stdout.readline, ""))
        components = [StateDirectory(operated.home).running(part) for part in COMPONENTS]
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            operated.down()
        # A loop in a shell that restarts it ends too.
        assert process.wait(60.0) == 0
        assert all(component is not None and not component.process.is_alive() for component in components)


def test_a_training_that_a_worker_begins_while_it_ends_is_asked_to_stop_too(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    engine = "import pathlib, signal, sys; signal.sigwait([signal.SIGTERM]); pathlib.Path(sys.argv[2]).touch()"
    worker = f"""
import signal, subprocess, sys
def command(name):
    return [sys.executable, "-c", {engine!r}, "prefect.engine", "{tmp_path}/" + name]
# Its processes inherit it: none can be asked before it waits for the signal.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
subprocess.Popen(command("first"))
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(subprocess.run(command("late")).returncode)
"""
    with sleeping(worker) as process:
        record = record_of(home, process.pid)
        home.write("worker", record)
        assert bring_down(home, print) == DownResult(record, None, 2, ())
    assert process.returncode == 0
    assert all((tmp_path / name).exists() for name in ("first", "late"))
