"""Worker processes of this machine: those that fail or do not end, and what they leave behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from science_cases import small_config
from worker_cases import led

from eigen_core.common.errors import WorkerLostError
from eigen_core.generation import evaluate
from eigen_core.workers import LocalWorkers

pytestmark = pytest.mark.cpu


def test_a_worker_that_cannot_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "echo what is wrong >&2", "exit 3"))
    with (
        LocalWorkers(1) as workers,
        led(small_config(), workers) as (state, _),
        pytest.raises(WorkerLostError, match="a worker process of this machine ended by itself: what is wrong"),
    ):
        evaluate(state)


def script(folder: Path, *lines: str) -> str:
    """An executable that runs a script of the shell, whatever it is given."""
    path = folder / "python"
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o700)
    return str(path)


def test_workers_that_failed_are_said_once_and_then_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "exit 3"))
    with LocalWorkers(2) as workers:
        failed = workers.processes
        for process in failed:
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerLostError, match="ended by itself: status 3"):
            workers.start_missing()
        script(tmp_path, "exec sleep 60")
        workers.start_missing()
        assert len(workers.processes) == 2
        assert not set(failed) & set(workers.processes)


def test_a_worker_that_failed_is_quoted_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (f"{tmp_path}/{name}" for name in ("first", "second"))
    commands = script(
        tmp_path,
        'case "$*" in *"local-1 "*)',
        f"echo what is wrong >&2; touch {first}; while [ ! -e {second} ]; do sleep 0.01; done; exit 3;; esac",
        f"while [ ! -e {first} ]; do sleep 0.01; done; echo all is well >&2; touch {second}; exec sleep 60",
    )
    monkeypatch.setattr(sys, "executable", commands)
    with LocalWorkers(2) as workers:
        os.waitid(os.P_PID, workers.processes[0], os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerLostError, match="ended by itself: what is wrong"):
            workers.start_missing()


def test_workers_are_shared_out_among_gpus_and_the_next_gets_that_of_the_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = "$CUDA_VISIBLE_DEVICES"
    monkeypatch.setattr(
        sys,
        "executable",
        script(
            tmp_path,
            f'echo "{written}" > {tmp_path}/$$.new',
            f"mv {tmp_path}/$$.new {tmp_path}/$$.gpu",
            "exec sleep 60",
        ),
    )

    def gpus(workers: LocalWorkers) -> list[str]:
        files = [tmp_path / f"{process}.gpu" for process in workers.processes]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        return sorted(file.read_text().strip() for file in files)

    with LocalWorkers(3, ("4", "GPU-7")) as workers:
        assert gpus(workers) == ["4", "4", "GPU-7"]
        [lost] = [process for process in workers.processes if "GPU" in (tmp_path / f"{process}.gpu").read_text()]
        os.kill(lost, signal.SIGKILL)
        os.waitid(os.P_PID, lost, os.WEXITED | os.WNOWAIT)
        workers.start_missing()
        assert lost not in workers.processes
        assert gpus(workers) == ["4", "4", "GPU-7"]


def test_workers_that_do_not_end_are_killed_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eigen_core.workers.local._ENDING_SECONDS", 3)
    deaf = script(tmp_path, "trap '' TERM", f"touch {tmp_path}/$$.ready", "while :; do sleep 0.1; done")
    monkeypatch.setattr(sys, "executable", deaf)
    with LocalWorkers(6) as workers:
        while len(list(tmp_path.glob("*.ready"))) < 6:
            time.sleep(0.01)
        processes = workers.processes
        began = time.monotonic()
    # One after another they would take six times as long.
    assert time.monotonic() - began < 15.0
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
