"""Goodput of a run, and memory reports that do not pile up."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from flow_cases import small_flow_config
from memory_cases import bare_report

import eigen_core.runs.journals
from eigen_core import generation
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import RunSession
from eigen_core.common.progress import report_progress
from eigen_core.run import train_run
from eigen_core.runs import journals
from eigen_core.runs.handle import Run, status_of

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
    heartbeat = location.root / location.name / journals.HEARTBEAT
    os.utime(heartbeat, (moment.timestamp(), moment.timestamp()))


@pytest.mark.parametrize("checkpoint", [None, 4.0])
def test_an_interruption_is_known_by_the_last_heartbeat(location: RunLocation, checkpoint: float | None) -> None:
    with pytest.raises(MemoryError), journals.goodput_recorded(location, None, (AskedToEndError,)):
        raise MemoryError
    [first] = journals.STARTS.read(location)
    moment = first.moment + timedelta(minutes=10)
    interrupted_at(location, moment)
    written = None if checkpoint is None else first.moment + timedelta(minutes=checkpoint)
    with journals.goodput_recorded(location, written, (AskedToEndError,)) as starts:
        assert starts == journals.STARTS.read(location)
    second = starts[1]
    assert second.kept_seconds == pytest.approx(60 * (checkpoint or 0.0))
    assert second.lost_seconds == pytest.approx(600 - second.kept_seconds, abs=1e-3)


def test_what_failed_is_said_where_its_time_cannot_be_kept(location: RunLocation) -> None:
    def lose_the_disk() -> None:
        shutil.rmtree(location.root / location.name)
        raise MemoryError

    with pytest.raises(MemoryError), journals.goodput_recorded(location, None, (AskedToEndError,)):
        lose_the_disk()


def test_who_is_asked_to_end_is_not_interrupted(location: RunLocation) -> None:
    with pytest.raises(AskedToEndError), journals.goodput_recorded(location, None, (AskedToEndError,)):
        raise AskedToEndError
    with journals.goodput_recorded(location, None, (AskedToEndError,)) as starts:
        pass
    process = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    for start in starts:
        assert start.lost_seconds is None
        assert start.waited_seconds == pytest.approx((start.moment - process).total_seconds())


def test_every_step_of_a_loop_is_a_heartbeat(location: RunLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen_core.runs.journals, "_TOUCH_SECONDS", 0.0)
    heartbeat = location.root / location.name / journals.HEARTBEAT
    with journals.goodput_recorded(location, None, (AskedToEndError,)):
        interrupted_at(location, at(0))
        report_progress("train", 1, 2)
        assert heartbeat.stat().st_mtime > at(0).timestamp()
    assert not heartbeat.exists()


@pytest.mark.thorough
def test_a_run_that_was_interrupted_shows_what_it_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, ended = small_flow_config(tmp_path, generations=2), list[bool]()
    heartbeat = tmp_path / "run" / journals.HEARTBEAT
    with monkeypatch.context() as patch:
        # Waiting for a store is no work that an interruption could lose.
        patch.setattr(RunSession, "uploads", lambda _: ended.append(not heartbeat.exists()))
        assert train_run(config, Run.of(config, "run"))
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
        with pytest.raises(RuntimeError, match="full of holes"):
            train_run(more, Run.of(more, "run"))
    assert train_run(more, Run.of(more, "run"))
    status = status_of(str(tmp_path), "run")
    assert status.goodput is not None
    assert status.goodput.interruptions == 1
    assert status.goodput.lost_seconds > 0
    assert 0 < status.goodput.share < 1
    assert not heartbeat.exists()


@pytest.mark.parametrize("content", [b"{}", b"[]", b"not json"])
def test_a_journal_that_cannot_be_read_counts_as_empty(
    location: RunLocation, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    journals.remember_stop(location)
    assert journals.is_stopped(location)
    location.stored.store.put("run/stops.json", content)
    assert not journals.is_stopped(location)
    assert "stops.json" in caplog.text
    journals.remember_stop(location)
    assert journals.is_stopped(location)


def test_only_the_newest_memory_reports_stay(location: RunLocation) -> None:
    written = [journals.write_memory_report(location, bare_report(), generation, "train") for generation in range(30)]
    left = journals.memory_reports(location.root / "run")
    assert left == written[:9:-1]
    assert len(list((location.root / "run" / "memory").iterdir())) == 2 * len(left)
