"""Locks between processes of one machine, and the identity of a process, which can prove that it has ended."""

import fcntl
import os
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.checkpoint.store import ANOTHER_STORE
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained

_TRY_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
_MOST_BYTES = 1_000
_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
_ENDED = ("Z", "X", "x")


class RunLockedError(InputError):
    """Another process is writing to the run."""


class ProcessIdentity(BaseModel):
    """Identifies a process, distinct from every other one on any machine at any time.

    Without `/proc` some fields are None; then neither `is_alive` nor `has_ended` is ever true.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str
    pid: int
    boot: str | None = None
    """The kernel's identifier of the current boot."""
    namespace: str | None = None
    """Namespace of the PID: each container has its own."""
    started: int | None = None
    """Start of the process (clock ticks since boot)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def of(cls, pid: int) -> Self:
        status = _status(pid) if _sees_itself() else None
        return cls(
            host=socket.gethostname(),
            pid=pid,
            boot=_boot(),
            namespace=_namespace(),
            started=None if status is None else status[1],
        )

    def is_alive(self) -> bool:
        """Whether it certainly runs on this machine."""
        status = self._status_here()
        # A killed process keeps its PID until its parent waits for it.
        return status is not None and status[1] == self.started and status[0] not in _ENDED

    def has_ended(self) -> bool:
        """Whether it ran on this machine and has certainly ended: its PID is unused, or another process has it."""
        if not self._is_of_this_machine():
            return False
        try:
            # Some /proc hide processes of other users; a signal's error does not.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return self._status_here() is not None and not self.is_alive()

    def _is_of_this_machine(self) -> bool:
        known = None not in (self.boot, self.namespace, self.started) and self.pid > 0
        return known and (self.boot, self.namespace) == (_boot(), _namespace()) and _sees_itself()

    def _status_here(self) -> tuple[str, int] | None:
        return _status(self.pid) if self._is_of_this_machine() else None


def this_process() -> ProcessIdentity:
    return ProcessIdentity.of(os.getpid())


class FileLock:
    """An advisory lock (flock) on a file, which the kernel frees when its process ends.

    The file names the holder. Release does not remove it: two processes could then lock two different files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, seconds: float = _TRY_SECONDS) -> bool:
        """Take the lock and return whether that succeeded within `seconds`.

        `is_taken` in another process briefly holds a shared lock. `InputError` if the path is no regular file.
        """
        with ExitStack() as closing:
            descriptor = self._opened(os.O_RDWR | os.O_CREAT, closing)
            end = time.monotonic() + seconds
            while not _flock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() >= end:
                    return False
                time.sleep(_PAUSE_SECONDS)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, this_process().model_dump_json().encode(), 0)
            closing.pop_all()
            self._descriptor = descriptor
        return True

    def require(self, what: str) -> None:
        """Take the lock; `RunLockedError` says that `what`, such as "Run 'mine'", is in use, and by which process."""
        with explained("lock", self._path, ANOTHER_STORE):
            if not self.acquire():
                holder = self.holder() or "another process"
                raise RunLockedError(f"{what} is in use by {holder}: wait until it ends, or stop it.")

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def is_taken(self) -> bool:
        """Whether any process, this one included, holds the lock."""
        with explained("check the lock", self._path, ANOTHER_STORE), ExitStack() as closing:
            try:
                descriptor = self._opened(os.O_RDONLY, closing)
            except FileNotFoundError:
                return False
            return not _flock(descriptor, fcntl.LOCK_SH)

    def holder(self) -> ProcessIdentity | None:
        try:
            with ExitStack() as closing:
                content = os.pread(self._opened(os.O_RDONLY, closing), _MOST_BYTES, 0)
            return ProcessIdentity.model_validate_json(content)
        except (OSError, InputError, ValidationError):
            return None

    def _opened(self, flags: int, closing: ExitStack) -> int:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        closing.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{self._path} is not a regular file and cannot be locked: remove it.")
        return descriptor


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot() -> str | None:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _link(name: str) -> str | None:
    try:
        return os.readlink(_PROC / name)
    except OSError:
        return None


def _namespace() -> str | None:
    return _link("self/ns/pid")


def _sees_itself() -> bool:
    """Whether /proc has the PIDs of this process's namespace."""
    return _link("self") == str(os.getpid())


def _status(pid: int) -> tuple[str, int] | None:
    try:
        content = (_PROC / str(pid) / "stat").read_text(errors="replace")
        # The command's name, in brackets, may hold anything, brackets and spaces too.
        fields = content.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
