"""A run that one process trains: here, in a store elsewhere, while that is away, taken over, and on another machine."""

import signal
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, assert_same, sample
from fault_proxy import Fault, FaultProxy
from gcs_emulator import GcsEmulator
from known import known
from upload_cases import in_another_process, whole_generations

from eigen_core.checkpoint.integrity import LIST_NAME
from eigen_core.checkpoint.locks import InUseError, Lease, LeaseLostError
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.session import RunSession, create_run, open_session
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.uploads import read_status
from eigen_core.common.errors import InputError
from eigen_core.config import CheckpointConfig

RUN = "run"
OTHER = {**CONFIG, "seed": 8}
UPLOADS = Fault("status", method="POST|PUT", times=None)


def settings_of(store: str | Path, here: Path, **settings: float) -> CheckpointConfig:
    values = {"upload_mb_per_second": 0, "keep_last": 4, "finish_seconds": 60, **settings}
    return CheckpointConfig(store=str(store), local=str(here), **values)


@pytest.fixture(params=["folder", "bucket"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointConfig:
    if request.param == "folder":
        return settings_of(tmp_path / "store", tmp_path / "here")
    return settings_of(f"{request.getfixturevalue('gcs_bucket')}/some/prefix", tmp_path / "here")


@pytest.fixture
def away(fault_proxy: FaultProxy, gcs_emulator: GcsEmulator, tmp_path: Path) -> CheckpointConfig:
    assert fault_proxy.url
    return settings_of(f"gs://{gcs_emulator.make_bucket()}", tmp_path / "here")


def begin(settings: CheckpointConfig) -> RunLocation:
    location = RunLocation.of(settings, RUN)
    create_run(location, CONFIG)
    return location


def session_of(settings: CheckpointConfig) -> AbstractContextManager[RunSession]:
    return open_session(RunLocation.of(settings, RUN), settings)


def save(session: RunSession, *generations: int) -> None:
    for generation in generations:
        session.save(sample(generation), CONFIG)


def draw_plot(session: RunSession) -> None:
    plot = session.directory.plots / "fitness.png"
    plot.parent.mkdir()
    plot.write_bytes(b"ink")
    session.upload_files([plot])


def loaded(session: RunSession) -> int:
    found = known(session.load_newest())
    assert_same(found.snapshot, sample(found.snapshot.generation))
    return found.snapshot.generation


def epochs(contents: RunContents) -> dict[int, int]:
    return {manifest.generation: manifest.epoch for manifest in contents.manifests()}


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_epoch_rises_with_every_session_even_without_the_former_leases(settings: CheckpointConfig) -> None:
    location = begin(settings)
    for generation in (1, 2, 3):
        with session_of(settings) as session:
            assert session.lease.epoch == generation
            assert (loaded(session) if generation > 1 else 0) == generation - 1
            save(session, generation)
            session.finish()
    assert epochs(location.stored) == {1: 1, 2: 2, 3: 3}
    newest, middle, oldest = location.stored.manifests()
    assert (newest.parent, middle.parent, oldest.parent) == (middle.checksum, oldest.checksum, None)
    location.store.delete([stored.name for stored in location.store.objects(f"{RUN}/lease/")])
    with session_of(settings) as session:
        assert session.lease.epoch == 4, "it is above the epochs of the manifests"


def test_a_process_that_ends_keeps_its_generation_without_waiting_for_the_store(settings: CheckpointConfig) -> None:
    location = begin(settings)
    with session_of(settings) as session:
        save(session, 1)
        assert session.save_before_end(sample(1), CONFIG) is None
        assert session.save_before_end(sample(2), CONFIG) is not None
        assert whole_generations(location.local) == [1, 2]
    with session_of(settings) as session:
        assert loaded(session) == 2
        # That the last session has committed a generation says nothing about this one's.
        assert session.save_before_end(sample(2), CONFIG) is not None
        session.finish()
    assert whole_generations(location.stored)[-1] == 2
    assert location.stored.verify() == []


def test_plots_and_holdout_lie_where_the_run_is_kept(settings: CheckpointConfig) -> None:
    location = begin(settings)
    with session_of(settings) as session:
        draw_plot(session)
        session.keep_holdout(3, {"generation": 3})
        session.finish()
    assert location.store.read(f"{RUN}/plots/fitness.png", 10) == b"ink"
    for contents in location.contents():
        assert contents.read_holdout("holdout/000003.json") == {"generation": 3}
        assert contents.read_json(LIST_NAME)["files"]


def test_a_run_that_is_nowhere_cannot_be_opened(settings: CheckpointConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"There is no run '{RUN}' in {settings.store}"), session_of(settings):
        pass
    assert files_below(tmp_path) == []


def test_a_store_on_this_machine_has_no_uploads_and_keeps_what_it_should(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "store", tmp_path / "here", keep_last=2, keep_every=4)
    location = begin(settings)
    with session_of(settings) as session:
        assert session.uploads() is None
        for generation in range(1, 8):
            session.save(sample(generation), CONFIG)
    assert whole_generations(location.local) == [4, 6, 7]
    assert not (tmp_path / "here").exists()


def test_a_lease_that_was_taken_over_stops_the_next_commit_on_this_machine(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "store", tmp_path / "here")
    location = begin(settings)
    with session_of(settings) as session:
        save(session, 1)
        other = Lease.acquire(location.store, RUN, 90.0, holder_has_ended=True)
        before = files_below(tmp_path)
        for keep in (session.save, session.save_before_end):
            with pytest.raises(LeaseLostError, match="taken over by another process"):
                keep(sample(2), CONFIG)
        assert files_below(tmp_path) == before
        other.check()
    assert whole_generations(location.local) == [1]


def test_another_run_of_that_name_in_the_store_is_left_alone_and_leaves_nothing_here(
    gcs_bucket: str, tmp_path: Path
) -> None:
    begin(settings_of(gcs_bucket, tmp_path / "here"))
    location = RunLocation.of(settings_of(gcs_bucket, tmp_path / "elsewhere"), RUN)
    with pytest.raises(InputError, match=f"'{RUN}' in {gcs_bucket} is not the one in"):
        create_run(location, OTHER)
    assert not (location.root / RUN).exists()
    assert location.stored.config() == CONFIG
    # The same run begun on two machines at a time is one run.
    create_run(location, CONFIG)


def test_a_run_directory_of_another_run_is_refused(gcs_bucket: str, tmp_path: Path) -> None:
    settings = settings_of(gcs_bucket, tmp_path / "here")
    location = begin(settings)
    location.store.delete([f"{RUN}/config.json"])
    create_run(RunLocation.of(settings_of(gcs_bucket, tmp_path / "elsewhere"), RUN), OTHER)
    with pytest.raises(InputError, match="choose another name, or move that folder away"), session_of(settings):
        pass
    assert not location.local.store.objects(f"{RUN}/lease/")
    assert location.stored.config() == OTHER


@pytest.mark.usefixtures("quick_retries")
def test_a_store_that_is_away_at_the_start_leaves_nothing_that_blocks_a_later_one(
    away: CheckpointConfig, fault_proxy: FaultProxy
) -> None:
    location = RunLocation.of(away, RUN)
    fault_proxy.add(Fault("status", times=None))
    with pytest.raises(StoreUnavailableError, match=away.store):
        location.exists()
    with pytest.raises(StoreUnavailableError, match=away.store):
        create_run(location, CONFIG)
    assert not (location.root / RUN).exists()
    fault_proxy.clear()
    # Whoever thinks better of it meanwhile is not bound to what could not be begun.
    create_run(location, OTHER)
    fault_proxy.add(Fault("status", times=None))
    with pytest.raises(StoreUnavailableError, match=away.store), session_of(away):
        pass
    fault_proxy.clear()
    with session_of(away) as session:
        save(session, 1)
        session.finish()
    assert whole_generations(location.stored) == [1]


@pytest.mark.usefixtures("quick_retries")
def test_what_is_newer_here_than_in_the_store_goes_on_from_here(
    away: CheckpointConfig, fault_proxy: FaultProxy
) -> None:
    location = begin(away)
    with session_of(away) as session:
        save(session, 1)
        session.finish()
        fault_proxy.add(UPLOADS)
        save(session, 2, 3)
        draw_plot(session)
    assert whole_generations(location.stored) == [1]
    fault_proxy.clear()
    with session_of(away) as session:
        assert loaded(session) == 3
        session.finish()
        uploads = known(session.uploads())
        assert (uploads.pending, uploads.pending_files) == (0, 0)
    assert whole_generations(location.stored) == [1, 2, 3]
    assert location.store.read(f"{RUN}/plots/fitness.png", 10) == b"ink"


def _hold(settings: CheckpointConfig, ready: Connection) -> None:
    with session_of(settings) as session:
        save(session, 1)
        session.finish()
        ready.send(session.lease.epoch)
        signal.pause()


@pytest.mark.thorough
def test_of_two_processes_the_second_is_refused_until_the_first_is_gone(gcs_bucket: str, tmp_path: Path) -> None:
    settings = settings_of(gcs_bucket, tmp_path / "here")
    location = begin(settings)
    other = settings_of(gcs_bucket, tmp_path / "other")
    with in_another_process(_hold, settings) as (pid, _):
        with pytest.raises(InUseError) as refused, session_of(other):
            pass
        assert f"Run '{RUN}' in {gcs_bucket} is in use by process {pid} on " in str(refused.value)
        assert "wait until it ends or stop it" in str(refused.value)
        with pytest.raises(InUseError, match=f"in use by process {pid}"), session_of(settings):
            pass
        assert whole_generations(location.stored) == [1]
    # Its end is certain: no process has to wait until its lease lapses.
    with session_of(other) as session:
        assert session.lease.epoch == 2
        assert loaded(session) == 1
        save(session, 2)
        session.finish()
    assert epochs(location.stored) == {1: 1, 2: 2}
    status = known(read_status(tmp_path / "other" / ".remote" / "gs" / gcs_bucket.removeprefix("gs://") / RUN))
    assert (status.state, status.pending, status.done) == ("ended", 0, 1)
