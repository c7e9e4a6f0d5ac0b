"""Listeners, such as displays and trackers, receive the events of a training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eigen_core.common.progress import progress_to

# Displays are listeners, and a command that prints its help must not load torch.
if TYPE_CHECKING:
    from eigen_core.checkpoint.session import RunSession
    from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry
    from eigen_core.config import Config
    from eigen_core.generation import TrainingState
    from eigen_core.machine.memory_guard import MemoryGuard
    from eigen_core.machine.memory_report import MemoryReport
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.runs.handle import Run
    from eigen_core.task.interface import TaskData


@dataclass(frozen=True)
class Training:
    """A run that this process has locked (`session`) and prepared for training, with its plan and memory guard."""

    run: "Run"
    state: "TrainingState"
    session: "RunSession"
    guard: "MemoryGuard"
    plan: "RunPlan"
    data: "TaskData"

    @property
    def config(self) -> "Config":
        return self.state.config


class Listener:
    """Receives the events of a training, about in the order of the methods; by default each method does nothing.

    Methods must be fast. An exception of a listener ends the training.
    """

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of `total` steps of the loop `name` are complete (`eigen_core.common.progress`)."""

    def chosen(self, generation: int) -> None:
        """The process begins to prepare the run, whose next generation to train is `generation`."""

    def prepared(self, training: Training) -> None:
        """This process has locked the run and loaded its newest generation; the run may be complete."""

    def begun(self, training: Training) -> None:
        """Training begins."""

    def phase_started(self, generation: int, phase: str) -> None:
        """A phase of `generation` begins: evaluate, train, evolve, checkpoint, plot, holdout or upload."""

    def checkpointed(self, training: Training) -> None:
        """The newest generation of `training.state` is in a checkpoint on this machine."""

    def plotted(self, generation: int, paths: Sequence[Path]) -> None:
        """The plots up to `generation` are in the files `paths`; usually the next generation is already computed."""

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        """A generation is complete and in a checkpoint; its plots may follow later."""

    def completed(self, training: Training, result: "HoldoutResult | None") -> None:
        """The run has all its generations; `result` is that of its holdout episodes, None if it has none."""

    def memory_reported(self, report: "MemoryReport") -> None:
        """The memory guard aborted the training, or SIGUSR1 requested a report, which comes from another thread."""


_active: ContextVar[tuple[Listener, ...]] = ContextVar("eigen_listeners", default=())


@contextmanager
def observed_by(listener: Listener) -> Iterator[None]:
    """Send the events of every training inside the block, and the progress of all loops, to `listener` alone."""
    token = _active.set((listener,))
    try:
        with progress_to(listener):
            yield
    finally:
        _active.reset(token)


def active_listeners() -> tuple[Listener, ...]:
    return _active.get()
