"""How a training that ends early is explained on the command line."""

from pathlib import Path

import pytest
import typer
from flow_cases import small_flow_config
from rich.console import Console

from eigen_core.common.errors import SchedulerLostError, WorkerLostError
from flows.cli.common import EXIT_OTHER, sentences
from flows.cli.display import LineDisplay, StopSignals
from flows.cli.training import StoppableObserver, explained


@pytest.mark.parametrize("error", [SchedulerLostError, WorkerLostError])
def test_workers_that_are_lost_end_a_training_with_a_sentence(
    error: type[RuntimeError], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = StoppableObserver(LineDisplay(Console()), StopSignals(), small_flow_config(tmp_path), "run")

    @sentences
    def command() -> None:
        with explained(observer):
            raise error("scheduler tcp://host:8786 has no workers: start some.")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == EXIT_OTHER
    said = capsys.readouterr().err
    assert said.startswith("eigen: scheduler tcp://host:8786 has no workers: start some. There is no checkpoint in ")
    assert "eigen resume run" in said
