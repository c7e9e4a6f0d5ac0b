"""Experiment trackers, TensorBoard and MLflow, and the listener that writes a training's metrics to them.

The history in the checkpoints is authoritative: a tracker adds the values that its own records lack.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, TypeVar

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.errors import InputError
from eigen_core.common.files import ForeignPlaceError, open_to_append, place
from eigen_core.common.records import GenerationRecord, Record, Telemetry
from eigen_core.common.text import text_or_json, without_credentials
from eigen_core.config import Config
from eigen_core.config.explain import flatten
from eigen_core.config.registry import tracker_class
from eigen_core.runs.listener import Listener, Training

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")
StoredValues = Mapping[tuple[str, int], float]
History = Sequence[GenerationRecord]


class Tracker(Protocol):
    """Writes the metrics of a run's generations. It imports the tracker's package when it needs it."""

    errors: tuple[type[Exception], ...]
    """Exceptions that `write` raises if the tracker cannot be reached or written to."""
    memory_bytes: ClassVar[int]
    """Memory that the tracker and its packages take in a training process, as measured."""

    def __init__(self, location: RunLocation, config: Config) -> None: ...

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        """Write all missing metrics. It may be called again after an error or a crash, also in another process.

        `history` has one record for each generation from 1 on, `telemetry` at most one for each, in order.
        """


def metrics_of(record: GenerationRecord) -> dict[str, float]:
    """Return the metrics of a generation without times and memory, named after the record's fields."""
    excess = record.champion_excess.numbers if record.champion_excess else {}
    groups = {"champion_excess": excess, "trading": record.trading, "learning": record.learning or {}}
    nested = {f"{group}/{name}": float(value) for group, values in groups.items() for name, value in values.items()}
    return {**_numbers(record, "generation"), **nested}


def metrics_since(
    generation: int, history: History, telemetry: Sequence[Telemetry]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and all metrics, with telemetry, of each generation after `generation`."""
    records = history[generation:]
    took = {entry.generation: entry for entry in telemetry[-len(records) :]} if records else {}
    for record in records:
        metrics = metrics_of(record)
        if entry := took.get(record.generation):
            metrics |= {**_numbers(entry, "telemetry"), "telemetry/device_peak_bytes": float(entry.device_peak_bytes)}
        yield record.generation, metrics


def _numbers(record: Record, group: str) -> dict[str, float]:
    return {
        f"{group}/{name}": float(value)
        for name, value in record
        if isinstance(value, int | float) and name != "generation"
    }


# MLflow takes 10 s to create a database.
_LAST_WAIT_SECONDS = 30.0
_LAST_WAIT_AFTER_ERROR_SECONDS = 5.0


class _TrackerThread:
    """Lets a tracker write in a daemon thread, and warns once if it fails."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._name = name
        self._tracker = tracker
        self._warn = warn
        self._thread: threading.Thread | None = None
        self._newest: tuple[History, Sequence[Telemetry]] = ((), ())
        self._written = 0
        self._failure: Exception | None = None
        self._warned = False

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        """Start to write; if an earlier write is running, a later call or `finish` writes these generations."""
        self._newest = history, telemetry
        if self._thread is None or not self._thread.is_alive():
            self._report()
            self._begin()

    def finish(self, seconds: float) -> None:
        """Write generations that are missing, and wait at most `seconds`; after an error, write nothing more."""
        if self._thread is None:
            return
        end = time.monotonic() + seconds
        self._thread.join(seconds)
        if not self._thread.is_alive() and self._failure is None and self._written < len(self._newest[0]):
            self._begin()
            self._thread.join(max(end - time.monotonic(), 0.0))
        self._report()
        if self._thread.is_alive() and not self._warned:
            self._say(f"has not answered within {seconds:.0f} s")

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, args=self._newest, name=f"tracker-{self._name}", daemon=True)
        self._thread.start()

    def _run(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        try:
            self._tracker.write(history, telemetry)
        except self._tracker.errors as error:
            self._failure = error
        else:
            self._failure = None
            self._written = len(history)

    def _report(self) -> None:
        if self._failure is not None and not self._warned:
            first_line = without_credentials(str(self._failure).partition("\n")[0])
            self._say(f"cannot be written to ({type(self._failure).__name__}: {first_line})")

    def _say(self, what: str) -> None:
        self._warned = True
        self._warn(
            f"reporting.trackers: {self._name} {what}. Missing generations are written with a later one, or when the "
            "run is continued."
        )


class TrackerListener(Listener, AbstractContextManager["TrackerListener"]):
    """Writes the metrics of each checkpoint to the run's trackers; a context manager that waits for them on exit.

    At the start, trackers receive the generations of earlier processes. A tracker that fails causes one warning; the
    next generation retries it. `warn` receives the warnings, in the thread that calls this object.

    Raises:
        InputError: the package that a tracker needs is not installed.
    """

    def __init__(self, config: Config, location: RunLocation, warn: Callable[[str], None]) -> None:
        names = dict.fromkeys(config.reporting.trackers)
        self._threads = [_TrackerThread(name, tracker_class(name)(location, config), warn) for name in names]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = _LAST_WAIT_SECONDS if error is None else _LAST_WAIT_AFTER_ERROR_SECONDS
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.finish(max(end - time.monotonic(), 0.0))

    def prepared(self, training: Training) -> None:
        self.write(training.state.history, training.state.telemetry)

    checkpointed = prepared

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        for thread in self._threads:
            thread.write(history, telemetry)


EVENT_FILE_NAME = "events.out.tfevents.eigen"


class TensorBoardTracker:
    """Writes an event file in each process of a run, with all generations; a generation is complete or missing in it.

    Files are read in the order of their names. The first event of a file tells TensorBoard to discard the steps of
    earlier files from 0 on, so that it shows each generation once, as the newest process has it (`purge_step` of
    `torch.utils.tensorboard.SummaryWriter`).
    """

    errors = (OSError, InputError)
    memory_bytes: ClassVar[int] = 5_000_000

    def __init__(self, location: RunLocation, config: Config) -> None:
        run, given = location.name, config.reporting.tensorboard_folder
        self._folder = (
            place(location.root, f"{run}/tensorboard/") if given is None else Path(os.path.expanduser(given)) / run
        )
        # Four spaces begin a block of code in the Markdown that TensorBoard shows.
        settings = flatten(config.model_dump(mode="json"))
        self._configuration = "\n".join(f"    {key}: {value}" for key, value in settings.items()).encode()
        # File and its last generation; None: `write` must begin another, since the last write failed.
        self._written: tuple[Path, int] | None = None

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        written, self._written = self._written, None
        path, generation = written or (self._folder / f"{EVENT_FILE_NAME}.{time.time_ns()}", 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(path) as file:
            # A new file, or one in the place of a file that somebody has removed.
            if not file.tell():
                generation = 0
                _append(file, file_version="brain.Event:2")
                _append(file, session_log=SessionLog(status=SessionLog.START))
                _append(file, summary=text_pb("configuration", self._configuration))
            for step, metrics in metrics_since(generation, history, telemetry):
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
                _append(file, step=step, summary=Summary(value=values))
        self._written = path, len(history)


def _append(file: BinaryIO, **content: Any) -> None:  # noqa: ANN401 - the fields of an event
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


DATABASE_NAME = "mlflow.db"
RUN_TAG = "eigen.run"
STORE_TAG = "eigen.store"
# Limits of MLflow for one request.
_MOST_METRICS, _MOST_PARAMETERS = 1_000, 100


class MlflowTracker:
    """Writes to an MLflow run, identified by tags; metrics have the generation as their step.

    MLflow cannot replace or remove values: if some differ from the history, the tracker creates a new MLflow run.
    """

    memory_bytes: ClassVar[int] = 100_000_000

    def __init__(self, location: RunLocation, config: Config) -> None:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        self.errors = MlflowException, SQLAlchemyError, OSError, InputError
        settings = config.reporting
        given = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        # The slash: the database itself must not be a link either.
        self._database = None if given else place(location.root.absolute(), f"{DATABASE_NAME}/")
        self._folder = location.root.absolute() / location.name
        self._uri = given or f"sqlite:///{self._database}"
        self._experiment = settings.mlflow_experiment
        self._tags = {RUN_TAG: location.name, STORE_TAG: location.store.url}
        values = flatten(config.model_dump(mode="json"))
        self._parameters = {key: text_or_json(value) for key, value in values.items()}
        self._generations = config.generations
        # Id of the MLflow run and its last generation; None: `write` must read its values.
        self._written: tuple[str, int] | None = None

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        if self._database is not None and self._written is None:
            make_database(self._database, self._folder)
        client = MlflowClient(self._uri)
        held: StoredValues = {}
        if self._written is None:
            found, held = self._open(client, history)
            self._written = found, 0
        (run, generation), self._written = self._written, None
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

    def _open(self, client: "MlflowClient", history: History) -> tuple[str, StoredValues]:
        """Return the id and values of the newest MLflow run that agrees with the history, or of a new one."""
        experiment = client.get_experiment_by_name(self._experiment)
        number = client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        shared = {(name, record.generation): value for record in history for name, value in metrics_of(record).items()}
        for run in client.search_runs([number], f"tags.`{RUN_TAG}` = '{self._tags[RUN_TAG]}'"):
            if run.data.tags.get(STORE_TAG) != self._tags[STORE_TAG]:
                continue
            held = {
                (name, metric.step): metric.value
                for name in run.data.metrics
                for metric in client.get_metric_history(run.info.run_id, name)
            }
            if all(math.isclose(held.get(key, value), value, rel_tol=1e-12) for key, value in shared.items()):
                break
        else:
            run, held = client.create_run(number, run_name=self._tags[RUN_TAG], tags=self._tags), {}
        self._describe(client, run)
        return run.info.run_id, held

    def _describe(self, client: "MlflowClient", run: "Run") -> None:
        """Log the settings as parameters. MLflow cannot change a parameter: log changed settings as tags."""
        from mlflow.entities import Param, RunTag

        known, number = run.data.params, run.info.run_id
        new = [Param(key, value) for key, value in self._parameters.items() if key not in known]
        for parameters in _pieces(new, _MOST_PARAMETERS):
            client.log_batch(number, params=parameters)
        changed = [RunTag(key, value) for key, value in self._parameters.items() if known.get(key, value) != value]
        for tags in _pieces(changed, _MOST_PARAMETERS):
            client.log_batch(number, tags=tags)
        if run.info.status != "RUNNING":
            client.update_run(number, status="RUNNING")


def make_database(path: Path, folder: Path) -> None:
    """Create a database in the run's folder and link it to `path`, unless there is one, which must have no other name.

    MLflow creates a database in many transactions, and cannot continue an incomplete one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"{DATABASE_NAME}.part"
    for left_behind in folder.glob(f"{beside.name}*"):
        left_behind.unlink()
    if path.exists():
        if path.stat().st_nlink > 1:
            raise ForeignPlaceError(path)
        return
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{beside}").search_experiments()
    with suppress(FileExistsError):
        os.link(beside, path)
    beside.unlink()


def _pieces(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[first : first + most] for first in range(0, len(items), most))
