"""Locks on a run: between processes of one machine a file lock, between machines a lease in the run's store.

One process at a time holds the lease and writes the run's manifests; the holders are numbered from 1 (`epoch`):

    <run>/lease/<epoch>        created once, by the process that takes the lease, with its identity
    <run>/lease/<epoch>.beat   rewritten by the holder, so that other processes see that it is alive
    <run>/lease/<epoch>.<manifest>   an announcement: exists while the holder may be creating that manifest

The age of a lease is measured by the store's clock alone, since the clocks of two machines may differ.
"""

import fcntl
import logging
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eigen_core.checkpoint.integrity import DELETED_MARK, LEASES, MANIFESTS
from eigen_core.checkpoint.store import ANOTHER_FOLDER, MissingObjectError, Store, StoredObject, StoreUnavailableError
from eigen_core.common.errors import InputError, UnavailableError
from eigen_core.common.files import ForeignPlaceError, explained, open_own_file
from eigen_core.common.records import Printable

logger = logging.getLogger(__name__)

_TRY_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
_PROC = Path("/proc")
_NAMESPACE = "self/ns/pid"
_STATE, _STARTED = 0, 19
_ENDED = ("Z", "X", "x")

# Assumed `lease_seconds` of a lease whose record cannot be read.
_DEFAULT_SECONDS = 90.0
_HEARTBEATS_PER_LEASE = 4
_KEPT_EPOCHS = 8
_RELEASE_SECONDS = 5.0
_MOST_BYTES = 1 << 16
_RECORD_NAME = re.compile(r"(\d{6,18})")
_ANNOUNCEMENT = re.compile(r"\d{6,18}\.\d{6,18}-[0-9a-f]{8}\.json")

_Document = TypeVar("_Document", bound=BaseModel)

# Tokens of the leases that this process holds. Another lease whose owner is this process was not released: it is free.
_held_here: set[str] = set()


class InUseError(UnavailableError):
    """Another process holds the file lock or the lease of a run; the message names that process if it is known."""


class ProcessIdentity(BaseModel):
    """Identifies a process among all processes of all machines at all times.

    Where `/proc` cannot be read, some fields are None; then neither `is_alive` nor `has_ended` is ever true.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: Printable
    pid: int
    boot: str | None = None
    """The kernel's random identifier of the boot during which the process runs (`boot_id`)."""
    namespace: str | None = None
    """Linux namespace in which `pid` counts; each container has another one."""
    started: int | None = None
    """Start time of the process (clock ticks since boot)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def of(cls, pid: int) -> Self:
        status = _status(pid) if _sees_itself() else None
        return cls(
            host=socket.gethostname(),
            pid=pid,
            boot=_boot(),
            namespace=_link(_NAMESPACE),
            started=None if status is None else status[1],
        )

    def is_alive(self) -> bool:
        """Whether the process certainly runs on this machine; False also if that is unknown."""
        status = self._status_here()
        # A killed process keeps its PID until its parent waits for it.
        return status is not None and status[1] == self.started and status[0] not in _ENDED

    def has_ended(self) -> bool:
        """Whether the process certainly ran on this machine and has ended: no process, or a newer one, has its PID."""
        if not self._is_of_this_machine():
            return False
        try:
            # /proc may hide processes of other users; the error of a signal tells a hidden one from an ended one.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return self._status_here() is not None and not self.is_alive()

    def _is_of_this_machine(self) -> bool:
        known = None not in (self.boot, self.namespace, self.started) and self.pid > 0
        return known and (self.boot, self.namespace) == (_boot(), _link(_NAMESPACE)) and _sees_itself()

    def _status_here(self) -> tuple[str, int] | None:
        return _status(self.pid) if self._is_of_this_machine() else None


def this_process() -> ProcessIdentity:
    return ProcessIdentity.of(os.getpid())


class FileLock:
    """An advisory lock (flock) on a file, which the kernel frees when its process ends.

    The file contains its holder's identity. `release` keeps it: otherwise two processes could lock two files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, seconds: float = _TRY_SECONDS) -> bool:
        """Take the lock and return whether that succeeded within `seconds`.

        Even a free lock may need a wait, since `is_taken` in another process briefly holds a shared lock. Raises as
        `open_own_file`.
        """
        with ExitStack() as closing:
            descriptor = self._open(os.O_RDWR | os.O_CREAT, closing)
            end = time.monotonic() + seconds
            while not _flock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() >= end:
                    return False
                time.sleep(_PAUSE_SECONDS)
            self._refuse_hard_link(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, this_process().model_dump_json().encode(), 0)
            closing.pop_all()
            self._descriptor = descriptor
        return True

    def require(self, what: str) -> None:
        """Take the lock; if another process holds it, raise `InUseError` about `what`, such as "Run 'mine'"."""
        with explained("lock", self._path, ANOTHER_FOLDER):
            if not self.acquire():
                holder = self.holder() or "another process"
                raise InUseError(f"{what} is in use by {holder}: wait until it ends, or stop it.")

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def is_taken(self) -> bool:
        """Whether any process, this one included, holds the lock."""
        with explained("check the lock", self._path, ANOTHER_FOLDER), ExitStack() as closing:
            try:
                descriptor = self._open(os.O_RDONLY, closing)
            except FileNotFoundError:
                return False
            return not _flock(descriptor, fcntl.LOCK_SH)

    def holder(self) -> ProcessIdentity | None:
        try:
            with ExitStack() as closing:
                content = os.pread(self._open(os.O_RDONLY, closing), _MOST_BYTES, 0)
            return ProcessIdentity.model_validate_json(content)
        except (OSError, InputError, ValidationError):
            return None

    def _refuse_hard_link(self, descriptor: int) -> None:
        """Raise `ForeignPlaceError` if the file has another name and is no lock: an archive can link to any file."""
        if os.fstat(descriptor).st_nlink > 1 and (content := os.pread(descriptor, _MOST_BYTES, 0)):
            try:
                ProcessIdentity.model_validate_json(content)
            except ValidationError:
                raise ForeignPlaceError(self._path) from None

    def _open(self, flags: int, closing: ExitStack) -> int:
        descriptor = open_own_file(self._path, flags)
        closing.callback(os.close, descriptor)
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


def _sees_itself() -> bool:
    """Whether the PIDs in /proc are those of this process's namespace, not those of another container or the host."""
    return _link("self") == str(os.getpid())


def _status(pid: int) -> tuple[str, int] | None:
    try:
        content = (_PROC / str(pid) / "stat").read_text(errors="replace")
        # The command's name, in brackets, may hold anything, brackets and spaces too.
        fields = content.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


class LeaseLostError(Exception):
    """Another process has taken the lease on a run: this process must write nothing more to that run."""


class _LeaseRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str
    owner: ProcessIdentity
    lease_seconds: float = Field(gt=0, le=1e6)


class _Heartbeat(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str
    beats: int
    released: bool


@dataclass(frozen=True)
class LeaseState:
    """The lease on a run, as read from the store.

    `epoch` is the number of its last holder, counted from 1, and `owner` that process (None: unreadable). `age_seconds`
    is the time since its last renewal by the store's clock; infinite if it was released or its holder certainly ended.
    """

    epoch: int
    owner: ProcessIdentity | None
    age_seconds: float
    lease_seconds: float

    @property
    def live(self) -> bool:
        """Whether the holder may still be writing."""
        return self.age_seconds < self.lease_seconds


class Lease:
    """The right to write a run's manifests, under a number (`epoch`) that no other holder ever had; see `acquire`.

    Methods that access the store also raise its errors (see `Store`), which leave the lease unchanged.

    As a context manager, the lease is renewed in the background, so that no other process takes it, and released at the
    end. Only `check` proves that this process still holds it.

    The operating system may suspend the holder between a check and the write after it for longer than the lease lasts.
    So the holder announces a manifest before the check. The next holder finds the announcement and first reserves the
    manifest's name: either that manifest exists by then, with all its files, or the former holder cannot create it.
    """

    def __init__(self, store: Store, run: str, epoch: int, record: _LeaseRecord, clock: Callable[[], float]) -> None:
        self._store = store
        self._run = run
        self._record = record
        self._clock = clock
        self._renewed = clock()
        self._beats = 0
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._lost: str | None = None
        self._thread: threading.Thread | None = None
        self.epoch = epoch

    @classmethod
    def acquire(
        cls,
        store: Store,
        run: str,
        lease_seconds: float,
        *,
        last_epoch: int = 0,
        holder_has_ended: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Take the lease on a run, which expires if it is not renewed for `lease_seconds`.

        `InUseError` if another process holds it. `last_epoch` is the highest epoch in the run's manifests.
        `holder_has_ended`: True if any former holder has certainly ended, since this process holds the run's file lock.
        """
        record = _LeaseRecord(token=uuid.uuid4().hex, owner=this_process(), lease_seconds=lease_seconds)
        while True:
            state = lease_state(store, run, holder_has_ended=holder_has_ended)
            if state is not None and state.live:
                left = max(1, math.ceil(state.lease_seconds - state.age_seconds))
                raise InUseError(
                    f"Run '{run}' in {store.url} is in use by {state.owner or 'another process'}, which renewed its "
                    f"lease {state.age_seconds:.0f} s ago: wait until it ends or stop it. If it was killed, the run "
                    f"can be resumed here in {left} s."
                )
            lease = cls(store, run, max(0 if state is None else state.epoch, last_epoch) + 1, record, clock)
            if lease._create():
                return lease

    def raise_if_lost(self) -> None:
        """Raise `LeaseLostError` if an earlier check or renewal found the lease lost; does not access the store."""
        if self._lost is not None:
            raise LeaseLostError(self._lost)

    def check(self) -> None:
        """Raise `LeaseLostError` if another process has taken the lease; no error if it has only expired."""
        if self._clock() - self._renewed > self._record.lease_seconds / 2:
            self.renew()
        self._look_for_another()

    def announce(self, manifest: str) -> None:
        """Announce that this process is about to create the manifest of this name, then `check` the lease."""
        self._store.put(self._announcement(manifest), b"")
        self.check()

    def conclude(self, manifest: str) -> None:
        """Delete the announcement of a manifest that now exists; if that fails, only log it, since it is harmless."""
        self._prune([self._announcement(manifest)])

    def renew(self) -> None:
        """Show other processes that this one is alive; `LeaseLostError` if an earlier check found the lease lost."""
        with self._writing:
            self.raise_if_lost()
            if not self._ended.is_set():
                started = self._clock()
                self._put_heartbeat(released=False)
                self._renewed = started

    def release(self) -> None:
        """Release the lease. If the store does not answer, only log that: the lease then expires by itself."""
        if self._ended.is_set():
            return
        self._ended.set()
        _held_here.discard(self._record.token)
        if self._lost is not None:
            return
        if not self._writing.acquire(timeout=_RELEASE_SECONDS):
            logger.warning("Run '%s': %s does not answer; %s", self._run, self._store.url, self._expires())
            return
        try:
            self._put_heartbeat(released=True)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': the lease cannot be released (%s); %s", self._run, error, self._expires())
        finally:
            self._writing.release()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._renew_regularly, name=f"eigen-lease-{self._run}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _create(self) -> bool:
        """Create the record of this lease's epoch; False if another process has taken this epoch or a later one."""
        name = _record_name(self._run, self.epoch)
        if not self._store.create(name, self._record.model_dump_json().encode()):
            return False
        found = self._store.objects(f"{self._run}/{LEASES}")
        epochs = _epochs(found)
        # Records of old epochs are deleted, so a process that was suspended could create one of them again.
        if max(epochs, default=self.epoch) > self.epoch:
            return False
        announcements = self._prevent_announced(found)
        _held_here.add(self._record.token)
        old = [epoch for epoch in epochs if epoch <= self.epoch - _KEPT_EPOCHS]
        names = [name for epoch in old for name in (_record_name(self._run, epoch), _heartbeat_name(self._run, epoch))]
        self._prune(names + announcements)
        return True

    def _announcement(self, manifest: str) -> str:
        return f"{_record_name(self._run, self.epoch)}.{manifest.removeprefix(MANIFESTS)}"

    def _prevent_announced(self, found: list[StoredObject]) -> list[str]:
        """Reserve the manifest names that former holders announced but did not use; return the announcements' names."""
        announced = [thing.name for thing in found if _ANNOUNCEMENT.fullmatch(thing.name.rpartition("/")[2])]
        for name in announced:
            self._store.create(f"{self._run}/{MANIFESTS}{name.partition('.')[2]}", DELETED_MARK)
        return announced

    def _prune(self, names: list[str]) -> None:
        try:
            self._store.delete(names)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old records of the lease cannot be deleted (harmless): %s", self._run, error)

    def _put_heartbeat(self, *, released: bool) -> None:
        self._beats += 1
        heartbeat = _Heartbeat(token=self._record.token, beats=self._beats, released=released)
        self._store.put(_heartbeat_name(self._run, self.epoch), heartbeat.model_dump_json().encode())

    def _look_for_another(self) -> None:
        if self._lost is None:
            newest = max(_epochs(self._store.objects(f"{self._run}/{LEASES}")), default=self.epoch)
            if newest <= self.epoch:
                return
            self._lost = (
                f"Run '{self._run}' in {self._store.url} was taken over by another process (lease epoch {newest}, here "
                f"{self.epoch}): this process stops and writes nothing more to it."
            )
        raise LeaseLostError(self._lost)

    def _renew_regularly(self) -> None:
        while not self._ended.wait(self._record.lease_seconds / _HEARTBEATS_PER_LEASE):
            try:
                self.renew()
                self._look_for_another()
            except LeaseLostError as error:
                logger.error("%s", error)
                return
            except (StoreUnavailableError, InputError) as error:
                logger.warning("Run '%s': the lease could not be renewed and is tried again soon: %s", self._run, error)

    def _expires(self) -> str:
        return f"until the lease expires, within {self._record.lease_seconds:.0f} s, no other machine can take the run."


def lease_state(store: Store, run: str, *, holder_has_ended: bool = False) -> LeaseState | None:
    """Return the lease on a run, None if no process ever took one; `holder_has_ended`: see `Lease.acquire`."""
    found = store.objects(f"{run}/{LEASES}")
    epoch = max(_epochs(found), default=0)
    if epoch == 0:
        return None
    record = _parsed(_LeaseRecord, store, _record_name(run, epoch))
    owner = None if record is None else record.owner
    lease_seconds = _DEFAULT_SECONDS if record is None else record.lease_seconds
    if holder_has_ended or (record is not None and _is_free(store, run, epoch, record)):
        return LeaseState(epoch, owner, math.inf, lease_seconds)
    signs = (_record_name(run, epoch), _heartbeat_name(run, epoch))
    heard = max(thing.modified for thing in found if thing.name in signs)
    age = max(0.0, (store.time() - heard).total_seconds())
    return LeaseState(epoch, owner, age, lease_seconds)


def is_live(store: Store, run: str) -> bool:
    state = lease_state(store, run)
    return state is not None and state.live


def _is_free(store: Store, run: str, epoch: int, record: _LeaseRecord) -> bool:
    if record.owner.has_ended():
        return True
    if record.owner.started is not None and record.owner == this_process() and record.token not in _held_here:
        return True
    heartbeat = _parsed(_Heartbeat, store, _heartbeat_name(run, epoch))
    return heartbeat is not None and heartbeat.token == record.token and heartbeat.released


def _parsed(kind: type[_Document], store: Store, name: str) -> _Document | None:
    """Return the model in a small JSON object of the store, None if the object is missing or damaged."""
    try:
        return kind.model_validate_json(store.read(name, _MOST_BYTES))
    except (MissingObjectError, ValidationError):
        return None


def _record_name(run: str, epoch: int) -> str:
    return f"{run}/{LEASES}{epoch:06d}"


def _heartbeat_name(run: str, epoch: int) -> str:
    return f"{_record_name(run, epoch)}.beat"


def _epochs(found: list[StoredObject]) -> list[int]:
    matches = (_RECORD_NAME.fullmatch(thing.name.rpartition("/")[2]) for thing in found)
    return sorted(int(match[1]) for match in matches if match is not None)
