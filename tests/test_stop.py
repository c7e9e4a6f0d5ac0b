"""`eigen train` that is told to stop at any instant ends in time and says so; `make kill` does it."""

from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.stop import stop_at_random_instants


@pytest.mark.slow
def test_a_training_that_is_told_to_stop_at_any_instant_ends(tmp_path: Path) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        outcome = stop_at_random_instants(tmp_path, 50, 2, progress)
    assert outcome.wrong == []
    assert len(outcome.seconds) == 50
