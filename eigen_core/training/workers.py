"""The processes that compute the agents of a training: its own, workers on this machine, or those of a scheduler."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eigen_core.config import Config
from eigen_core.generation import TrainingState, resolve_device
from eigen_core.machine.devices import visible_gpus
from eigen_core.planning.workers import local_worker_count
from eigen_core.task import TaskData

if TYPE_CHECKING:
    from eigen_core.workers import LocalWorkers


@contextmanager
def local_workers(config: Config) -> "Iterator[LocalWorkers | None]":
    """Start the worker processes that a run asks for on this machine; None: it asks for none.

    They start while the block prepares the run.
    """
    device = resolve_device(config.device).type
    count = local_worker_count(config, "cuda" if device == "cuda" else "cpu")
    if not count:
        yield None
        return
    # Imported here: most trainings need none, and it takes as long as a small generation.
    from eigen_core.workers import LocalWorkers

    gpus = visible_gpus() if device == "cuda" else ()
    # This process computes on the first.
    with LocalWorkers(count, (*gpus[1:], *gpus[:1])) as workers:
        yield workers


@contextmanager
def computed_by_workers(run: str, state: TrainingState, data: TaskData, local: "LocalWorkers | None") -> Iterator[None]:
    """Let the workers of this machine, or of the scheduler that the run names, compute the agents of a state.

    Raises:
        InputError: the scheduler cannot be reached.
    """
    scheduler = state.config.scheduler if local is None else local.address
    if scheduler is None:
        yield
        return
    from eigen_core.workers import WorkerExecutor

    before_phase = (lambda: None) if local is None else local.start_missing
    with WorkerExecutor(run, state.config, data.content, state.task.fingerprint, scheduler, before_phase) as executor:
        state.executor = executor
        yield
