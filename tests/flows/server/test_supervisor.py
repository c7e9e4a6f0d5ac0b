"""What has ended by itself is restarted; flow runs whose process was killed are told to the server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from operation_cases import operator_environment, record_of, sleeping
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Pending, Running

from flows.server.flow_runs import has_process, report_lost
from flows.server.state_directory import LocalProcess, ProcessRecord, StateDirectory
from flows.server.supervisor import ensure_supervisor, stop_supervisor, supervise

API = "http://127.0.0.1:4300/api"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    """The home of parts that have ended; nothing supervises it afterwards."""
    found = StateDirectory(tmp_path)
    yield found
    stop_supervisor(found)


def ended(home: StateDirectory, *parts: str) -> None:
    with sleeping() as process:
        for part in parts:
            record = record_of(home, process.pid, API)
            host = "0.0.0.0" if part == "server" else None
            home.write(part, record.model_copy(update={"host": host}))  # type: ignore[arg-type] # one of them


def looks(count: int) -> Callable[[float], bool]:
    """Wait no time, and stop after so many looks."""
    left = iter([False] * count)
    return lambda _: next(left, True)


@pytest.mark.parametrize(
    ("parts", "arguments"),
    [
        (["worker"], ["--only", "worker"]),
        (["server"], ["--only", "server", "--host", "0.0.0.0", "--port", "4300", "--without-password"]),
        (["server", "worker"], ["--host", "0.0.0.0", "--port", "4300", "--without-password"]),
    ],
)
def test_what_has_ended_is_restarted_where_it_was(home: StateDirectory, parts: list[str], arguments: list[str]) -> None:
    ended(home, *parts)
    asked: list[tuple[list[str], Path]] = []

    def restart(given: list[str], folder: Path) -> bool:
        asked.append((given, folder))
        for part in parts:
            home.write(part, record_of(home, os.getpid(), API))  # type: ignore[arg-type] # one of them
        return True

    supervise(home, restart, looks(6))
    assert asked == [(arguments, home.path.parent)]


def test_one_of_two_that_has_ended_is_restarted(home: StateDirectory) -> None:
    ended(home, "server", "worker")
    home.write("server", record_of(home, os.getpid(), API))
    asked: list[list[str]] = []

    def restart(given: list[str], _: Path) -> bool:
        asked.append(given)
        return True

    supervise(home, restart, looks(2))
    assert asked == [[]]


def test_what_runs_or_was_stopped_is_left_alone(home: StateDirectory) -> None:
    home.write("server", record_of(home, os.getpid(), API))
    ended(home, "worker")
    home.forget("worker")
    supervise(home, lambda *_: pytest.fail("restarted"), looks(6))


def test_a_restart_that_fails_is_tried_again_with_growing_pauses(home: StateDirectory) -> None:
    ended(home, "worker")
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > 20

    def restart(*_: object) -> bool:
        # A start that fails forgets what it has stopped.
        home.forget("worker")
        return False

    supervise(home, restart, wait)
    assert waits[1::2] == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_it_is_one_process_that_is_replaced_only_when_something_has_begun(home: StateDirectory) -> None:
    environ = operator_environment(home.path / "prefect")
    seen: list[LocalProcess] = []
    for anew in (False, False, True):
        ensure_supervisor(home, environ, API, anew=anew)
        found = home.running("supervisor")
        assert found is not None
        seen.append(found.process)
    assert seen[0] == seen[1] != seen[2]
    assert not seen[1].is_alive()
    stop_supervisor(home)
    assert not seen[2].is_alive()
    assert home.read("supervisor") is None


@pytest.mark.thorough
def test_as_a_process_it_calls_eigen_up_and_ends_when_it_is_told_to(home: StateDirectory, tmp_path: Path) -> None:
    ended(home, "worker")
    environ = {**operator_environment(tmp_path / "prefect"), "EIGEN_HOME": str(home.path)}
    command = [sys.executable, "-m", "flows.server.supervisor"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")
        assert any("restarting: eigen up --only worker" in line for line in said)
        assert any("No server runs here" in line for line in said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 0


NAME = "machine-abc"


@dataclass
class Client:
    flow_runs: list[FlowRun]
    told: dict[UUID, str] = field(default_factory=dict)

    def read_flow_runs(self, **_: Any) -> list[FlowRun]:
        return self.flow_runs

    def set_flow_run_state(self, flow_run_id: UUID, state: State) -> None:
        self.told[flow_run_id] = str(state.name)


def flow_run(worker: str | None, state: State | None = None) -> FlowRun:
    labels: dict[str, Any] = {} if worker is None else {"prefect.worker.name": worker}
    state = Running() if state is None else state
    return FlowRun(flow_id=uuid4(), state=state, state_type=state.type, labels=labels)


@pytest.fixture
def ended_worker(tmp_path: Path) -> ProcessRecord:
    with sleeping() as process:
        return record_of(StateDirectory(tmp_path), process.pid)


@pytest.fixture
def engine() -> Iterator[UUID]:
    """The number of a flow run that has a process."""
    number = uuid4()
    code = "import time; print(flush=True); time.sleep(60)"
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(number)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield number
        process.kill()


def test_what_has_no_process_is_told_and_only_that(ended_worker: ProcessRecord, engine: UUID) -> None:
    gone, beginning, cancelled = (flow_run(NAME), flow_run(NAME, Pending()), flow_run(NAME, Cancelling()))
    lives = flow_run(NAME).model_copy(update={"id": engine})
    client = Client([gone, beginning, cancelled, lives, flow_run("other"), flow_run(None)])
    found = report_lost(client, ended_worker, NAME)  # type: ignore[arg-type] # all of a client that it asks
    assert client.told == {gone.id: "Crashed", beginning.id: "Crashed", cancelled.id: "Cancelled"}
    assert [each.id for each in found] == list(client.told)


def test_nothing_is_told_of_a_worker_that_lives_or_is_elsewhere(ended_worker: ProcessRecord, tmp_path: Path) -> None:
    client = Client([flow_run(NAME)])
    processes = (ended_worker.process.model_copy(update={"boot": boot}) for boot in ("another", None))
    elsewhere, unknown = (ended_worker.model_copy(update={"process": process}) for process in processes)
    with sleeping() as process:
        lives = record_of(StateDirectory(tmp_path), process.pid)
        for worker in (None, lives, elsewhere, unknown):
            assert report_lost(client, worker, NAME) == []  # type: ignore[arg-type] # all of a client that it asks
    assert client.told == {}


@pytest.mark.parametrize(("command", "told"), [(["python", "-m", "prefect.engine"], True), (["bash"], False)])
def test_a_process_that_hides_its_environment_may_be_an_engine(
    monkeypatch: pytest.MonkeyPatch, command: list[str], told: bool
) -> None:
    class Hidden(psutil.Process):
        def environ(self) -> dict[str, str]:
            raise psutil.AccessDenied

        def cmdline(self) -> list[str]:
            return command

    monkeypatch.setattr("flows.server.flow_runs.psutil.process_iter", lambda: [Hidden()])
    assert has_process(uuid4()) is told
