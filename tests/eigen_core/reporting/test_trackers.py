"""Trackers receive the metrics of each generation once; none of them stops a training."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from record_cases import record, telemetry

import eigen_core.reporting.trackers
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.reporting.trackers import TrackerListener, metrics_since

HISTORY = [record(generation) for generation in range(1, 6)]
TELEMETRY = [telemetry(generation) for generation in range(1, 6)]


class Recorded:
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)

    def __init__(self) -> None:
        self.held: list[int] = []
        self.is_full = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:  # noqa: ARG002
        self.may_go_on.wait(60.0)
        if self.is_full:
            raise OSError("no space left on device\nand more lines")
        self.held += [one.generation for one in history[len(self.held) :]]


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()
    monkeypatch.setattr(eigen_core.reporting.trackers, "tracker_class", lambda _: lambda *_: found)
    return found


def tracking(tmp_path: Path, warnings: list[str], tracker: str = "tensorboard") -> TrackerListener:
    config = Config(checkpoint={"store": str(tmp_path)}, reporting={"trackers": [tracker]})
    return TrackerListener(config, RunLocation.of(config.checkpoint, "mine"), warnings.append)


def test_all_generations_are_written_when_the_training_ends(tracker: Recorded, tmp_path: Path) -> None:
    warnings: list[str] = []
    tracker.may_go_on.clear()
    with tracking(tmp_path, warnings) as process:
        for generation in range(6):
            # Training does not wait for the tracker.
            process.write(HISTORY[:generation], TELEMETRY[:generation])
        tracker.may_go_on.set()
    assert tracker.held == [1, 2, 3, 4, 5]
    assert warnings == []


def test_a_tracker_that_fails_is_named_once_and_receives_the_rest_later(tracker: Recorded, tmp_path: Path) -> None:
    warnings: list[str] = []
    tracker.is_full = True
    with tracking(tmp_path, warnings) as process:
        for generation in range(4):
            process.write(HISTORY[:generation], TELEMETRY[:generation])
    assert len(warnings) == 1
    assert "tensorboard cannot be written to (OSError: no space left on device)." in warnings[0]
    tracker.is_full = False
    with tracking(tmp_path, warnings) as process:
        process.write(HISTORY, TELEMETRY)
    assert tracker.held == [1, 2, 3, 4, 5]
    assert len(warnings) == 1


def test_a_tracker_that_hangs_is_left_behind(
    tracker: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eigen_core.reporting.trackers, "_LAST_WAIT_SECONDS", 0.05)
    warnings: list[str] = []
    tracker.may_go_on.clear()
    with tracking(tmp_path, warnings) as process:
        process.write(HISTORY, TELEMETRY)
    assert len(warnings) == 1
    assert "has not answered" in warnings[0]
    tracker.may_go_on.set()


def test_a_password_of_the_environment_is_in_no_warning_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    warnings: list[str] = []
    with tracking(tmp_path, warnings, "mlflow") as process:
        process.write(HISTORY, TELEMETRY)
    (warning,) = warnings
    assert "mlflow cannot be written to" in warning
    assert "hunter2" not in warning
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_metrics_are_the_numbers_of_the_records_under_their_names() -> None:
    learned = record(2).model_copy(update={"learning": {"critic_loss": 0.25, "gradient_steps": 4}})
    ((generation, metrics),) = metrics_since(1, [record(1), learned], [telemetry(2)])
    assert generation == 2
    known = {
        "generation/champion_validation": 0.5,
        "trading/win_rate": 0.5,
        "learning/critic_loss": 0.25,
        "telemetry/rss_peak_bytes": 2e8,
    }
    assert known.items() <= metrics.items()
    assert not {"generation/generation", "generation/weights_sha256", "telemetry/generation"} & metrics.keys()
    # Nothing is said of what is not known.
    assert "telemetry/checkpoint_seconds" not in metrics


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_refused_with_its_extra(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == tracker]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.split(".")[0] == tracker:
                raise ModuleNotFoundError(f"No module named '{name}'", name=tracker)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(
        InputError, match=rf"{tracker} needs the package {tracker}.*pip install 'eigen-trader\[{tracker}\]'"
    ):
        tracker_class(tracker)
