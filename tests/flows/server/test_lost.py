"""Flow runs whose process was killed with its worker are told to the server; those that may live are left alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from operation_cases import record_of, sleeping
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Pending, Running

from flows.server.flow_runs import has_process, report_lost
from flows.server.state_directory import ProcessRecord, StateDirectory

NAME = "machine-abc"


@dataclass
class Client:
    """What the server knows, and is told."""

    flow_runs: list[FlowRun]
    told: dict[UUID, str] = field(default_factory=dict)

    def read_flow_runs(self, **_: Any) -> list[FlowRun]:
        """All of them."""
        return self.flow_runs

    def set_flow_run_state(self, flow_run_id: UUID, state: State) -> None:
        """Note it."""
        self.told[flow_run_id] = str(state.name)


def flow_run(worker: str | None, state: State | None = None) -> FlowRun:
    """A flow run that a worker began."""
    labels: dict[str, Any] = {} if worker is None else {"prefect.worker.name": worker}
    state = Running() if state is None else state
    return FlowRun(flow_id=uuid4(), state=state, state_type=state.type, labels=labels)


@pytest.fixture
def ended(tmp_path: Path) -> ProcessRecord:
    """A worker that has ended."""
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


def test_what_has_no_process_is_told_and_only_that(ended: ProcessRecord, engine: UUID) -> None:
    gone, beginning, cancelled = (flow_run(NAME), flow_run(NAME, Pending()), flow_run(NAME, Cancelling()))
    lives = flow_run(NAME).model_copy(update={"id": engine})
    client = Client([gone, beginning, cancelled, lives, flow_run("other"), flow_run(None)])
    found = report_lost(client, ended, NAME)  # type: ignore[arg-type] # all of a client that it asks
    assert client.told == {gone.id: "Crashed", beginning.id: "Crashed", cancelled.id: "Cancelled"}
    assert [each.id for each in found] == list(client.told)


def test_nothing_is_told_of_a_worker_that_lives_or_is_elsewhere(ended: ProcessRecord, tmp_path: Path) -> None:
    client = Client([flow_run(NAME)])
    processes = (ended.process.model_copy(update={"boot": boot}) for boot in ("another", None))
    elsewhere, unknown = (ended.model_copy(update={"process": process}) for process in processes)
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
