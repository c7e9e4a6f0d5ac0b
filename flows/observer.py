"""Observers of a training: the flow reports to them, they decide how to show it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from eigen_core.records import GenerationRecord, Telemetry


class TrainingObserver(Protocol):
    """Hears of a training's course. Implementations must be cheap and must not raise."""

    def started(self, generation: int, generations: int) -> None:
        """Training begins after `generation` of `generations` completed ones."""

    def phase_started(self, generation: int, phase: str) -> None:
        """A phase of `generation` begins."""

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:
        """A generation is complete and in the store."""


class SilentObserver:
    """Shows nothing."""

    def started(self, generation: int, generations: int) -> None:
        """Do nothing."""

    def phase_started(self, generation: int, phase: str) -> None:
        """Do nothing."""

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:
        """Do nothing."""


_SILENT = SilentObserver()
_observer: ContextVar[TrainingObserver] = ContextVar("eigen_training_observer", default=_SILENT)


@contextmanager
def observed_by(observer: TrainingObserver) -> Iterator[None]:
    """Tell `observer` of every training that runs inside the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observer() -> TrainingObserver:
    """Return who listens to the training that runs here."""
    return _observer.get()
