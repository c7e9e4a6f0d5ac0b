"""Processes that outlive the command that starts them, and how they are stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from eigen_core.store.files import explained
from eigen_core.store.locks import ProcessIdentity
from flows.endings import Stopped

_POLL_SECONDS = 0.1
_READY_POLL_SECONDS = 0.2
_KILLED_SECONDS = 10.0
_MOST_TAIL_BYTES = 64 << 10


class LocalProcess(ProcessIdentity):
    """A process of this machine, which can be looked at and stopped."""

    def children(self, *, recursive: bool = False) -> list["LocalProcess"]:
        """Return the processes that it has started and that have not ended; `recursive`: those of its children too."""
        process = self._process()
        try:
            children = [] if process is None else process.children(recursive=recursive)
            return [LocalProcess.of(child.pid) for child in children]
        except psutil.NoSuchProcess:
            return []

    def runs(self, word: str) -> bool:
        """Whether one of the words of its command is `word`."""
        process = self._process()
        try:
            return process is not None and word in process.cmdline()
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        process = self._process()
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                return

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most `seconds`, and return whether it has."""
        return wait_until(lambda: not self.is_alive(), seconds)

    def stop(self, seconds: float) -> bool:
        """Ask it to end, kill it with all processes below it after `seconds`, and return whether it was killed."""
        self.send(signal.SIGTERM)
        killed = not self.wait(seconds)
        if killed:
            self.kill()
        return killed

    def kill(self) -> bool:
        """Kill it and all processes below it, and return whether they have ended."""
        everything = [self, *self.children(recursive=True)]
        for process in everything:
            process.send(signal.SIGKILL)
        return all(process.wait(_KILLED_SECONDS) for process in everything)

    def _process(self) -> psutil.Process | None:
        """Return it as psutil does, which sends a signal to no later process with its number; None if it has ended."""
        try:
            process = psutil.Process(self.pid)
        except psutil.NoSuchProcess:
            return None
        return process if self.is_alive() else None


def wait_until(condition: Callable[[], bool], seconds: float, every: float = _POLL_SECONDS) -> bool:
    """Wait until `condition` holds, asked `every` so many seconds, at most `seconds`; return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every)
    return True


def start(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> "Started":
    """Start a process that outlives this one: in a session of its own, its output appended to a file.

    Raises:
        InputError: the log cannot be written to.
    """
    with explained("write to", log, "set EIGEN_HOME to another folder"), open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(process, log)


class Started:
    """A process that this one has started.

    Attributes:
        process: its identity.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        # Until this process asks how it ended, its number is not given to another.
        self.process = LocalProcess.of(process.pid)

    def ended(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._process.poll()

    def wait_until_ready(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        """Return when `ready` says so.

        Raises:
            Stopped: the process, called `name` in the message, ended, or was not ready within `seconds`.
        """
        in_time = wait_until(lambda: self.ended() is not None or ready(), seconds, _READY_POLL_SECONDS)
        status = self.ended()
        if not in_time or status is not None:
            how = f"was not ready within {seconds:.0f} s" if status is None else f"ended with status {status}"
            raise Stopped(f"The {name} {how}. {last_words(self._log)}")

    def stop(self, seconds: float = _KILLED_SECONDS) -> None:
        """Stop it as `LocalProcess.stop` does."""
        self.process.stop(seconds)
        self._process.wait()


def last_words(log: Path) -> str:
    """Return a sentence with the last line of a log and where the log is."""
    return f"Its last line was: {' '.join(last_lines(log, 1)) or 'none'}. Its log is {log}."


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not blank; none if it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _MOST_TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-count:]
