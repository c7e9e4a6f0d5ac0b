"""A training killed anywhere ends with the bits of one that was not; `make kill` kills many more."""

from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from gcs_emulator import GcsEmulator
from rich.console import Console
from rich.progress import Progress

from benchmarks.kill import Killer, Outcome, kill_locally, kill_remotely

KILLS = 2


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killer:
    for name in ("EIGEN_CACHE", "OMP_NUM_THREADS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, "")
    return Killer(tmp_path, seed=2)


def require_equal(outcome: Outcome) -> None:
    assert outcome.kills >= KILLS
    assert outcome.different == []
    assert outcome.equal == outcome.runs > 0


@pytest.mark.thorough
def test_killed_runs_in_a_folder_end_alike(killer: Killer, tmp_path: Path) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        require_equal(kill_locally(killer, tmp_path, KILLS, progress))


@pytest.mark.thorough
def test_killed_runs_in_a_bucket_end_alike_though_the_network_fails(
    killer: Killer, gcs_emulator: GcsEmulator, fault_proxy: FaultProxy
) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        outcome = kill_remotely(killer, gcs_emulator, fault_proxy, KILLS, progress)
    require_equal(outcome)
    assert outcome.faulty > 0
