"""Experiment trackers such as TensorBoard and MLflow: their interface, metrics and threads.

The history in the checkpoints is the truth; a tracker adds the values that it lacks.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Protocol, Self

from eigen_core.checkpoint.location import RunLocation
from eigen_core.common.records import GenerationRecord, Record, Telemetry
from eigen_core.common.text import without_credentials
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.training.listener import Listener, Training


class Tracker(Protocol):
    """Writes the metrics of a run's generations; made of the run's location and configuration.

    Its module imports the package that it needs.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    """Errors of writing if the tracker cannot be reached or written to."""
    memory_bytes: ClassVar[int]
    """Measured memory in the process of a training, with the packages that it imports."""

    def __init__(self, location: RunLocation, config: Config) -> None: ...

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:
        """Write each metric of each generation that is missing.

        It may be called again after an error, or in another process after this one was killed.

        Args:
            history: one record for each generation from 1 on.
            telemetry: at most one for each of them, in order.
        """


def metrics_of(record: GenerationRecord) -> dict[str, float]:
    """Return the metrics of a generation that equal runs have in common, by the names of the record."""
    return {
        **_numbers(record, "generation"),
        **_in(record.champion_excess.numbers if record.champion_excess else {}, "champion_excess"),
        **_in(record.trading, "trading"),
        **_in(record.learning, "learning"),
    }


def metrics_since(
    generation: int, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each generation after `generation` with all its metrics, including its telemetry."""
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


def _in(values: dict[str, float] | None, group: str) -> dict[str, float]:
    return {f"{group}/{name}": float(value) for name, value in (values or {}).items()}


# A new database of MLflow takes 10 s.
_LAST_WAIT_SECONDS = 30.0
_LAST_WAIT_AFTER_ERROR_SECONDS = 5.0

History = Sequence[GenerationRecord]


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
        """Start to write; while an earlier call is running, its generations are written with the next ones."""
        self._newest = history, telemetry
        if self._thread is not None and self._thread.is_alive():
            return
        self._report()
        self._begin()

    def finish(self, seconds: float) -> None:
        """Wait until all is written, at most `seconds`, and not after an error."""
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


class TrackerListener(Listener):
    """Writes the metrics of each checkpoint to the trackers of a run; a context manager that waits for them at the end.

    At the start the trackers receive generations of earlier processes. A tracker that fails causes one warning and is
    tried again with the next generation.

    Args:
        config, location: of the run.
        warn: receives the warnings, in the thread that calls this object.

    Raises:
        InputError: the package that a tracker needs is not installed.
    """

    def __init__(self, config: Config, location: RunLocation, warn: Callable[[str], None]) -> None:
        names = dict.fromkeys(config.reporting.trackers)
        self._followers = [_TrackerThread(name, tracker_class(name)(location, config), warn) for name in names]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = _LAST_WAIT_SECONDS if error is None else _LAST_WAIT_AFTER_ERROR_SECONDS
        end = time.monotonic() + seconds
        for follower in self._followers:
            follower.finish(max(end - time.monotonic(), 0.0))

    def prepared(self, training: Training) -> None:
        self.write(training.state.history, training.state.telemetry)

    checkpointed = prepared

    def write(self, history: History, telemetry: Sequence[Telemetry]) -> None:
        for follower in self._followers:
            follower.write(history, telemetry)
