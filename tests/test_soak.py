"""A training with everything on keeps nothing that it should not; one killed anywhere ends with the same bits.

`make soak` does it longer, and `make kill` kills many more.
"""

import gc
from collections.abc import Iterator
from itertools import chain, compress, starmap, tee
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from gcs_emulator import GcsEmulator
from rich.console import Console
from rich.progress import Progress

import eigen_core.generation as phases
from benchmarks.kill import Killer, Outcome, kill_locally, kill_remotely
from benchmarks.soak import COUNTED, RUN, Sampler, changing_counts, live_counts, soak, soak_config
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store import LocalStore
from eigen_core.common.records import GenerationRecord
from eigen_core.generation import TrainingState
from eigen_core.networks.population import Population

pytestmark = pytest.mark.thorough

GENERATIONS = 8
# So few generations load libraries and fill caches: what they keep for good is far above what a leak may take.
LIMIT_MB = 15.0


@pytest.fixture
def others_leftovers() -> Iterator[list[object]]:
    """What other tests have left of the counted kinds. It is held, or it might be freed in the middle of a count."""
    gc.collect()
    counted = tuple(COUNTED.values())
    kinds = {kind for kind in set(map(type, _all_objects())) if issubclass(kind, counted)}
    # Lazily, as `live_counts` does and for its reason.
    objects, same = tee(_all_objects())
    held = list(compress(objects, map(kinds.__contains__, map(type, same))))
    yield held
    held.clear()


def _all_objects() -> Iterator[object]:
    return chain.from_iterable(starmap(gc.get_objects, [()]))


def soaked(folder: Path, generations: int) -> Sampler:
    with Progress(console=Console(quiet=True), auto_refresh=False) as progress:
        sampler = Sampler(progress, generations, count_every=2)
        soak(soak_config(generations, folder), sampler)
    return sampler


@pytest.mark.usefixtures("prefect_api", "others_leftovers")
def test_a_training_with_everything_on_does_not_grow(tmp_path: Path) -> None:
    before = live_counts()
    sampler = soaked(tmp_path, GENERATIONS)
    assert changing_counts(sampler.counts) == []
    assert sorted(sampler.counts) == list(range(2, GENERATIONS + 1, 2))
    assert all(set(counts) == set(COUNTED) for counts in sampler.counts.values())
    # One state with its task was there each time, so that they are the ones that were counted.
    for kind in ("training states", "tasks"):
        assert {counts[kind] - before[kind] for counts in sampler.counts.values()} == {1}
    assert sampler.megabytes[-1] - sampler.megabytes[GENERATIONS // 2] < LIMIT_MB

    stored = RunContents(LocalStore(tmp_path / "store"), RUN)
    newest = stored.newest_manifest()
    assert newest is not None
    assert newest.generation == GENERATIONS
    assert stored.verify(deep=True) == []
    assert (tmp_path / "local" / RUN / "plots" / "fitness.png").exists()


@pytest.mark.usefixtures("prefect_api", "others_leftovers")
def test_what_is_kept_of_each_generation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Population] = []
    evolve = phases.evolve

    def leaking(state: TrainingState) -> GenerationRecord:
        kept.append(state.population)
        return evolve(state)

    monkeypatch.setattr(phases, "evolve", leaking)
    sentences = changing_counts(soaked(tmp_path, 4).counts)
    assert len(kept) == 4
    # Its tensors are kept with it.
    assert [sentence.partition(" changes")[0] for sentence in sentences] == [
        "The number of live populations",
        "The number of live tensors",
    ]


KILLS = 1


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killer:
    for name in ("EIGEN_CACHE", "OMP_NUM_THREADS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.setenv(name, "")
    return Killer(tmp_path, seed=2)


def require_equal(outcome: Outcome) -> None:
    assert outcome.kills >= KILLS
    assert outcome.different == []
    assert outcome.equal == outcome.runs > 0


def test_killed_runs_in_a_folder_end_alike(killer: Killer, tmp_path: Path) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        require_equal(kill_locally(killer, tmp_path, KILLS, progress))


def test_killed_runs_in_a_bucket_end_alike_though_the_network_fails(
    killer: Killer, gcs_emulator: GcsEmulator, fault_proxy: FaultProxy
) -> None:
    with Progress(console=Console(quiet=True)) as progress:
        outcome = kill_remotely(killer, gcs_emulator, fault_proxy, KILLS, progress)
    require_equal(outcome)
    assert outcome.faulty > 0
