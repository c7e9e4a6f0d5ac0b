"""The state directory of `eigen up`: a record of each process (server, worker) that it has started, and its log."""

import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.checkpoint.locks import FileLock, ProcessIdentity
from eigen_core.checkpoint.store_location import is_remote, store_from_environment
from eigen_core.common.errors import InputError, Stopped
from eigen_core.common.files import ForeignPlaceError, explained, open_to_append, place, write_file
from eigen_core.common.process import default_cache_root
from eigen_core.config import Config, merge
from eigen_core.config.loading import changed, values_of_environment
from eigen_core.config.model import CheckpointConfig

Component = Literal["server", "worker"]
COMPONENTS: tuple[Component, ...] = ("server", "worker")
_FILES = (
    "lock",
    "port",
    ".gitignore",
    *(f"{component}.{kind}" for component in COMPONENTS for kind in ("json", "log")),
)
_KINDS = (stat.S_IFREG, stat.S_IFDIR)

_POLL_SECONDS = 0.1
_KILLED_SECONDS = 10.0
_MOST_TAIL_BYTES = 64 << 10


class LocalProcess(ProcessIdentity):
    """A process of this machine, to inspect or stop; it may have ended."""

    def children(self, *, recursive: bool = False) -> list["LocalProcess"]:
        with suppress(psutil.NoSuchProcess):
            return [LocalProcess.of(child.pid) for child in self._process().children(recursive=recursive)]
        return []

    def runs(self, word: str) -> bool:
        """Return whether `word` is an argument of the process's command."""
        with suppress(psutil.NoSuchProcess):
            return word in self._process().cmdline()
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(psutil.NoSuchProcess):
            self._process().send_signal(number)

    def wait(self, seconds: float) -> bool:
        return wait_until(lambda: not self.is_alive(), seconds)

    def stop(self, seconds: float) -> bool:
        """Send SIGTERM; after `seconds`, kill the process and its descendants. Return whether it was killed."""
        self.send(signal.SIGTERM)
        if self.wait(seconds):
            return False
        self.kill()
        return True

    def kill(self) -> bool:
        """Kill the process and its descendants, and return whether all have ended."""
        everything = [self, *self.children(recursive=True)]
        for process in everything:
            process.send(signal.SIGKILL)
        return all(process.wait(_KILLED_SECONDS) for process in everything)

    def _process(self) -> psutil.Process:
        """Return psutil's object, which never signals a later process of the same id; it may raise `NoSuchProcess`."""
        process = psutil.Process(self.pid)
        if not self.is_alive():
            raise psutil.NoSuchProcess(self.pid)
        return process


def wait_until(condition: Callable[[], bool], seconds: float, every: float = _POLL_SECONDS) -> bool:
    """Call `condition` every `every` seconds until it is true, at most for `seconds`; return whether it became true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every)
    return True


def end_of_log(log: Path) -> str:
    """Return two sentences for an error message: the last line of a log that is not blank, and the log's path."""
    lines: list[str] = []
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _MOST_TAIL_BYTES, 0))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f"The last line that it printed was: {lines[-1] if lines else 'none'}. Its log is {log}."


class ProcessRecord(BaseModel):
    """Record of a server or worker that `eigen up` has started."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    process: LocalProcess
    api: str
    """URL of Prefect's API: that of this server, or the one that this worker polls."""
    log: Path
    folder: Path
    """Working directory of the process, and of a worker's flow runs."""
    store: str | None
    """The store that EIGEN_STORE names in the worker's environment variables; None if it is not set."""
    code: str | None = None
    """Version of Eigen's code (`code_version`) that has started a worker; None: a server, or an older version."""


class StateDirectory:
    """Records, logs and settings of what `eigen up` and `eigen launch` started, in folder `path`; it may be missing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "StateDirectory":
        """Return the state directory that EIGEN_HOME names, else `.eigen` in the working directory, which is foreign.

        `ForeignPlaceError` if one of Eigen's own files in it is something else.
        """
        given = environ.get("EIGEN_HOME", "").strip()
        path = Path(os.path.expanduser(given)).absolute() if given else place(Path.cwd(), ".eigen/")
        for name in _FILES:
            if os.path.lexists(path / name) and stat.S_IFMT(os.lstat(path / name).st_mode) not in _KINDS:
                raise ForeignPlaceError(str(path / name))
        return cls(path)

    @property
    def worker_name(self) -> str:
        """Name of the worker of this state directory: the same at each start, so that the server lists it only once."""
        return f"{socket.gethostname()}-{hashlib.sha256(str(self.path).encode()).hexdigest()[:6]}"

    def log(self, name: Component) -> Path:
        return self.path / f"{name}.log"

    def start(
        self,
        name: Component,
        command: Sequence[str],
        environment: Mapping[str, str],
        ready: Callable[[], bool],
        seconds: float,
        *,
        api: str,
        store: str | None = None,
        code: str | None = None,
    ) -> ProcessRecord:
        """Start a process that outlives this one, record it, and return its record when `ready()` is true.

        It has the working directory of this process and a new session, and appends its output to its log. If it ends,
        or is not ready within `seconds`, stop it, remove its record, and raise `Stopped`. `api`, `store` and `code` go
        into the record.
        """
        folder, log = Path.cwd(), self.log(name)
        with explained("write to", log, "set EIGEN_HOME to another folder"), open_to_append(log) as output:
            child = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # The kernel does not reuse the process id before this process has read the exit status.
        process = LocalProcess.of(child.pid)
        record = ProcessRecord(process=process, api=api, log=log, folder=folder, store=store, code=code)
        try:
            self.write(name, record)
            in_time = wait_until(lambda: child.poll() is not None or ready(), seconds, 0.2)
            if child.poll() is not None or not in_time:
                how = f"ended with status {child.returncode}" if in_time else f"was not ready within {seconds:.0f} s"
                raise Stopped(f"The {name} {how}. {end_of_log(log)}")
        except BaseException:
            # Also after Ctrl-C: leave no process that is not ready, and no record of it.
            process.stop(_KILLED_SECONDS)
            child.wait()
            self.forget(name)
            raise
        return record

    def read(self, name: Component) -> ProcessRecord | None:
        """Return a process's record, None if none was started or `eigen down` ended it; `InputError` if unreadable."""
        path = self._file(name)
        try:
            return ProcessRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise InputError(
                f"{path} cannot be read ({reason}). It says which process is the {name}: look for that process with "
                "`ps`, stop it, and remove the file."
            ) from error

    def running(self, name: Component) -> ProcessRecord | None:
        record = self.read(name)
        return record if record is not None and record.process.is_alive() else None

    def write(self, name: Component, record: ProcessRecord) -> None:
        self._replace(self._file(name), record.model_dump_json(indent=2))

    def port(self) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.path / "port").read_text())
        return None

    def remember_port(self, port: int) -> None:
        self._replace(self.path / "port", str(port))

    def launch_settings(self, run: str) -> dict[str, Any]:
        """Return the settings (`MACHINE_SETTINGS`, and a task) that `eigen launch` recorded for a run; may be empty."""
        path = self._launch_file(run)
        try:
            return dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} cannot be read: remove it, and launch run '{run}' again.") from error

    @contextmanager
    def new_launch_settings(self, run: str, own: Mapping[str, Any]) -> Iterator[None]:
        """Record the `MACHINE_SETTINGS` of a run (nested) for its flow runs; undo it if the block is refused."""
        path, before = self._launch_file(run), self.launch_settings(run)
        self._replace(path, json.dumps(own))
        try:
            yield
        except InputError:
            path.unlink()
            if before:
                self._replace(path, json.dumps(before))
            raise

    def _launch_file(self, run: str) -> Path:
        """Return the file with the `MACHINE_SETTINGS` of a run, in the cache: `path` may come from somebody else."""
        # A server may give any text as the name of a run.
        named = hashlib.sha256(f"{self.path.resolve()}\n{run}".encode(errors="surrogatepass")).hexdigest()
        return default_cache_root() / "launched" / f"{named}.json"

    def forget(self, name: Component) -> None:
        """Remove the record of a process; its log stays."""
        with self._explained():
            self._file(name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, timeout_seconds: float = 0.0) -> Iterator[None]:
        """Make the folder, and keep any other `eigen up` and `eigen down` out of it during the block.

        Raise an `InputError` if one of them is still at work there after `timeout_seconds`.
        """
        with self._explained():
            self.path.mkdir(parents=True, exist_ok=True)
            # Logs and settings in this folder are private, and of no use to git.
            self._replace(self.path / ".gitignore", "*")
            lock = FileLock(self.path / "lock")
            is_free = lock.acquire(timeout_seconds)
        if not is_free:
            raise InputError(f"Another `eigen up` or `eigen down` is at work in {self.path}: wait until it has ended.")
        try:
            yield
        finally:
            lock.release()

    def _explained(self) -> AbstractContextManager[None]:
        return explained("write to", self.path, "set EIGEN_HOME to another folder")

    def _file(self, name: Component) -> Path:
        return self.path / f"{name}.json"

    def _replace(self, path: Path, text: str) -> None:
        write_file(path, f"{text}\n".encode(), "set EIGEN_HOME or EIGEN_CACHE to another folder")


def absolute_store(store: str, folder: Path) -> str:
    """Return a store's absolute path (a relative one begins in `folder`); a remote store's URL stays as it is."""
    if is_remote(store):
        return store
    return str(folder / os.path.expanduser(store))


def as_worker_sees(config: Config, worker: ProcessRecord) -> Config:
    """Return `config` with the `checkpoint.store` and `checkpoint.local` that flow runs of `worker` will use."""
    given = config.checkpoint
    located = {"store": store_here(worker, given.store), "local": absolute_store(given.local, worker.folder)}
    return config.model_copy(update={"checkpoint": given.model_copy(update=located)})


def store_here(worker: ProcessRecord | None, given: str | None = None) -> str:
    """Return the store of a training: `given` if it is not the default, else that of EIGEN_STORE, else the default.

    EIGEN_STORE is read from the record of `worker`; if that is None, from this process's environment variables.
    """
    folder = Path.cwd() if worker is None else worker.folder
    default = CheckpointConfig().store
    if given is not None and given != default:
        return absolute_store(given, folder)
    named = worker.store if worker is not None else store_from_environment(os.environ)
    return absolute_store(named or default, folder)


def of_this_machine(config: Config, launched: Mapping[str, Any] | None = None) -> Config:
    """Return a configuration with this machine's settings: from environment variables, overridden by `launched`.

    `launched`: the settings that `eigen launch` has recorded here for the run; a task among them is ignored. None: only
    a default store is replaced, by that of EIGEN_STORE.
    """
    own: dict[str, Any] = {}
    if launched is not None:
        own = merge(values_of_environment(os.environ), {key: value for key, value in launched.items() if key != "task"})
        own |= {} if own.get("scheduler") is None else {"workers": 0}
    store, named = own.get("checkpoint", {}).get("store", config.checkpoint.store), store_from_environment(os.environ)
    if named is not None and store == CheckpointConfig().store:
        own = merge(own, {"checkpoint": {"store": named}})
    return changed(config, own)
