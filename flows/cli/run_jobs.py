"""Train whole runs, each by `eigen train` in another process, on this machine or on workers of a Dask scheduler."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigen_core.common.errors import FOLLOWS, End, InputError, Job, Next, Stopped, StoppedByMemory
from eigen_core.common.files import without_file
from eigen_core.common.process import environment_without_instructions, stop_with_this_process
from flows.cli.common import END_BYTES, END_PIPE, EXIT_MEMORY
from flows.cli.console import stop_signals

if TYPE_CHECKING:
    from eigen_core.config import Config

POLL_SECONDS = 0.5
# A training that is asked to stop waits 15 s for uploads, and then reports its end to Prefect.
_STOP_SECONDS = 60.0
AGAIN = "Run the same command again to continue."
"""Last sentence of messages about runs that are not finished."""


@dataclass(frozen=True)
class RunJob:
    """A run to train in another process; `arguments`: those of `eigen train` that give `config`, without `--run`."""

    name: str
    config: "Config"
    arguments: Sequence[str]


def run_job(name: str, preset: str | None, settings: Sequence[str]) -> RunJob:
    """Return the job of a run with a preset and settings `key=value`; of a repeated key, the last value counts."""
    from eigen_core.config.loading import load_config

    last = list({setting.partition("=")[0].strip(): setting for setting in settings}.values())
    options = [part for setting in last for part in ("--set", setting)]
    return RunJob(name, load_config(preset, last), [*([] if preset is None else ["--preset", preset]), *options])


@dataclass(frozen=True)
class JobResult:
    """How the process of a run ended: its exit code, what it printed, and if it ended early, how and why."""

    code: int
    output: str
    end: End | None = None
    sentence: str = ""

    @classmethod
    def of(cls, code: int, output: str, told: bytes) -> "JobResult":
        """Return the result of a process that has `told` its end by `END_PIPE`, unless it finished the run or died."""
        if code == 0:
            return cls(code, output)
        if told:
            record = json.loads(told)
            return cls(code, output, End(record["end"]), record["sentence"])
        last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "It printed nothing.")
        return cls(code, output, End.INTERRUPTED if code == -signal.SIGTERM else End.OTHER, last)


IsStopped = Callable[[], bool]
Train = Callable[[RunJob, Path, IsStopped], JobResult]
"""Function with the first three arguments and the result of `train_in_subprocess`, on this machine or a worker."""
JobFunction = Callable[[Train, IsStopped], None]
"""Function that trains runs by its first argument; `is_stopped` is its second one, or one that is true earlier."""
_STOPPED = JobResult(-signal.SIGTERM, "", End.INTERRUPTED)


def train_in_subprocess(run: RunJob, log: Path, is_stopped: IsStopped, folder: str | None = None) -> JobResult:
    """Train a run from its last checkpoint to its end in a new process, which prints to `log`; return how it ended.

    `is_stopped` is called twice a second; once it returns True, the new process is stopped. Its working directory is
    `folder` (None: that of this process). Raise `Stopped` if a process of another command goes on training the run.
    """
    if not _wait_until_free(run, is_stopped):
        return _STOPPED
    reading, writing = os.pipe()
    with without_file(log).open("xb") as output, open(writing, "wb"):
        # Ctrl-C reaches this process alone, which then stops the others.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.cli", "train", "--run", run.name, *run.arguments],
            cwd=folder,
            # The bits of its results must not depend on what this process has computed before.
            env={**environment_without_instructions(), END_PIPE: str(writing)},
            pass_fds=(writing,),
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
    # A process that it has left behind may hold the pipe open: do not wait for it.
    os.set_blocking(reading, False)
    with open(reading, "rb", buffering=0) as pipe:
        told = pipe.read(END_BYTES) or b""
    return JobResult.of(process.returncode, log.read_text(encoding="utf-8", errors="replace"), told)


def _wait_until_free(run: RunJob, is_stopped: IsStopped) -> bool:
    """Wait until no process of an earlier command trains the run; return False if `is_stopped()` is true before."""
    # If the machine of that process was lost, its lease, the run's lock in a remote store, has to expire first.
    from eigen_core.runs.handle import Run

    checkpoint = run.config.checkpoint
    there = Run(checkpoint, run.name)
    end = time.monotonic() + _STOP_SECONDS + (checkpoint.lease_seconds if there.location.remote else 0.0)
    while there.is_running():
        if is_stopped():
            return False
        if time.monotonic() > end:
            raise Stopped(f"Another process still trains run {run.name}: stop it, or wait until it ends. {AGAIN}")
        time.sleep(POLL_SECONDS)
    return True


def require_trained(run: RunJob, end: JobResult, log: Path, job: Job) -> None:
    """Raise `StoppedByMemory` if the process of a run lacked memory, `Stopped` if it failed otherwise.

    Also raise `Stopped` if this machine does not find the trained run in the store: a worker may use another folder.
    """
    from eigen_core.runs.handle import Run

    found = Run.of(run.config, run.name)
    if end.end is not None:
        ended = end.end.of_begun_run if found.exists else end.end
        again = AGAIN if FOLLOWS[ended][job] is Next.RETRY else f"The {job} would end in the same way again."
        message = f"Run {run.name} ended with exit code {end.code}. {end.sentence} Its output is in {log}. {again}"
        raise (StoppedByMemory if end.code == EXIT_MEMORY else Stopped)(message)
    if not found.is_finished(run.config):
        raise Stopped(
            f"Run {run.name} was trained, but {run.config.checkpoint.store} does not have it: give --store a bucket, "
            f"or a folder that this machine shares with the worker. {AGAIN}"
        )


def refuse_two_schedulers(config: "Config", runs_on: str | None) -> None:
    """Raise `InputError` if workers would train whole runs and also compute agents of them: the runs could block."""
    if runs_on is not None and config.scheduler is not None:
        raise InputError(
            f"--runs-on {runs_on} lets each worker train a whole run, and the setting scheduler={config.scheduler} "
            "lets workers compute the agents of each run: with both, a run would wait for a worker's thread that it "
            "occupies itself. Leave out one of them."
        )


@contextmanager
def job_executor(jobs: int, scheduler: str | None) -> Iterator[Callable[[Iterable[JobFunction]], None]]:
    """Yield a function that calls others, `jobs` at a time: they train runs here, or on Dask workers of `scheduler`.

    After an error of one, Ctrl-C or SIGTERM (then it raises `Stopped`) the function stops the runs in training. If a
    worker is lost, another one trains its run; a worker that loses this process or the scheduler stops its run.
    """
    stopped = threading.Event()
    with stop_signals() as signals:
        try:
            with signals.raising(), _trainer(scheduler) as train, ThreadPoolExecutor(jobs) as threads:

                def do(functions: Iterable[JobFunction]) -> None:
                    try:
                        for done in as_completed([threads.submit(each, train, stopped.is_set) for each in functions]):
                            done.result()
                    finally:
                        stopped.set()
                        threads.shutdown(cancel_futures=True)

                yield do
        except KeyboardInterrupt:
            raise Stopped(f"Stopped. {AGAIN}") from None


@contextmanager
def _trainer(scheduler: str | None) -> Iterator[Train]:
    if scheduler is None:
        yield train_in_subprocess
        return
    from eigen_core.workers.connection import connected

    # The scheduler cancels the runs once the client is closed.
    with connected(scheduler) as client:
        yield partial(_train_by_worker, client)


def _train_by_worker(client: Any, run: RunJob, log: Path, is_stopped: IsStopped) -> JobResult:  # noqa: ANN401
    from distributed import KilledWorker

    from eigen_core.workers.connection import key_of

    arguments = _with_absolute_folders(run), os.getcwd()
    future = client.submit(_train_on_worker, *arguments, key=key_of(run.name), pure=False)
    while True:
        if client.status != "running" or future.status in ("cancelled", "lost"):
            raise Stopped(f"The Dask scheduler of --runs-on cannot be reached any more. {AGAIN}")
        if future.done():
            break
        if is_stopped():
            # The next process that trains the run waits until this one has ended.
            future.cancel()
            return _STOPPED
        time.sleep(POLL_SECONDS)
    try:
        end: JobResult = future.result()
    except KilledWorker as error:
        raise Stopped(f"Dask workers were lost repeatedly while training run {run.name}: {error} {AGAIN}") from error
    without_file(log).write_text(end.output, encoding="utf-8")
    return end


def _with_absolute_folders(run: RunJob) -> RunJob:
    from flows.server.state_directory import absolute_store

    given, folder = run.config.checkpoint, Path.cwd()
    folders = {"local": absolute_store(given.local, folder), "store": absolute_store(given.store, folder)}
    checkpoint = given.model_copy(update=folders)
    return replace(run, config=run.config.model_copy(update={"checkpoint": checkpoint}))


def _train_on_worker(run: RunJob, folder: str) -> JobResult:
    """Train a run on this worker, in `folder`, the command's working directory, if this machine has that folder."""
    from distributed import get_worker

    worker = get_worker()
    tasks, key = worker.state.tasks, worker.get_current_task()

    def is_cancelled() -> bool:
        # The scheduler cancels the task, also when the command's process is gone.
        return worker.status.name != "running" or key not in tasks or tasks[key].state == "cancelled"

    with tempfile.TemporaryDirectory(prefix="eigen-run-") as own:
        return train_in_subprocess(run, Path(own) / "run.log", is_cancelled, folder if Path(folder).is_dir() else None)
