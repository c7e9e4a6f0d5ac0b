"""MLflow: an MLflow run for each run, whose metrics have the generation as their step."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.config import Config
from eigen_core.config.explain import flatten
from eigen_core.reporting.trackers import metrics_of, metrics_since

T = TypeVar("T")
Held = Mapping[tuple[str, int], float]

DATABASE_NAME = "mlflow.db"
RUN_TAG = "eigen.run"
STORE_TAG = "eigen.store"
# Limits of MLflow for one request.
_MOST_METRICS, _MOST_PARAMETERS = 1_000, 100


class MlflowTracker:
    """Writes to an MLflow run, which tags identify.

    MLflow cannot replace or remove values: if they differ from the history, the tracker creates a new MLflow run.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (MlflowException, SQLAlchemyError, OSError)
    memory_bytes: ClassVar[int] = 100_000_000

    def __init__(self, location: RunLocation, config: Config) -> None:
        settings = config.reporting
        given = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._database = None if given else location.root.absolute() / DATABASE_NAME
        self._folder = location.root.absolute() / location.name
        self._uri = given or f"sqlite:///{self._database}"
        self._experiment = settings.mlflow_experiment
        self._tags = {RUN_TAG: location.name, STORE_TAG: location.store.url}
        self._name = location.name
        values = flatten(config.model_dump(mode="json"))
        self._parameters = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
        }
        self._generations = config.generations
        # Id of the MLflow run and its last generation; None: `write` must read its values.
        self._written: tuple[str, int] | None = None

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:
        if self._database is not None and not self._database.exists():
            _make_database(self._database, self._folder)
        client = MlflowClient(self._uri)
        written, self._written = self._written, None
        held: Held = {}
        if written is None:
            found, held = self._open(client, history)
            written = found, 0
        run, generation = written
        now = round(1_000 * time.time())
        missing = [
            Metric(name, value, now, step)
            for step, metrics in metrics_since(generation, history, telemetry)
            for name, value in metrics.items()
            if (name, step) not in held
        ]
        for metrics in _pieces(missing, _MOST_METRICS):
            client.log_batch(run, metrics=metrics)
        if len(history) >= self._generations:
            client.set_terminated(run)
        if all(step <= len(history) for _, step in held):
            self._written = run, len(history)

    def _open(self, client: MlflowClient, history: Sequence[GenerationRecord]) -> tuple[str, Held]:
        """Return the id and values of the newest MLflow run that agrees with the history, or of a new one."""
        experiment = client.get_experiment_by_name(self._experiment)
        number = client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        shared = {(name, record.generation): value for record in history for name, value in metrics_of(record).items()}
        for run in client.search_runs([number], f"tags.`{RUN_TAG}` = '{self._name}'"):
            if run.data.tags.get(STORE_TAG) != self._tags[STORE_TAG]:
                continue
            held = _values(client, run)
            if all(math.isclose(held.get(key, value), value, rel_tol=1e-12) for key, value in shared.items()):
                self._describe(client, run)
                return run.info.run_id, held
        run = client.create_run(number, run_name=self._name, tags=self._tags)
        self._describe(client, run)
        return run.info.run_id, {}

    def _describe(self, client: MlflowClient, run: Run) -> None:
        """Log the settings as parameters. MLflow cannot change a parameter: log changed settings as tags."""
        known, number = run.data.params, run.info.run_id
        new = [Param(key, value) for key, value in self._parameters.items() if key not in known]
        for parameters in _pieces(new, _MOST_PARAMETERS):
            client.log_batch(number, params=parameters)
        changed = [RunTag(key, value) for key, value in self._parameters.items() if known.get(key, value) != value]
        for tags in _pieces(changed, _MOST_PARAMETERS):
            client.log_batch(number, tags=tags)
        if run.info.status != "RUNNING":
            client.update_run(number, status="RUNNING")


def _make_database(path: Path, folder: Path) -> None:
    """Create a database in the run's folder and link it to `path`, unless another process was faster.

    MLflow creates a database in many transactions, and cannot continue an incomplete one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"{DATABASE_NAME}.part"
    for left_behind in folder.glob(f"{beside.name}*"):
        left_behind.unlink()
    MlflowClient(f"sqlite:///{beside}").search_experiments()
    with suppress(FileExistsError):
        os.link(beside, path)
    beside.unlink()


def _values(client: MlflowClient, run: Run) -> Held:
    return {
        (name, metric.step): metric.value
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    }


def _pieces(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[first : first + most] for first in range(0, len(items), most))
