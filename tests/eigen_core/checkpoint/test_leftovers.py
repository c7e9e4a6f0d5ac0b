"""What a killed process left half-written in a run directory is cleared."""

from pathlib import Path

import pytest
from checkpoint_samples import new_run, sample

from eigen_core.checkpoint import run as run_module
from eigen_core.store.files import leftovers


def test_a_leftover_that_is_removed_by_another_thread_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploader writes its status while a generation is committed."""
    run = new_run(tmp_path)
    monkeypatch.setattr(run_module, "leftovers", lambda folder: [*leftovers(folder), folder / ".writing-replaced"])
    assert run.save(sample(1)).manifest.generation == 1
