"""Trainings that memory or lost workers end, as a user sees them: exit code, why, what is safe, what next."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from flow_cases import small_flow_config
from memory_cases import bare_report
from rich.console import Console
from store_cases import run_config, save_generations
from typer.testing import CliRunner

from eigen_core.checkpoint.location import RunLocation
from eigen_core.common.errors import SchedulerLostError, WorkerLostError
from eigen_core.machine import MemoryGuardError
from eigen_core.planning.run_plan import RunTooLargeError, plan_run
from eigen_core.task import open_data
from eigen_core.training.journals import BlockedError, write_memory_report
from eigen_core.training.runs import status_of
from flows.cli.app import app
from flows.cli.common import EXIT_OTHER, sentences
from flows.cli.display import LineDisplay
from flows.cli.training import explained

# A training whose memory grows by 20 MB every 20 ms once its second generation is saved.


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLocation:
    """A run with two of nine generations, in a process that would start no Prefect."""
    for name in ("EIGEN_STORE", "CLOUD_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    config = run_config("runs", Path("runs")).model_copy(update={"generations": 9})
    return save_generations(config, "run", 1, 2)


def ended_by(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> Any:
    """Resume the run; its training raises that exception."""

    def train(*_: object, **__: object) -> bool:
        raise error()

    monkeypatch.setattr("eigen_core.run.train_run", train)
    ended = CliRunner().invoke(app, ["resume", "run"])
    assert ended.exit_code == 3, ended.output
    assert ended.stderr.startswith("eigen: ")
    assert ended.stderr.count("\n") == 1
    return ended


def test_the_guards_end_says_why_where_the_report_is_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, location: RunLocation, tmp_path: Path
) -> None:
    written = []

    def error() -> Exception:
        written.append(write_memory_report(location, bare_report(), 3, "train"))
        return MemoryGuardError("memory: 4.00 GB of 4.20 GB in train of generation 3.", bare_report(), "train", 3)

    said = ended_by(monkeypatch, error).stderr
    assert said.startswith("eigen: memory: 4.00 GB of 4.20 GB in train of generation 3. The report is ")
    assert str(written[0]) in said
    assert "(eigen memory run shows it)" in said
    assert f"The last checkpoint is generation 2 in {tmp_path / 'runs' / 'run'}." in said
    assert said.endswith("Go on with: eigen resume run\n")


def test_a_report_of_an_earlier_end_is_not_taken_for_this_ones(
    monkeypatch: pytest.MonkeyPatch, location: RunLocation
) -> None:
    old = write_memory_report(location, bare_report(), 1, "train")
    old.rename(old.with_name("20200101T000000-000001-train.md"))
    error = MemoryGuardError("memory: too much.", bare_report(), "", None)
    said = ended_by(monkeypatch, lambda: error).stderr
    assert "The report is" not in said
    assert "The last checkpoint is generation 2" in said


def test_a_blocked_run_says_what_the_flow_says(monkeypatch: pytest.MonkeyPatch, location: RunLocation) -> None:
    ended = ended_by(monkeypatch, lambda: BlockedError("Run 'run' is blocked: twice."))
    assert ended.stderr == "eigen: Run 'run' is blocked: twice.\n"
    assert location.exists()


def test_a_plan_that_no_longer_fits_in_the_flow_is_printed(
    monkeypatch: pytest.MonkeyPatch, location: RunLocation
) -> None:
    config = status_of("runs", location.name).config
    tight = config.model_copy(update={"memory": config.memory.model_copy(update={"limit_gb": 0.5})})
    run_plan = plan_run(tight, open_data(tight), measured=False)
    ended = ended_by(monkeypatch, lambda: RunTooLargeError(run_plan))
    assert ended.stderr == f"eigen: {run_plan.sentence()}\n"
    assert "500 MB (memory.limit_gb)" in ended.stdout
    assert "\n population " in ended.stdout


@pytest.mark.usefixtures("location")
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), OSError(12, "ENOMEM")]
)
def test_memory_that_cannot_be_had_to_prepare_a_run_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start_training(*_: object) -> None:
        raise error

    monkeypatch.setattr("eigen_core.generation.start_training", start_training)
    ended = CliRunner().invoke(app, ["resume", "run"])
    assert ended.exit_code == 3, ended.output
    assert ended.stderr.startswith("eigen: memory: an allocation failed (")
    assert "in start of generation 3." in ended.stderr


@pytest.mark.parametrize("error", [SchedulerLostError, WorkerLostError])
def test_workers_that_are_lost_end_a_training_with_a_sentence(
    error: type[RuntimeError], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @sentences
    def command() -> None:
        with explained(LineDisplay(Console()), "run", small_flow_config(tmp_path)):
            raise error("scheduler tcp://host:8786 has no workers: start some.")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == EXIT_OTHER
    said = capsys.readouterr().err
    assert said.startswith("eigen: scheduler tcp://host:8786 has no workers: start some. There is no checkpoint in ")
    assert "eigen resume run" in said
