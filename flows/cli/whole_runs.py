"""Whole runs, each trained by `eigen train` in a process of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from eigen_core.child_processes import stop_with_this_process
from eigen_core.instructions import environment_without_instructions
from flows.cli.common import EXIT_BAD_INPUT, EXIT_MEMORY
from flows.endings import Stopped, StoppedByMemory

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
    """A run to be trained in a process of its own.

    Attributes:
        name: of the run.
        config: of the run.
        arguments: of `eigen train`, but for the name.
    """

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
    """How the process of a run ended: its exit code, and what it printed."""

    code: int
    output: str

    @property
    def sentence(self) -> str:
        """The last sentence that the process printed about its end; empty if there is none."""
        lines = reversed(self.output.splitlines())
        return next((line.removeprefix("eigen: ") for line in lines if line.startswith("eigen: ")), "")

    @property
    def refused(self) -> bool:
        """Whether what was given cannot be trained."""
        return self.code in (EXIT_BAD_INPUT, EXIT_MEMORY)


def train_whole(run: WholeRun, log: Path, is_stopped: Callable[[], bool], folder: str | None = None) -> RunEnd:
    """Train a run to its end in a process, which writes into `log`, and return how it ended.

    Args:
        run: what is trained, from its last checkpoint on.
        log: file for all that the process prints.
        is_stopped: asked twice a second; once it is true the process is ended.
        folder: in which relative paths are; None: the folder of this process.

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
        _end(process)
        release()
    return RunEnd(process.returncode, log.read_text(encoding="utf-8", errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, unless it has ended; the run goes on from its last checkpoint."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _waited_until_free(run: WholeRun, is_stopped: Callable[[], bool]) -> bool:
    """Wait for a process that an earlier call has left behind, and that is about to end; return whether it did.

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


class RunningRun(Protocol):
    """A run that is trained in another process, or waits for one."""

    def poll(self) -> RunEnd | None:
        """Return how it ended, None while it has not.

        Raises:
            Stopped: it cannot be trained now.
        """

    def stop(self) -> None:
        """End its process, which a worker does soon after; the run goes on from its last checkpoint."""


class WholeRuns(Protocol):
    """Trains whole runs; a context manager that stops those that have not ended."""

    def __enter__(self) -> Self:
        """Train runs inside the block."""

    def __exit__(self, *error: object) -> None:
        """Stop them."""

    def start(self, run: WholeRun, log: Path) -> RunningRun:
        """Train a run from its last checkpoint on; what its process prints is in `log` after its end at the latest."""


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


def train_all(
    runs: Sequence[WholeRun],
    trained_by: WholeRuns,
    jobs: int,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    """Train those of the runs that are not finished, so many at a time.

    Args:
        runs: in the order in which they begin.
        trained_by: trains them.
        jobs: so many at a time.
        folder: for what their processes print, `NAME.log`.
        say: receives a line about each that begins or ends.

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
            trained.append((run, log, trained_by.start(run, log)))
            say(f"{run.name} begins")
        time.sleep(POLL_SECONDS)
        for one in list(trained):
            run, log, running = one
            end = running.poll()
            if end is not None:
                trained.remove(one)
                require_trained(run, end, log)
                say(f"{run.name} is finished")
