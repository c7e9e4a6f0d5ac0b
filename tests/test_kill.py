"""A training killed anywhere ends with the bits of one that was not, one told to stop ends in time; `make kill`."""

from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from gcs_emulator import GcsEmulator
from rich.console import Console
from rich.progress import Progress

from benchmarks.kill import Killer, Outcome, kill_locally, kill_remotely
from benchmarks.stop import stop_at_random_instants

KILLS = [pytest.param(4, id="4 kills"), pytest.param(100, id="100 kills", marks=pytest.mark.slow)]


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killer:
    for name in ("EIGEN_CACHE", "OMP_NUM_THREADS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, "")
    return Killer(tmp_path, seed=2)


def require_equal(outcome: Outcome, kills: int) -> None:
    assert outcome.kills >= kills
    assert outcome.different == []
    assert outcome.equal == outcome.runs > 0


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.thorough
def test_killed_runs_in_a_folder_end_alike(killer: Killer, tmp_path: Path, kills: int) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        require_equal(kill_locally(killer, tmp_path, kills, progress), kills)


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.thorough
def test_killed_runs_in_a_bucket_end_alike_though_the_network_fails(
    killer: Killer, gcs_emulator: GcsEmulator, fault_proxy: FaultProxy, kills: int
) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        outcome = kill_remotely(killer, gcs_emulator, fault_proxy, kills, progress)
    require_equal(outcome, kills)
    assert outcome.faulty > 0


@pytest.mark.slow
def test_a_training_that_is_told_to_stop_at_any_instant_ends(tmp_path: Path) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        outcome = stop_at_random_instants(tmp_path, 50, 2, progress)
    assert outcome.wrong == []
    assert len(outcome.seconds) == 50
