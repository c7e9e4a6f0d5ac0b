"""A run in MLflow: each generation once, whatever happened to the process that wrote it."""

from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from record_cases import record, telemetry

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.config import Config
from eigen_core.reporting.trackers import DATABASE_NAME, MlflowTracker, metrics_since

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow takes seconds to import: only where these tests run.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed: run `make setup`."),
]

HISTORY = [record(generation) for generation in range(1, 5)]
TELEMETRY = [telemetry(generation) for generation in range(1, 5)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> "MlflowClient":
    from mlflow import MlflowClient

    root = tmp_path_factory.mktemp("mlflow")
    (root / "mine").mkdir()
    (root / "mine" / f"{DATABASE_NAME}.part").write_bytes(b"of a process that was killed while it made a database")
    config = Config(checkpoint={"store": str(root)})
    MlflowTracker(RunLocation.of(config.checkpoint, "mine"), config).write([], [])
    assert sorted(path.name for path in root.iterdir()) == ["mine", DATABASE_NAME]
    assert list((root / "mine").iterdir()) == []
    return MlflowClient(f"sqlite:///{root / DATABASE_NAME}")


def tracker(client: "MlflowClient", name: str, store: str = "here", **settings: Any) -> MlflowTracker:
    config = Config(checkpoint={"store": store}, reporting={"mlflow_uri": client.tracking_uri}, **settings)
    return MlflowTracker(RunLocation.of(config.checkpoint, name), config)


def runs_of(client: "MlflowClient", name: str) -> list[Any]:
    experiment = client.get_experiment_by_name("eigen")
    return list(client.search_runs([experiment.experiment_id], f"tags.`eigen.run` = '{name}'", order_by=["start_time"]))


def values_in(client: "MlflowClient", run: Any) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            found.setdefault((name, metric.step), []).append(metric.value)
    return found


def expected(generations: int) -> dict[tuple[str, int], list[float]]:
    found = metrics_since(0, HISTORY[:generations], TELEMETRY[:generations])
    return {(name, step): [value] for step, metrics in found for name, value in metrics.items()}


def test_generations_are_added_by_one_process_and_by_the_next(client: "MlflowClient") -> None:
    first = tracker(client, "next", generations=4)
    for generation in range(3):
        first.write(HISTORY[:generation], TELEMETRY[:generation])
    (run,) = runs_of(client, "next")
    assert run.info.status == "RUNNING"
    second = tracker(client, "next", generations=4)
    for generation in (2, 3, 4):
        second.write(HISTORY[:generation], TELEMETRY[:generation])
    (run,) = runs_of(client, "next")
    assert values_in(client, run) == expected(4)
    assert run.info.status == "FINISHED"
    assert run.data.params["learner.batch_size"] == "64"


def test_what_a_killed_process_has_written_of_a_generation_is_completed(client: "MlflowClient") -> None:
    tracker(client, "killed").write(HISTORY[:2], TELEMETRY[:2])
    (run,) = runs_of(client, "killed")
    client.log_metric(run.info.run_id, "generation/best_fitness", HISTORY[2].best_fitness, step=3)
    tracker(client, "killed").write(HISTORY[:3], TELEMETRY[:3])
    (run,) = runs_of(client, "killed")
    assert values_in(client, run) == expected(3)


def test_generations_that_are_computed_again_are_not_written_again(client: "MlflowClient") -> None:
    tracker(client, "again").write(HISTORY, TELEMETRY)
    again = tracker(client, "again")
    for generation in (2, 3, 4):
        took = [entry.model_copy(update={"train_seconds": 9.0}) for entry in TELEMETRY[:generation]]
        again.write(HISTORY[:generation], took)
    (run,) = runs_of(client, "again")
    assert values_in(client, run) == expected(4)


def test_values_of_another_run_of_this_name_stay_apart(client: "MlflowClient") -> None:
    others = [one.model_copy(update={"best_fitness": -7.0}) for one in HISTORY]
    tracker(client, "other").write(others, TELEMETRY)
    process = tracker(client, "other")
    process.write([], [])
    process.write(HISTORY[:1], TELEMETRY[:1])
    process.write(HISTORY[:2], TELEMETRY[:2])
    first, second = runs_of(client, "other")
    assert Counter(len(values) for values in values_in(client, first).values()).keys() == {1}
    assert values_in(client, second) == expected(2)
    tracker(client, "other", store="elsewhere").write(HISTORY, TELEMETRY)
    assert len(runs_of(client, "other")) == 3


def test_a_setting_that_was_changed_is_a_tag(client: "MlflowClient") -> None:
    tracker(client, "changed", generations=30).write(HISTORY[:1], TELEMETRY[:1])
    tracker(client, "changed", generations=40).write(HISTORY[:2], TELEMETRY[:2])
    (run,) = runs_of(client, "changed")
    assert run.data.params["generations"] == "30"
    assert run.data.tags["generations"] == "40"
