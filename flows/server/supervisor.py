"""The process that restarts server and worker when they have ended by themselves.

`eigen up` starts it and `eigen down` ends it. It calls `eigen up`, which starts what is missing where it was. Nothing
here imports Prefect: it stays small over days."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from eigen_core.common.errors import InputError
from flows.server.environment import COMPONENTS
from flows.server.state_directory import StateDirectory

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
# After so long without a restart, the next one is not delayed.
_CALM_SECONDS = 600.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.2


def ensure_supervisor(home: StateDirectory, environ: Mapping[str, str], api: str, *, anew: bool) -> None:
    """Start the supervisor of the components of a state directory, with their environment, if none runs.

    `anew`: replace one that runs: its environment may not be that of the components that were just started.

    Raises:
        InputError: its log cannot be written to.
    """
    running = home.running("supervisor")
    if running is not None and (not anew or running.process.pid == os.getppid()):
        return
    stop_supervisor(home)
    home.start("supervisor", [sys.executable, "-m", __name__], {**environ, "EIGEN_HOME": str(home.path)}, api=api)


def stop_supervisor(home: StateDirectory) -> None:
    """Stop the supervisor, with the `eigen up` that it may be running, and remove its record."""
    running = home.running("supervisor")
    if running is not None:
        running.process.stop(_STOP_SECONDS)
    if home.path.is_dir():
        home.forget("supervisor")


def supervise(home: StateDirectory, restart: Callable[[list[str], Path], bool], wait: Callable[[float], bool]) -> None:
    """Restart components that have ended by themselves; pauses between attempts that fail grow.

    Args:
        restart: calls `eigen up` with these arguments in this folder, and returns whether it has succeeded.
        wait: waits this many seconds, and returns whether this process is asked to stop.

    Raises:
        InputError: a record cannot be read.
    """
    pause, last = 0.0, time.monotonic()
    missing = None
    while not wait(_LOOK_SECONDS):
        missing = missing or _missing(home)
        if missing is None:
            if time.monotonic() - last > _CALM_SECONDS:
                pause = 0.0
            continue
        if wait(pause):
            return
        pause = min(max(2.0 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        if restart(*missing):
            missing = None
        last = time.monotonic()


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def _missing(home: StateDirectory) -> tuple[list[str], Path] | None:
    """Return arguments and folder of the `eigen up` that restarts a component that has ended; None if all run.

    `eigen down` removes the records of the components that it stops.
    """
    found = [(name, record) for name in COMPONENTS if (record := home.read(name)) is not None]
    if all(record.process.is_alive() for _, record in found):
        return None
    arguments = [] if len(found) == len(COMPONENTS) else ["--only", found[0][0]]
    for _, record in found:
        if record.host is not None:
            arguments += ["--host", record.host, "--port", str(urlsplit(record.api).port), "--without-password"]
    return arguments, found[-1][1].folder


def _restart(arguments: list[str], folder: Path, stopping: threading.Event) -> bool:
    command = [sys.executable, "-m", "flows.cli", "up", *arguments]
    logger.info("restarting: eigen up %s", shlex.join(arguments))
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if stopping.wait(_POLL_SECONDS):
                process.terminate()
                break
    return process.returncode == 0


def main() -> int:
    """Supervise the state directory that the environment names, until this process is asked to stop."""
    stopping = stop_event()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        supervise(
            StateDirectory.of(os.environ),
            lambda arguments, folder: _restart(arguments, folder, stopping),
            stopping.wait,
        )
    except InputError as error:
        logger.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
