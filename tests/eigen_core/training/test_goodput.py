"""What is kept of attempts: goodput, aborts by the guard, reports that do not pile up."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from flow_cases import small_flow_config
from memory_cases import HandMeter, hand_guard
from store_cases import run_config, save_generations

import eigen_core.training.journals
from eigen_core import generation
from eigen_core.checkpoint.location import RunLocation
from eigen_core.checkpoint.session import RunSession
from eigen_core.common.progress import report_progress
from eigen_core.config import Config
from eigen_core.machine import HostLimit, HostLimits
from eigen_core.training import journals
from eigen_core.training.runs import Run, status_of
from flows.server.flows import train_flow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class AskedToEndError(Exception):
    """Raised where a training is asked to end."""


@pytest.fixture
def location(tmp_path: Path) -> RunLocation:
    return Run(small_flow_config(tmp_path).checkpoint, "run").begin(small_flow_config(tmp_path))


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def test_useful_lost_and_waiting_add_up() -> None:
    starts = [
        journals.Start(moment=at(1), waited_seconds=60),
        journals.Start(moment=at(13), waited_seconds=120, kept_seconds=540, lost_seconds=60),
        journals.Start(moment=at(20), waited_seconds=30, kept_seconds=300),
        journals.Start(moment=at(31), waited_seconds=240, kept_seconds=360, lost_seconds=60),
    ]
    assert journals.goodput(starts, at(41)) == journals.Goodput(
        useful_seconds=1_800, lost_seconds=120, waiting_seconds=450, interruptions=2, recovery_seconds=180
    )
    assert journals.goodput(starts, None) is None
    assert journals.goodput([], at(41)) is None
    assert journals.goodput(starts[:1], at(0)) is None


def interrupted_at(location: RunLocation, moment: datetime) -> None:
    sign = location.root / location.name / journals.SIGN_OF_LIFE
    os.utime(sign, (moment.timestamp(), moment.timestamp()))


@pytest.mark.parametrize("checkpoint", [None, 4.0])
def test_an_interruption_is_known_by_the_last_sign_of_life(location: RunLocation, checkpoint: float | None) -> None:
    with pytest.raises(MemoryError), journals.work_recorded(location, None, (AskedToEndError,)):
        raise MemoryError
    [first] = journals.starts_of(location)
    moment = first.moment + timedelta(minutes=10)
    interrupted_at(location, moment)
    written = None if checkpoint is None else first.moment + timedelta(minutes=checkpoint)
    with journals.work_recorded(location, written, (AskedToEndError,)) as starts:
        assert starts == journals.starts_of(location)
    second = starts[1]
    assert second.kept_seconds == pytest.approx(60 * (checkpoint or 0.0))
    assert second.lost_seconds == pytest.approx(600 - second.kept_seconds, abs=1e-3)


def test_work_before_an_exception_is_lost_up_to_the_exception(location: RunLocation) -> None:
    def run_out_of_memory() -> None:
        interrupted_at(location, at(0))
        raise MemoryError

    with pytest.raises(MemoryError), journals.work_recorded(location, None, (AskedToEndError,)):
        run_out_of_memory()
    sign = location.root / location.name / journals.SIGN_OF_LIFE
    assert sign.stat().st_mtime > at(0).timestamp()


def test_what_failed_is_said_where_its_time_cannot_be_kept(location: RunLocation) -> None:
    def lose_the_disk() -> None:
        shutil.rmtree(location.root / location.name)
        raise MemoryError

    with pytest.raises(MemoryError), journals.work_recorded(location, None, (AskedToEndError,)):
        lose_the_disk()


def test_who_is_asked_to_end_is_not_interrupted(location: RunLocation) -> None:
    with pytest.raises(AskedToEndError), journals.work_recorded(location, None, (AskedToEndError,)):
        raise AskedToEndError
    with journals.work_recorded(location, None, (AskedToEndError,)) as starts:
        pass
    process = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    for start in starts:
        assert start.lost_seconds is None
        assert start.waited_seconds == pytest.approx((start.moment - process).total_seconds())


def test_every_step_of_a_loop_is_a_sign_of_life(location: RunLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen_core.training.journals, "_TOUCH_SECONDS", 0.0)
    sign = location.root / location.name / journals.SIGN_OF_LIFE
    with journals.work_recorded(location, None, (AskedToEndError,)):
        interrupted_at(location, at(0))
        report_progress("train", 1, 2)
        assert sign.stat().st_mtime > at(0).timestamp()
    assert not sign.exists()


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.thorough
def test_a_run_that_was_interrupted_shows_what_it_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, ended = small_flow_config(tmp_path, generations=2), list[bool]()
    sign = tmp_path / "run" / journals.SIGN_OF_LIFE
    with monkeypatch.context() as patch:
        # Waiting for a store is no work that an interruption could lose.
        patch.setattr(RunSession, "uploads", lambda _: ended.append(not sign.exists()))
        assert train_flow(config, "run", return_state=True).is_completed()
    assert ended[-1]
    untouched = status_of(str(tmp_path), "run").goodput
    assert untouched is not None
    assert untouched.interruptions == 0
    assert untouched.useful_seconds > 0
    assert str(untouched).endswith("no interruption")

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is full of holes")

    more = config.model_copy(update={"generations": 3})
    with monkeypatch.context() as patch:
        patch.setattr(generation, "evolve", fail)
        assert train_flow(more, "run", return_state=True).is_failed()
    assert train_flow(more, "run", return_state=True).is_completed()
    status = status_of(str(tmp_path), "run")
    assert status.goodput is not None
    assert status.goodput.interruptions == 1
    assert status.goodput.lost_seconds > 0
    assert 0 < status.goodput.share < 1
    assert not sign.exists()


LIMITS = HostLimits((HostLimit(4_000_000_000, "memory.limit_gb", "run"),))
OTHER_LIMITS = HostLimits((HostLimit(5_000_000_000, "memory.limit_gb", "run"),))


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    store = tmp_path / "store" if request.param == "folder" else f"{request.getfixturevalue('gcs_bucket')}/prefix"
    return run_config(store, tmp_path / "runs")


@pytest.fixture
def kept_run(config: Config) -> RunLocation:
    return save_generations(config, "run", 1, 2)


def abort(config: Config, generation: int = 3, limits: HostLimits = LIMITS) -> journals.GuardAbort:
    return journals.GuardAbort(
        generation=generation,
        phase="train",
        moment="2026-01-02T03:04:05Z",
        limit=str(limits.smallest),
        config_sha256=journals.memory_key(config),
        reason="memory: too much",
    )


def is_refused(kept_run: RunLocation, config: Config, generation: int = 3, limits: HostLimits = LIMITS) -> bool:
    try:
        journals.require_not_blocked(kept_run, config, limits, generation)
    except journals.BlockedError:
        return True
    return False


def test_two_aborts_of_a_kind_block_and_anything_else_does_not(kept_run: RunLocation, config: Config) -> None:
    assert journals.ABORTS.read(kept_run) == []
    assert not journals.is_blocked(kept_run, 3)
    assert journals.remember_abort(kept_run, abort(config)) == 1
    assert not is_refused(kept_run, config)
    assert journals.remember_abort(kept_run, abort(config, limits=OTHER_LIMITS)) == 1
    assert not is_refused(kept_run, config)
    assert journals.remember_abort(kept_run, abort(config)) == 2
    assert is_refused(kept_run, config)
    with pytest.raises(
        journals.BlockedError, match=r"'run' is blocked: .* generation 3 2 times under 4\.00 GB .*in train"
    ):
        journals.require_not_blocked(kept_run, config, LIMITS, 3)
    assert journals.is_blocked(kept_run, 3)
    assert not journals.is_blocked(kept_run, 4)
    assert not is_refused(kept_run, config, generation=4)
    assert not is_refused(kept_run, config, limits=OTHER_LIMITS)
    assert not is_refused(kept_run, config.model_copy(update={"threads": 7}))
    assert is_refused(kept_run, config.model_copy(update={"generations": 99}))


def test_an_abort_is_known_on_another_machine(kept_run: RunLocation, config: Config, tmp_path: Path) -> None:
    if not kept_run.remote:
        pytest.skip("a folder is on one machine")
    journals.remember_abort(kept_run, abort(config))
    elsewhere = config.checkpoint.model_copy(update={"local": str(tmp_path / "another")})
    assert journals.ABORTS.read(RunLocation.of(elsewhere, "run")) == [abort(config)]


def test_aborts_that_cannot_be_read_block_nothing(
    kept_run: RunLocation, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        journals.remember_abort(kept_run, abort(config))
    for contents in kept_run.contents():
        contents.store.put("run/memory/trips.json", b"{}")
    assert not is_refused(kept_run, config)
    assert "trips.json" in caplog.text
    assert kept_run.stored.verify() == []


def test_only_the_newest_reports_and_aborts_stay(kept_run: RunLocation, config: Config) -> None:
    guard = hand_guard(HandMeter())
    with guard:
        report = guard.report("a user asked")
    written = [journals.write_memory_report(kept_run, report, generation, "train") for generation in range(30)]
    left = journals.memory_reports(kept_run.root / "run")
    assert left == written[:9:-1]
    assert len(list((kept_run.root / "run" / "memory").iterdir())) == 2 * len(left)
    for _ in range(30):
        journals.remember_abort(kept_run, abort(config))
    assert len(journals.ABORTS.read(kept_run)) == 20
