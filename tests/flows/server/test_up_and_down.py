"""`eigen up` in its less usual forms, for real; tests/e2e has the usual one, with trainings."""

import signal
from pathlib import Path

import pytest
from flow_cases import free_port, started
from operated import Operated
from operation_cases import record_of, sleeping

from flows.server.state_directory import COMPONENTS, StateDirectory
from flows.server.up import DownResult, bring_down


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
