"""Experiment trackers such as TensorBoard and MLflow: their interface, metrics and threads.

The history in the checkpoints is authoritative; a tracker adds the values that it lacks.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Protocol, Self

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.records import GenerationRecord, Record, Telemetry
from eigen_core.common.text import without_credentials
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.training.listener import Listener, Training


class Tracker(Protocol):
    """Writes the metrics of a run's generations. Its module imports the tracker's package."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of `write` if the tracker cannot be reached or written to."""
    memory_bytes: ClassVar[int]
    """Memory that the tracker and its packages take in a training process, as measured."""

    def __init__(self, location: RunLocation, config: Config) -> None: ...

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:
        """Write all missing metrics. It may be called again after an error or a crash, also in another process.

        Args:
            history: one record for each generation from 1 on.
            telemetry: at most one record for each generation, in order.
        """


def metrics_of(record: GenerationRecord) -> dict[str, float]:
    """Return the metrics of a generation without times and memory, named after the record's fields."""
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


# MLflow takes 10 s to create a database.
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
        """Start to write; if an earlier write is running, a later call or `finish` writes these generations."""
        self._newest = history, telemetry
        if self._thread is not None and self._thread.is_alive():
            return
        self._report()
        self._begin()

    def finish(self, seconds: float) -> None:
        """Write what is missing and wait for it, at most `seconds`; after an error, write nothing more."""
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
    """Writes the metrics of each checkpoint to the run's trackers; a context manager that waits for them on exit.

    At the start, trackers receive the generations of earlier processes. A tracker that fails causes one warning; the
    next generation retries it.

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
