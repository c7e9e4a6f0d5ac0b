"""The folder with what `eigen up` knows of its processes: `.eigen` in the working directory, or EIGEN_HOME."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.errors import InputError
from eigen_core.store.files import explained, replacing
from flows.operations.processes import ProcessId

FOLDER = ".eigen"

_POLL_SECONDS = 0.2

Part = Literal["server", "worker"]
PARTS: tuple[Part, ...] = ("server", "worker")
Kept = Part | Literal["supervisor"]
"""A process that `eigen up` starts: a part, or what restarts those that have ended."""


class Record(BaseModel):
    """A process that was started, and where it is found."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    process: ProcessId
    api: str
    """URL of Prefect's API: the server's own, or the one that the worker asks."""
    log: Path
    folder: Path
    """Working directory: where the store `runs` is."""
    store: str | None
    """The store that its environment names."""
    machine: str | None
    """Where its process number counts; None if that is not known."""
    host: str | None = None
    """Address at which a server listens; None: it is no server."""


class Home:
    """What runs here, in one small file for each part.

    Attributes:
        path: the folder, absolute; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Home":
        """Return the folder that EIGEN_HOME names, else `.eigen` in the working directory."""
        given = environ.get("EIGEN_HOME", "").strip()
        return cls(Path(os.path.expanduser(given)).absolute() if given else Path.cwd() / FOLDER)

    def log(self, part: Kept) -> Path:
        """Return the log file of a part."""
        return self.path / f"{part}.log"

    def read(self, part: Kept) -> Record | None:
        """Return what is known of a part; None if it was not started from here, or was stopped.

        Raises:
            InputError: the file that says so cannot be read.
        """
        path = self._file(part)
        try:
            return Record.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise InputError(f"{self.path} is no folder: move it away, or set EIGEN_HOME to one.") from error
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise InputError(
                f"{path} cannot be read ({reason}): it says which {part} runs. Look for that with `ps`, stop it, and "
                "remove the file."
            ) from error

    def running(self, part: Kept) -> Record | None:
        """Return what is known of a part whose process is alive, None if there is none."""
        record = self.read(part)
        return record if record is not None and record.process.is_alive() else None

    def write(self, part: Kept, record: Record) -> None:
        """Remember a part, in one step.

        Raises:
            InputError: the folder cannot be written to.
        """
        self._replace(self._file(part), json.dumps(record.model_dump(mode="json"), indent=2))

    def port(self) -> int | None:
        """Return the port of the server that was started here last, None if that is not known."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return None

    def remember_port(self, port: int) -> None:
        """Remember the port of a server that was started here: it is to come back there.

        Raises:
            InputError: the folder cannot be written to.
        """
        self._replace(self.path / "port", str(port))

    def use_server(self) -> None:
        """Let `is_server_used` tell that this process asks the server that was started here, until it ends.

        Raises:
            InputError: the folder cannot be written to.
        """
        descriptor = self._opened("users")
        # Prefect prepares a flow run in the process that then becomes its engine, by `exec`.
        os.set_inheritable(descriptor, True)
        fcntl.flock(descriptor, fcntl.LOCK_SH)

    def is_server_used(self) -> bool:
        """Whether a training asks the server that was started here, or would if that answered.

        Raises:
            InputError: the folder cannot be written to.
        """
        descriptor = self._opened("users")
        try:
            return not _locked(descriptor, 0.0)
        finally:
            os.close(descriptor)

    def forget(self, part: Kept) -> None:
        """Forget a part that was stopped; its log stays."""
        with explained("write to", self.path):
            self._file(part).unlink(missing_ok=True)

    @contextmanager
    def alone(self, patience_seconds: float = 0.0) -> Iterator[None]:
        """Make the folder, and let no other `eigen up` or `eigen down` begin meanwhile.

        Args:
            patience_seconds: how long to wait for one that is under way.

        Raises:
            InputError: one is under way, or the folder cannot be written to.
        """
        with explained("write to", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # Logs and environments of processes: of no use to git, and private.
            (self.path / ".gitignore").write_text("*\n")
        descriptor = self._opened("lock")
        try:
            if not _locked(descriptor, patience_seconds):
                raise InputError(
                    f"Another `eigen up` or `eigen down` is at work in {self.path}: wait until it has ended."
                )
            yield
        finally:
            os.close(descriptor)

    def _file(self, part: Kept) -> Path:
        return self.path / f"{part}.json"

    def _opened(self, name: str) -> int:
        with explained("write to", self.path):
            return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _replace(self, path: Path, text: str) -> None:
        with explained("write to", self.path), replacing(path) as file:
            file.write(f"{text}\n".encode())


def _locked(descriptor: int, patience_seconds: float) -> bool:
    end = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True
