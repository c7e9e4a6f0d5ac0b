"""Where whole runs are trained: in processes of this machine, or by the workers of a Dask scheduler."""

import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eigen_core.errors import InputError
from eigen_core.store import is_remote
from flows.cli.signals import stop_signals
from flows.cli.whole_runs import AGAIN, RunEnd, RunningRun, WholeRun, WholeRuns, train_whole
from flows.endings import Stopped

if TYPE_CHECKING:
    from eigen_core.config import Config

_SCHEDULER_LOST = f"The scheduler cannot be reached any more. {AGAIN}"


def refuse_two_schedulers(config: "Config", runs_on: str | None) -> None:
    """Refuse whole runs that workers train and whose agents workers compute too: they may wait for themselves for ever.

    Args:
        config: of the runs.
        runs_on: address of the scheduler whose workers train them; None: this machine does.

    Raises:
        InputError: the runs name a scheduler too.
    """
    if runs_on is not None and config.scheduler is not None:
        raise InputError(
            f"--runs-on {runs_on} lets each worker train a whole run, and the setting scheduler={config.scheduler} "
            "lets workers compute the agents of each run: with both a run would wait for a thread that it takes "
            "itself. Leave out one of them."
        )


class _LocalRun:
    def __init__(self, threads: ThreadPoolExecutor, run: WholeRun, log: Path) -> None:
        self.stopped = threading.Event()
        self._future: Future[RunEnd] = threads.submit(train_whole, run, log, self.stopped.is_set)

    def poll(self) -> RunEnd | None:
        return self._future.result() if self._future.done() else None

    def stop(self) -> None:
        self.stopped.set()
        self._future.exception()


class LocalRuns:
    """Trains whole runs on this machine. Implements `WholeRuns`.

    Args:
        jobs: runs that are trained at a time; others wait.
    """

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="run")
        self._runs: list[_LocalRun] = []

    def __enter__(self) -> Self:
        """Train runs inside the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop them, all at once, and wait until they have ended."""
        for run in self._runs:
            run.stopped.set()
        self._threads.shutdown()

    def start(self, run: WholeRun, log: Path) -> RunningRun:
        """See `WholeRuns.start`."""
        self._runs.append(_LocalRun(self._threads, run, log))
        return self._runs[-1]


class _WorkerRun:
    def __init__(self, client: Any, run: WholeRun, log: Path) -> None:  # noqa: ANN401 - distributed is imported late
        from eigen_core.workers.connection import key_of

        self._client, self._log = client, log
        self._future = client.submit(
            _train_on_worker, _with_absolute_folders(run), os.getcwd(), key=key_of(run.name), pure=False
        )

    def poll(self) -> RunEnd | None:
        from distributed import KilledWorker

        if self._client.status != "running" or self._future.status in ("cancelled", "lost"):
            raise Stopped(_SCHEDULER_LOST)
        if not self._future.done():
            return None
        try:
            end: RunEnd = self._future.result()
        except KilledWorker as error:
            raise Stopped(f"Workers were lost again and again while they trained a run: {error} {AGAIN}") from error
        self._log.write_text(end.output, encoding="utf-8")
        return end

    def stop(self) -> None:
        # The next process that trains the run waits until this one has ended.
        self._future.cancel()


def _with_absolute_folders(run: WholeRun) -> WholeRun:
    """Return a run that is found from another folder too."""
    checkpoint = run.config.checkpoint
    folders = {"local": os.path.abspath(checkpoint.local)}
    if not is_remote(checkpoint.store):
        folders["store"] = os.path.abspath(checkpoint.store)
    checkpoint = checkpoint.model_copy(update=folders)
    return replace(run, config=run.config.model_copy(update={"checkpoint": checkpoint}))


class WorkerRuns:
    """Trains whole runs on the workers of a Dask scheduler, one a worker thread. Implements `WholeRuns`.

    The scheduler queues them. A run whose worker is lost is trained further by another one, and a worker whose
    connection to this process or to the scheduler is lost ends its run.

    Args:
        scheduler: its address, for example `tcp://host:8786`.

    Raises:
        InputError: it cannot be reached.
    """

    def __init__(self, scheduler: str) -> None:
        from eigen_core.workers.connection import connected

        self._client = connected(scheduler)

    def __enter__(self) -> Self:
        """Train runs inside the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the scheduler, which stops them."""
        self._client.close()  # type: ignore[no-untyped-call] # distributed has no annotation here

    def start(self, run: WholeRun, log: Path) -> RunningRun:
        """See `WholeRuns.start`."""
        return _WorkerRun(self._client, run, log)


def _train_on_worker(run: WholeRun, folder: str) -> RunEnd:
    """Train a run on this worker, in the folder of the process that leads if this machine has it."""
    from distributed import get_worker

    worker = get_worker()
    tasks, key = worker.state.tasks, worker.get_current_task()

    def is_cancelled() -> bool:
        # The scheduler cancels it, also when the process that leads is gone.
        return worker.status.name != "running" or key not in tasks or tasks[key].state == "cancelled"

    with tempfile.TemporaryDirectory(prefix="eigen-run-") as own:
        return train_whole(run, Path(own) / "run.log", is_cancelled, folder if Path(folder).is_dir() else None)


@contextmanager
def whole_runs(jobs: int, scheduler: str | None) -> Iterator[WholeRuns]:
    """Train whole runs inside the block; Ctrl-C and SIGTERM stop them.

    Args:
        jobs: on this machine so many at a time.
        scheduler: whose workers train them; None: this machine does.

    Raises:
        InputError: the scheduler cannot be reached.
        Stopped: they were stopped.
    """
    with stop_signals() as signals:
        try:
            runs: WholeRuns = LocalRuns(jobs) if scheduler is None else WorkerRuns(scheduler)
            with signals.raising(), runs:
                yield runs
        except KeyboardInterrupt:
            raise Stopped(f"Stopped. {AGAIN}") from None
