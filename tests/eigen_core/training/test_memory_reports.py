"""Aborts of the guard are remembered where a run is kept, and block it after two of a kind; reports do not pile up."""

from pathlib import Path

import pytest
from memory_cases import HandMeter, hand_guard
from store_cases import run_config, save_generations

from eigen_core.checkpoint.location import RunLocation
from eigen_core.config import Config
from eigen_core.machine import HostLimit, HostLimits
from eigen_core.training.journals import (
    ABORTS,
    BlockedError,
    GuardAbort,
    is_blocked,
    memory_key,
    memory_reports,
    remember_abort,
    require_not_blocked,
    write_memory_report,
)

LIMITS = HostLimits((HostLimit(4_000_000_000, "memory.limit_gb", "run"),))
OTHER_LIMITS = HostLimits((HostLimit(5_000_000_000, "memory.limit_gb", "run"),))


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """The configuration of a run on this machine, and of one elsewhere."""
    store = tmp_path / "store" if request.param == "folder" else f"{request.getfixturevalue('gcs_bucket')}/prefix"
    return run_config(store, tmp_path / "runs")


@pytest.fixture
def location(config: Config) -> RunLocation:
    return save_generations(config, "run", 1, 2)


def abort(config: Config, generation: int = 3, limits: HostLimits = LIMITS) -> GuardAbort:
    return GuardAbort(
        generation=generation,
        phase="train",
        moment="2026-01-02T03:04:05Z",
        limit=str(limits.smallest),
        config_sha256=memory_key(config),
        reason="memory: too much",
    )


def is_refused(location: RunLocation, config: Config, generation: int = 3, limits: HostLimits = LIMITS) -> bool:
    try:
        require_not_blocked(location, config, limits, generation)
    except BlockedError:
        return True
    return False


def test_two_aborts_of_a_kind_block_and_anything_else_does_not(location: RunLocation, config: Config) -> None:
    assert ABORTS.read(location) == []
    assert not is_blocked(location, 3)
    assert remember_abort(location, abort(config)) == 1
    assert not is_refused(location, config)
    assert remember_abort(location, abort(config, limits=OTHER_LIMITS)) == 1
    assert not is_refused(location, config)
    assert remember_abort(location, abort(config)) == 2
    assert is_refused(location, config)
    with pytest.raises(BlockedError, match=r"'run' is blocked: .* generation 3 2 times under 4\.00 GB .*in train"):
        require_not_blocked(location, config, LIMITS, 3)
    assert is_blocked(location, 3)
    assert not is_blocked(location, 4)
    assert not is_refused(location, config, generation=4)
    assert not is_refused(location, config, limits=OTHER_LIMITS)
    assert not is_refused(location, config.model_copy(update={"threads": 7}))
    assert is_refused(location, config.model_copy(update={"generations": 99}))


def test_an_abort_is_known_on_another_machine(location: RunLocation, config: Config, tmp_path: Path) -> None:
    if not location.remote:
        pytest.skip("a folder is on one machine")
    remember_abort(location, abort(config))
    elsewhere = config.checkpoint.model_copy(update={"local": str(tmp_path / "another")})
    assert ABORTS.read(RunLocation.of(elsewhere, "run")) == [abort(config)]


def test_aborts_that_cannot_be_read_block_nothing(
    location: RunLocation, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        remember_abort(location, abort(config))
    for contents in location.contents():
        contents.store.put("run/memory/trips.json", b"{}")
    assert not is_refused(location, config)
    assert "trips.json" in caplog.text
    assert location.stored.verify() == []


def test_only_the_newest_reports_and_aborts_stay(location: RunLocation, config: Config) -> None:
    guard = hand_guard(HandMeter())
    with guard:
        report = guard.report("a user asked")
    written = [write_memory_report(location, report, generation, "train") for generation in range(30)]
    left = memory_reports(location.root / "run")
    assert left == written[:9:-1]
    assert len(list((location.root / "run" / "memory").iterdir())) == 2 * len(left)
    for _ in range(30):
        remember_abort(location, abort(config))
    assert len(ABORTS.read(location)) == 20
