"""Whole runs as processes: what was given, how they ended, and stopping them."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flow_cases import eigen_environment

from eigen_core.common.errors import End, InputError, Stopped, StoppedByMemory
from eigen_core.common.process import MKL_MODE, STRICT, TORCH_CAPABILITY, use_instructions
from flows.cli.run_jobs import (
    IsStopped,
    JobResult,
    RunJob,
    Train,
    job_executor,
    require_trained,
    run_job,
    train_in_subprocess,
)


@pytest.fixture
def run(tmp_path: Path) -> RunJob:
    return run_job("mine", None, ["seed=1", f"checkpoint.store={tmp_path / 'runs'}", "generations=2", "seed=7"])


def test_of_what_is_given_twice_the_last_counts(run: RunJob) -> None:
    assert run.config.seed == 7
    assert [given for given in run.arguments if given.startswith("seed")] == ["seed=7"]
    with pytest.raises(InputError, match=r"learner\.tau"):
        run_job("mine", None, ["learner.tau=7"])


def test_a_run_that_is_refused_ends_with_its_sentence(
    run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", eigen_environment(tmp_path))
    refused = RunJob(run.name, run.config, [*run.arguments, "--set", "learner.tau=7"])
    end = train_in_subprocess(refused, tmp_path / "run.log", lambda: False)
    assert end.end is End.REFUSED
    assert "learner.tau" in end.sentence
    assert "learner.tau" in (tmp_path / "run.log").read_text()
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_stopped_leaves_no_process(run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", eigen_environment(tmp_path))
    end = train_in_subprocess(run, tmp_path / "run.log", lambda: True)
    assert end.code not in (0, None)
    assert end.end is End.INTERRUPTED


def failing() -> None:
    raise StoppedByMemory("Too large.")


@pytest.mark.parametrize(
    ("ending", "error", "sentence"),
    [
        (failing, StoppedByMemory, "Too large."),
        (lambda: os.kill(os.getpid(), signal.SIGINT), Stopped, "Stopped. Run the same command again to continue."),
    ],
)
def test_what_ends_one_run_stops_the_others(ending: Callable[[], None], error: type[Stopped], sentence: str) -> None:
    ended, begun = [], threading.Event()

    def other(_: Train, is_stopped: IsStopped) -> None:
        begun.set()
        while not is_stopped():
            time.sleep(0.01)
        ended.append("other")

    def first(*_: object) -> None:
        begun.wait()
        ending()

    with pytest.raises(Stopped) as raised, job_executor(2, None) as in_threads:
        in_threads([other, first])
    assert (type(raised.value), str(raised.value)) == (error, sentence)
    assert ended == ["other"]


def test_a_run_is_not_given_the_instructions_that_this_process_computes_with(
    run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("eigen_core.common.process._before", {})
    monkeypatch.setenv(MKL_MODE, STRICT)
    # Set first, so that it is removed after the test.
    monkeypatch.setenv(TORCH_CAPABILITY, "")
    monkeypatch.delenv(TORCH_CAPABILITY)

    def given() -> list[str]:
        printed = train_in_subprocess(run, tmp_path / "run.log", lambda: False).output.splitlines()
        return [line for line in printed if line.startswith((MKL_MODE, TORCH_CAPABILITY))]

    before = given()
    use_instructions("avx2")
    assert given() == before == [f"{MKL_MODE}={STRICT}"]


@pytest.mark.parametrize(
    ("end", "error", "sentence"),
    [
        (JobResult(0, ""), Stopped, "runs does not have it: give --store a bucket"),
        (JobResult(1, "x", End.OTHER, "No luck."), Stopped, r"exit code 1\. No luck\. Its output is in .*mine\.log"),
        (JobResult(3, "x", End.GUARD, "Too large."), StoppedByMemory, r"Too large\."),
    ],
)
def test_what_is_not_trained_to_its_end_is_refused(
    run: RunJob, tmp_path: Path, end: JobResult, error: type[Stopped], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as raised:
        require_trained(run, end, tmp_path / "mine.log", "sweep")
    assert type(raised.value) is error
    assert str(raised.value).endswith("Run the same command again to continue.")
