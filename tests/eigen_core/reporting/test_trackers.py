"""Trackers hold each generation once, whatever happened to the process that wrote it; none of them stops a training."""

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from record_cases import record, telemetry

import eigen_core.reporting.trackers
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.reporting.trackers import DATABASE_NAME, EVENT_FILE_NAME, TrackerListener, metrics_since

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


@pytest.mark.thorough
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


class Held:
    """What a tracker holds of a run."""

    tracker_name: ClassVar[str]
    number: ClassVar[type]
    """As values are kept."""

    def __init__(self, store: Path, run: str) -> None:
        self.store, self.run = store, run

    def tracker(self, **settings: Any) -> Any:
        config = Config(**({"checkpoint": {"store": str(self.store)}} | settings))
        return tracker_class(self.tracker_name)(RunLocation.of(config.checkpoint, self.run), config)

    def values(self) -> Counter[tuple[str, int, float]]:
        raise NotImplementedError

    def expected(self, generations: int) -> Counter[tuple[str, int, float]]:
        found = metrics_since(0, HISTORY[:generations], TELEMETRY[:generations])
        return Counter((tag, step, self.number(value)) for step, metrics in found for tag, value in metrics.items())


class InTensorBoard(Held):
    tracker_name = "tensorboard"
    number = np.float32

    @property
    def files(self) -> list[Path]:
        return sorted((self.store / self.run / "tensorboard").iterdir())

    def configuration(self) -> bytes:
        text: bytes = self._shown().Tensors("configuration")[-1].tensor_proto.string_val[0]
        return text

    def values(self) -> Counter[tuple[str, int, float]]:
        shown = self._shown()
        return Counter((tag, one.step, one.value) for tag in shown.Tags()["scalars"] for one in shown.Scalars(tag))

    def _shown(self) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        shown = EventAccumulator(str(self.files[0].parent), size_guidance={"scalars": 0, "tensors": 0})
        shown.Reload()
        return shown


class InMlflow(Held):
    tracker_name = "mlflow"
    number = float

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.store / DATABASE_NAME}")

    def runs(self) -> list[Any]:
        """MLflow's runs of the name, the newest first."""
        experiment = self.client.get_experiment_by_name("eigen").experiment_id
        return list(self.client.search_runs([experiment], f"tags.`eigen.run` = '{self.run}'"))

    def values(self, place: int = 0) -> Counter[tuple[str, int, float]]:
        run = self.runs()[place]
        histories = [(name, self.client.get_metric_history(run.info.run_id, name)) for name in run.data.metrics]
        return Counter((name, one.step, one.value) for name, history in histories for one in history)


@pytest.fixture
def tensorboard(tmp_path: Path) -> InTensorBoard:
    pytest.importorskip("tensorboard")
    return InTensorBoard(tmp_path, "mine")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the database that the first tracker has made, after a process was killed while it made one."""
    pytest.importorskip("mlflow")
    store = tmp_path_factory.mktemp("mlflow")
    (store / "first").mkdir()
    (store / "first" / f"{DATABASE_NAME}.part").write_bytes(b"incomplete")
    InMlflow(store, "first").tracker().write([], [])
    assert sorted(path.name for path in store.iterdir()) == ["first", DATABASE_NAME]
    assert list((store / "first").iterdir()) == []
    return store


@pytest.fixture
def mlflow(database: Path, request: pytest.FixtureRequest) -> InMlflow:
    return InMlflow(database, request.function.__name__)


@pytest.fixture(params=["tensorboard", pytest.param("mlflow", marks=pytest.mark.thorough)])
def held(request: pytest.FixtureRequest) -> Held:
    found: Held = request.getfixturevalue(request.param)
    return found


def test_generations_are_added_by_one_process_and_by_the_next(held: Held) -> None:
    for process, generations in ((held.tracker(), range(4)), (held.tracker(), range(3, 6))):
        for generation in generations:
            process.write(HISTORY[:generation], TELEMETRY[:generation])
    assert held.values() == held.expected(5)


def test_generations_that_are_computed_again_are_held_once(held: Held) -> None:
    held.tracker().write(HISTORY, TELEMETRY)
    again = held.tracker()
    for generation in (2, 3, 5):
        took = [entry.model_copy(update={"train_seconds": 9.0}) for entry in TELEMETRY[:generation]]
        again.write(HISTORY[:generation], took)
    assert Counter(value[:2] for value in held.values()) == Counter(value[:2] for value in held.expected(5))
    assert max(held.values().values()) == 1


def test_values_of_another_run_of_this_name_stay_apart(held: Held) -> None:
    held.tracker().write([one.model_copy(update={"best_fitness": -7.0}) for one in HISTORY], TELEMETRY)
    process = held.tracker()
    for generations in (0, 1, 3):
        process.write(HISTORY[:generations], TELEMETRY[:generations])
    assert held.values() == held.expected(3)


def test_a_file_of_tensorboard_that_was_cut_or_is_gone_is_followed_by_a_whole_one(tensorboard: InTensorBoard) -> None:
    tensorboard.tracker().write(HISTORY, TELEMETRY)
    whole = tensorboard.files[0].read_bytes()
    for length in (0, 5, len(whole) // 3, len(whole) - 1, len(whole)):
        for path in tensorboard.files[1:]:
            path.unlink()
        tensorboard.files[0].write_bytes(whole[:length])
        tensorboard.tracker(generations=40).write(HISTORY[:3], TELEMETRY[:3])
        assert tensorboard.values() == tensorboard.expected(3), length
        assert b"    generations: 40" in tensorboard.configuration()
    process = tensorboard.tracker()
    process.write(HISTORY[:4], TELEMETRY[:4])
    tensorboard.files[-1].unlink()
    process.write(HISTORY, TELEMETRY)
    assert tensorboard.values() == tensorboard.expected(5)


def test_a_folder_of_the_users_holds_a_folder_for_each_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    InTensorBoard(tmp_path / "runs", "mine").tracker(reporting={"tensorboard_folder": str(tmp_path / "logs")}).write(
        HISTORY, TELEMETRY
    )
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.parent == tmp_path / "logs" / "mine"
    assert path.name.startswith(EVENT_FILE_NAME)


@pytest.mark.thorough
def test_what_a_killed_process_has_sent_mlflow_of_a_generation_is_completed(mlflow: InMlflow) -> None:
    mlflow.tracker().write(HISTORY[:2], TELEMETRY[:2])
    number = mlflow.runs()[0].info.run_id
    mlflow.client.log_metric(number, "generation/best_fitness", HISTORY[2].best_fitness, step=3)
    mlflow.tracker().write(HISTORY[:3], TELEMETRY[:3])
    assert mlflow.values() == mlflow.expected(3)


@pytest.mark.thorough
def test_mlflow_has_a_run_for_each_store_and_the_settings_and_state_of_each(mlflow: InMlflow) -> None:
    mlflow.tracker(generations=5).write(HISTORY[:1], TELEMETRY[:1])
    (run,) = mlflow.runs()
    assert run.info.status == "RUNNING"
    mlflow.tracker(generations=4).write(HISTORY[:4], TELEMETRY[:4])
    (run,) = mlflow.runs()
    assert run.info.status == "FINISHED"
    assert (run.data.params["generations"], run.data.tags["generations"]) == ("5", "4")
    assert run.data.params["learner.batch_size"] == "32"
    uri = mlflow.client.tracking_uri
    mlflow.tracker(checkpoint={"store": "elsewhere"}, reporting={"mlflow_uri": uri}).write(HISTORY, TELEMETRY)
    assert mlflow.values(1) == mlflow.expected(4)
    assert mlflow.values() == mlflow.expected(5)
