"""Whole runs, each trained by `eigen train` in a process: of this machine, or of a worker of a Dask scheduler."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eigen_core.checkpoint.store import is_remote
from eigen_core.common.errors import InputError
from eigen_core.common.runtime import environment_without_instructions, stop_with_this_process
from flows.cli.common import EXIT_BAD_INPUT, EXIT_MEMORY
from flows.cli.display import stop_signals
from flows.server.environment import Stopped, StoppedByMemory

if TYPE_CHECKING:
    from eigen_core.config import Config

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.5, 10.0
"""Time between two looks at a run, and at one that is kept elsewhere."""
# A stop that was requested waits 15 s for uploads, and Prefect's report of it takes some.
_STOP_SECONDS = 60.0
AGAIN = "The same command goes on."
"""End of a sentence about runs that were not trained to their end."""


@dataclass(frozen=True)
class WholeRun:
    """A run to be trained in a process of its own; `arguments`: those of `eigen train`, but for the name."""

    name: str
    config: "Config"
    arguments: Sequence[str]


def whole_run(name: str, preset: str | None, settings: Sequence[str]) -> WholeRun:
    """Return the run of a preset with settings, given as `key=value`; of a key that is given twice the last counts.

    Raises:
        InputError: they contradict each other.
    """
    from eigen_core.config.loading import load_config

    last = list({setting.partition("=")[0].strip(): setting for setting in settings}.values())
    options = [part for setting in last for part in ("--set", setting)]
    return WholeRun(name, load_config(preset, last), [*([] if preset is None else ["--preset", preset]), *options])


@dataclass(frozen=True)
class RunEnd:
    """Exit code and output of the process of a run."""

    code: int
    output: str

    @property
    def sentence(self) -> str:
        """The last sentence that the process printed about its end; empty if there is none."""
        lines = reversed(self.output.splitlines())
        return next((line.removeprefix("eigen: ") for line in lines if line.startswith("eigen: ")), "")

    @property
    def refused(self) -> bool:
        """Whether the run cannot be trained with these settings."""
        return self.code in (EXIT_BAD_INPUT, EXIT_MEMORY)


def train_whole(run: WholeRun, log: Path, is_stopped: Callable[[], bool], folder: str | None = None) -> RunEnd:
    """Train a run from its last checkpoint to its end in a process, which prints to `log`, and return how it ended.

    Once `is_stopped`, asked twice a second, is true, the process is ended. Relative paths are in `folder`, or here.

    Raises:
        Stopped: another process trains the run.
    """
    if not _waited_until_free(run, is_stopped):
        return RunEnd(-signal.SIGTERM, "")
    with log.open("wb") as output:
        # Ctrl-C reaches this process alone, which then stops the others.
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "train", "--run", run.name, *run.arguments],
            cwd=folder,
            # Its bits must not depend on what this process has computed before.
            env=environment_without_instructions(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    release = stop_with_this_process(process.pid)
    try:
        while process.poll() is None and not is_stopped():
            time.sleep(POLL_SECONDS)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        release()
    return RunEnd(process.returncode, log.read_text(encoding="utf-8", errors="replace"))


def _waited_until_free(run: WholeRun, is_stopped: Callable[[], bool]) -> bool:
    """Wait for a process that an earlier call has left behind and that is about to end; return whether it did.

    One on a machine that was lost holds the run's lease until that expires.
    """
    from eigen_core.training.runs import Run

    checkpoint = run.config.checkpoint
    there = Run(checkpoint, run.name)
    end = time.monotonic() + _STOP_SECONDS + (checkpoint.lease_seconds if there.location.remote else 0.0)
    while there.is_running():
        if is_stopped():
            return False
        if time.monotonic() > end:
            raise Stopped(f"Run {run.name} is trained by another process, and does not end. {AGAIN}")
        time.sleep(POLL_SECONDS)
    return True


def require_trained(run: WholeRun, end: RunEnd, log: Path) -> None:
    """Refuse a run that was not trained to its end, as far as this process can see.

    Raises:
        Stopped: it failed, or is finished where this process does not see it; `StoppedByMemory` if for memory.
    """
    from flows.cli.training import is_finished

    if end.code != 0:
        message = f"Run {run.name} ended with exit code {end.code}. {end.sentence} Its output is in {log}. {AGAIN}"
        raise (StoppedByMemory if end.code == EXIT_MEMORY else Stopped)(message)
    if not is_finished(run.config, run.name):
        raise Stopped(
            f"Run {run.name} was trained, but {run.config.checkpoint.store} does not have it: give --store a bucket, "
            f"or a folder that this machine shares with the worker. {AGAIN}"
        )


class RunningRun(Protocol):
    """A run that is trained in another process, or waits for one."""

    def poll(self) -> RunEnd | None:
        """Return how it ended, None while it has not.

        Raises:
            Stopped: it cannot be trained now.
        """

    def stop(self) -> None:
        """End its process, which a worker does soon after; the run goes on from its last checkpoint."""


StartRun = Callable[[WholeRun, Path], RunningRun]
"""Trains a run from its last checkpoint on; the output of its process is in the file after its end at the latest."""


def train_all(runs: Sequence[WholeRun], start: StartRun, jobs: int, folder: Path, say: Callable[[str], None]) -> None:
    """Train those of the runs that are not finished, in this order, `jobs` at a time.

    `say` gets a line about each run that begins or ends; the output of their processes is in `folder`, `NAME.log`.

    Raises:
        Stopped: one failed; `StoppedByMemory` if that was for memory.
    """
    from flows.cli.training import is_finished

    folder.mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if not is_finished(run.config, run.name)]
    trained: list[tuple[WholeRun, Path, RunningRun]] = []
    while waiting or trained:
        while waiting and len(trained) < jobs:
            run = waiting.pop(0)
            log = folder / f"{run.name}.log"
            trained.append((run, log, start(run, log)))
            say(f"{run.name} begins")
        time.sleep(POLL_SECONDS)
        for one in list(trained):
            run, log, running = one
            end = running.poll()
            if end is not None:
                trained.remove(one)
                require_trained(run, end, log)
                say(f"{run.name} is finished")


def refuse_two_schedulers(config: "Config", runs_on: str | None) -> None:
    """Refuse whole runs on the workers of `runs_on` whose agents workers compute too: they may wait for ever.

    Raises:
        InputError: the runs name a scheduler too.
    """
    if runs_on is not None and config.scheduler is not None:
        raise InputError(
            f"--runs-on {runs_on} lets each worker train a whole run, and the setting scheduler={config.scheduler} "
            "lets workers compute the agents of each run: with both a run would wait for a thread that it takes "
            "itself. Leave out one of them."
        )


@contextmanager
def whole_runs(jobs: int, scheduler: str | None) -> Iterator[StartRun]:
    """Train whole runs inside the block: `jobs` at a time here, or one a thread on the workers of a scheduler.

    At the end of the block, and by Ctrl-C and SIGTERM, those that have not ended are stopped. A run whose worker is
    lost is trained further by another one; a worker that loses this process or the scheduler ends its run.

    Raises:
        InputError: the scheduler cannot be reached.
        Stopped: they were stopped.
    """
    with stop_signals() as signals:
        try:
            running = _local_runs(jobs) if scheduler is None else _runs_of_workers(scheduler)
            with signals.raising(), running as start:
                yield start
        except KeyboardInterrupt:
            raise Stopped(f"Stopped. {AGAIN}") from None


class _LocalRun:
    def __init__(self, threads: ThreadPoolExecutor, run: WholeRun, log: Path) -> None:
        self.stopped = threading.Event()
        self._future: Future[RunEnd] = threads.submit(train_whole, run, log, self.stopped.is_set)

    def poll(self) -> RunEnd | None:
        return self._future.result() if self._future.done() else None

    def stop(self) -> None:
        self.stopped.set()
        self._future.exception()


@contextmanager
def _local_runs(jobs: int) -> Iterator[StartRun]:
    runs: list[_LocalRun] = []
    with ThreadPoolExecutor(jobs, thread_name_prefix="run") as threads:

        def start(run: WholeRun, log: Path) -> RunningRun:
            runs.append(_LocalRun(threads, run, log))
            return runs[-1]

        try:
            yield start
        finally:
            for run in runs:
                run.stopped.set()


class _RunOfWorker:
    def __init__(self, client: Any, run: WholeRun, log: Path) -> None:  # noqa: ANN401 - distributed is imported late
        from eigen_core.workers.connection import key_of

        self._client, self._log = client, log
        self._future = client.submit(
            _train_on_worker, _with_absolute_folders(run), os.getcwd(), key=key_of(run.name), pure=False
        )

    def poll(self) -> RunEnd | None:
        from distributed import KilledWorker

        if self._client.status != "running" or self._future.status in ("cancelled", "lost"):
            raise Stopped(f"The scheduler cannot be reached any more. {AGAIN}")
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


@contextmanager
def _runs_of_workers(scheduler: str) -> Iterator[StartRun]:
    from eigen_core.workers.connection import connected

    client = connected(scheduler)
    try:
        yield lambda run, log: _RunOfWorker(client, run, log)
    finally:
        # The scheduler then cancels the runs.
        client.close()  # type: ignore[no-untyped-call] # distributed has no annotation here


def _with_absolute_folders(run: WholeRun) -> WholeRun:
    checkpoint = run.config.checkpoint
    folders = {"local": os.path.abspath(checkpoint.local)}
    if not is_remote(checkpoint.store):
        folders["store"] = os.path.abspath(checkpoint.store)
    checkpoint = checkpoint.model_copy(update=folders)
    return replace(run, config=run.config.model_copy(update={"checkpoint": checkpoint}))


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
