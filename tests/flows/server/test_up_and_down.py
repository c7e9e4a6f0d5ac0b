"""`eigen up` in its less usual forms, for real; tests/e2e has the usual one, with trainings."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from flow_cases import eigen_command, free_port, run_eigen, small_flow_config
from operation_cases import operator_environment, record_of, sleeping
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Pending, Running

from eigen_core.checkpoint.run_directory import RunDirectory
from flows.server.flow_runs import report_lost
from flows.server.state_directory import COMPONENTS, ProcessRecord, StateDirectory
from flows.server.training import unfinished_runs


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
    port = free_port()
    environment = operator_environment(folder / "prefect")
    process = subprocess.Popen(
        eigen_command(["up", "--port", str(port), "--foreground"]),
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    home = StateDirectory(folder / ".eigen")
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("PREFECT_API_URL" in line for line in lines)
        started = [home.running("server"), home.running("worker")]
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            eigen("down")
        # A loop in a shell that restarts it ends too.
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.communicate()
    assert all(record is not None and not record.process.is_alive() for record in started)


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


@pytest.mark.slow
def test_for_a_server_elsewhere_only_the_worker_starts(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    elsewhere = {"EIGEN_HOME": str(tmp_path_factory.mktemp("elsewhere"))}
    eigen("up", "--port", str(port), "--only", "server", **elsewhere)
    try:
        refused = eigen("up", code=2, PREFECT_API_URL="http://elsewhere.invalid/api")
        assert "does not answer" in refused.stderr
        up = eigen("up", PREFECT_API_URL=api)
        assert "a server elsewhere" in up.stdout
        assert StateDirectory(folder / ".eigen").running("server") is None
        assert StateDirectory(folder / ".eigen").running("worker") is not None
        assert "train/gpu" in eigen("deploy", PREFECT_API_URL=api).stdout
        eigen("down")
        eigen("status", code=1, PREFECT_API_URL=api)
    finally:
        eigen("down", **elsewhere)


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


def test_a_flow_run_without_a_process_is_reported_and_only_that(
    ended_worker: ProcessRecord, engine: UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGEN_STORE", str(tmp_path))
    gone, beginning, cancelled = (flow_run(NAME), flow_run(NAME, Pending()), flow_run(NAME, Cancelling()))
    for found, run in ((gone, "killed"), (cancelled, "cancelled")):
        RunDirectory.create(tmp_path, run, small_flow_config(tmp_path).model_dump(mode="json"))
        found.parameters["run"] = run
    lives = flow_run(NAME).model_copy(update={"id": engine})
    client = Client([gone, beginning, cancelled, lives, flow_run("other"), flow_run(None)])
    report_lost(client, ended_worker, NAME)  # type: ignore[arg-type] # all of a client that it asks
    assert client.told == {gone.id: "Crashed", beginning.id: "Crashed", cancelled.id: "Cancelled"}
    # Not even another server resumes it.
    assert unfinished_runs(str(tmp_path)) == ["killed"]


def test_nothing_is_reported_of_a_worker_that_lives_or_is_elsewhere(
    ended_worker: ProcessRecord, tmp_path: Path
) -> None:
    client = Client([flow_run(NAME)])
    processes = (ended_worker.process.model_copy(update={"boot": boot}) for boot in ("another", None))
    elsewhere, unknown = (ended_worker.model_copy(update={"process": process}) for process in processes)
    with sleeping() as process:
        lives = record_of(StateDirectory(tmp_path), process.pid)
        for worker in (None, lives, elsewhere, unknown):
            report_lost(client, worker, NAME)  # type: ignore[arg-type] # all of a client that it asks
    assert client.told == {}
