"""`eigen up` in its less usual forms, for real; tests/e2e has the usual one, with trainings."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flow_cases import free_port, run_eigen, started
from operation_cases import operator_environment, record_of, sleeping

from flows.server.state_directory import COMPONENTS, StateDirectory
from flows.server.up import DownResult, bring_down


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    home = StateDirectory(tmp_path / ".eigen")
    for record in [home.read(part) for part in COMPONENTS]:
        if record is not None:
            record.process.kill()


@pytest.fixture
def eigen(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = operator_environment(folder / "prefect")

    def run(*arguments: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        ended = run_eigen(arguments, environment={**environment, **extra}, folder=folder, timeout=300.0)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SIGTERM", "eigen down"])
def test_in_the_foreground_it_ends_with_what_it_started(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]], way: str
) -> None:
    home, command = StateDirectory(folder / ".eigen"), ["up", "--port", str(free_port()), "--foreground"]
    with started(command, operator_environment(folder / "prefect"), folder) as process:
        assert process.stdout is not None
        assert any("PREFECT_API_URL" in line for line in iter(process.stdout.readline, ""))
        components = [home.running("server"), home.running("worker")]
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            eigen("down")
        # A loop in a shell that restarts it ends too.
        assert process.wait(60.0) == 0
    assert all(record is not None and not record.process.is_alive() for record in components)


@pytest.mark.slow
def test_what_is_killed_is_started_where_it_was(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    port = free_port()
    eigen("up", "--port", str(port))
    home = StateDirectory(folder / ".eigen")
    before = [home.running(part) for part in COMPONENTS]
    for record in before:
        assert record is not None
        record.process.kill()
    eigen("status", code=1)
    eigen("up")
    for part, record in zip(COMPONENTS, before, strict=True):
        restarted = home.running(part)
        assert restarted is not None
        assert restarted != record
        assert restarted.api == f"http://127.0.0.1:{port}/api"
    eigen("status")
    eigen("down")
    assert [home.running(part) for part in COMPONENTS] == [None, None]
    eigen("up", "--only", "server")
    assert home.port() == port
    eigen("down")


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
