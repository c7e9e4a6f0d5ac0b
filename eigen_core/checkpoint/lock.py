"""One process at a time writes to a run."""

import fcntl
import json
import os
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path

from eigen_core.errors import InputError
from eigen_core.store.files import ANOTHER_STORE, explained

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


class RunLockedError(InputError):
    """Another process is writing to the run."""


class RunLock:
    """The advisory lock (flock) on a run. The kernel frees it when its process ends, however that happens."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock and write this process's number and host into its file.

        Raises:
            RunLockedError: it is taken, by another process or by another object of this one.
        """
        with explained("lock", self._path, ANOTHER_STORE):
            # A pipe would wait for its other end.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            with ExitStack() as closing:
                closing.callback(os.close, descriptor)
                self._require_file(descriptor)
                if not _take(descriptor):
                    raise RunLockedError(
                        f"Run '{self._run}' is in use by {_holder(descriptor)}: wait until it ends, or stop it."
                    )
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
                closing.pop_all()
            self._descriptor = descriptor

    def release(self) -> None:
        """Free the lock; the file stays, since removing it would let two processes lock two files."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def is_taken(self) -> bool:
        """Whether any process, this one included, holds the lock."""
        with explained("look at the lock", self._path, ANOTHER_STORE):
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return False
            try:
                self._require_file(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
        return False

    def _require_file(self, descriptor: int) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{self._path} is no file, so run '{self._run}' cannot be locked: remove it.")


def _take(descriptor: int) -> bool:
    """Try for half a second: `is_taken` holds a shared lock for an instant."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _holder(descriptor: int) -> str:
    """Return who holds the lock, in words."""
    try:
        content = json.loads(os.pread(descriptor, 1_000, 0))
        return f"process {content['pid']} on {content['host']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
