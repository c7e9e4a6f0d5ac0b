"""Interface of a tracker, and the metrics that it receives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, cast

from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord, Record, Telemetry
from eigen_core.common.text import install_command
from eigen_core.config import Config
from eigen_core.config.values import TRACKERS, chosen


@dataclass(frozen=True)
class TrackedRun:
    """A run whose metrics are tracked.

    Attributes:
        name: the run.
        store: URL of what holds it.
        root: folder of this machine that holds the run's folder.
        config: its configuration.
    """

    name: str
    store: str
    root: Path
    config: Config


class Tracker(Protocol):
    """Holds the metrics of a run's generations. Its module imports the package that it needs."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """Errors of writing if the tracker cannot be reached or written to."""
    memory_bytes: ClassVar[int]
    """Measured memory in the process of a training, with the packages that it imports."""

    def __init__(self, run: TrackedRun) -> None: ...

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:
        """Let the tracker hold each metric of each generation of the history once, as the history has it.

        It may be called again after it has raised, or in another process after this one was killed.

        Args:
            history: one record for each generation from 1 on.
            telemetry: at most one for each of them, in order.
        """


def require_packages(config: Config) -> None:
    """Raise `InputError` if the package that a tracker of a configuration needs is not installed."""
    for name in config.reporting.trackers:
        _tracker_class(name)


def tracker_bytes(config: Config) -> dict[str, int]:
    """Return what each tracker of a configuration takes (bytes), by name.

    Raises:
        InputError: the package that one of them needs is not installed.
    """
    return {name: _tracker_class(name).memory_bytes for name in config.reporting.trackers}


def trackers_of(run: TrackedRun) -> dict[str, Tracker]:
    """Return the trackers that a run's configuration names.

    Raises:
        InputError: the package that one of them needs is not installed.
    """
    return {name: _tracker_class(name)(run) for name in dict.fromkeys(run.config.reporting.trackers)}


def _tracker_class(name: str) -> type[Tracker]:
    try:
        return cast(type[Tracker], chosen(TRACKERS, name))
    except ModuleNotFoundError as error:
        raise InputError(
            f"reporting.trackers: {name} needs the package {error.name}, which is not installed: "
            f"`{install_command(name)}`, or leave {name} out."
        ) from error


def metrics_of(record: GenerationRecord) -> dict[str, float]:
    """Return the metrics of a generation that equal runs share, by the names of the record."""
    return {
        **_numbers(record, "generation"),
        **_in(record.champion_excess.numbers if record.champion_excess else {}, "champion_excess"),
        **_in(record.trading, "trading"),
        **_in(record.learning, "learning"),
    }


def metrics_since(
    generation: int, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each generation after this one with all its metrics, those of its telemetry too where there is one."""
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
