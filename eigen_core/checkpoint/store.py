"""A store keeps runs as named objects, each complete or absent: its interface, and stores in folders."""

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from eigen_core.common.errors import InputError
from eigen_core.common.files import (
    HIDDEN,
    explained,
    make_folder,
    open_regular_file,
    place,
    replacing,
    sync_file,
    sync_folder,
    temporary_file,
)

Progress = Callable[[int], None]
"""A transfer calls it with the number of bytes moved since the last call."""

ANOTHER_FOLDER = "choose another folder (checkpoint.store, or checkpoint.local if the store is a bucket)"
"""Advice in errors about a folder of runs on this machine."""
EVALUATION_LOG = "looks/"
"""Folder of a store with the evaluation log: one object for each evaluation of agents on given days of prices."""
EVALUATION_CHAIN = "looks-chain/"
"""Folder of a store with the hash chain that reveals changes of the evaluation log."""
CHAIN_HEAD = "ledger.json"
"""Object of a store with the number and the SHA-256 of the newest entry of the hash chain (`EVALUATION_CHAIN`)."""
WALKS = "walks/"
"""Folder of a store with the definitions and results of walk-forward evaluations (`eigen walk`)."""
_CHECK_SECONDS = 11.0
# Errors of a path with no regular file: it is missing, a loop of links, a socket or a missing device.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_RUN_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,100}")


class StoreUnavailableError(Exception):
    """The store gave no answer, or an invalid one, after all retries. A later attempt may succeed."""


class MissingObjectError(Exception):
    """The store has no object of the name that was read."""


@dataclass(frozen=True)
class StoredObject:
    """Name and size (bytes) of an object in a store; `modified`: time of its last write, by the store's clock (UTC)."""

    name: str
    bytes: int
    modified: datetime


class Store(Protocol):
    """Named objects under one URL. Names are relative and have slashes, for example `RUN/blobs/ab/abcd...`.

    All methods raise:
        InputError: the store cannot be used as it is and waiting will not help: no credentials, no permission, no such
            bucket, no space. The message says what to do.
        StoreUnavailableError: the store gave no answer, or an invalid one; a later attempt may succeed.
        ValueError: `checked_name` does not accept a name.

    Methods may be called from any thread.
    """

    @property
    def url(self) -> str:
        """The store's URL, or the path of its folder, as the setting `checkpoint.store` has it."""

    def time(self) -> datetime:
        """Return the current time of the store's clock, which dates its objects (UTC); write nothing."""

    def check(self) -> None:
        """Check within 15 seconds that objects can be listed, written and read, or raise one of the errors above."""

    def put(self, name: str, content: bytes) -> None:
        """Store a small object under `name`; it atomically replaces an object of that name."""

    def create(self, name: str, content: bytes) -> bool:
        """Store a small object unless one of that name exists; return whether the object then has this `content`.

        Of several concurrent calls one succeeds. A retry after a lost reply recognises its own object by the content,
        so different writers must write different contents.
        """

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's content; `MissingObjectError` if none, `StoreUnavailableError` above `limit` bytes."""

    def stat(self, name: str) -> StoredObject | None:
        """Return size and date of an object, None if it does not exist."""

    def objects(self, prefix: str) -> list[StoredObject]:
        """Return all objects whose names start with `prefix` ("" or a folder's name with its slash), sorted by name."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly under `prefix` ("" or a folder's name with its slash), sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; an object that does not exist is not an error."""


@runtime_checkable
class RemoteStore(Store, Protocol):
    """A store that is not on this machine (a bucket); files are copied to and from it."""

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Store a file's content under `name`, in place of an object of that name, in bounded memory.

        When this returns, the object is complete: its size and checksum were compared with the file's.
        """

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Copy an object to the file `path`, in bounded memory, atomically; `MissingObjectError` if there is none."""

    def holds(self, name: str, path: Path) -> bool:
        """Whether the object exists and has the size and checksum of the file `path`."""


def has_content(store: Store, name: str, content: bytes) -> bool:
    with suppress(MissingObjectError):
        known = store.stat(name)
        return known is not None and known.bytes == len(content) and store.read(name, len(content)) == content
    return False


@contextmanager
def store_errors(action: str, path: Path) -> Iterator[None]:
    """Raise an `OSError` of the block as `InputError` if `explained` does, otherwise as `StoreUnavailableError`."""
    try:
        with explained(action, path, ANOTHER_FOLDER):
            yield
    except OSError as error:
        raise StoreUnavailableError(f"Cannot {action} {path}: {error.strerror or error}") from error


def call_with_timeout(seconds: float, action: Callable[[], object], late: str) -> None:
    """Run `action` in a thread and raise its error; if it runs longer than `seconds`, `StoreUnavailableError(late)`.

    In that case the thread goes on, since a call into a dead network file system cannot be interrupted.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised again in the calling thread
            failures.append(error)

    thread = threading.Thread(target=run, name="eigen-store-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreUnavailableError(late)
    if failures:
        raise failures[0]


def checked_name(name: str) -> str:
    """Return `name`; `ValueError` if a part between slashes is empty, begins with a dot or has an invalid character."""
    if is_hidden(name):
        raise ValueError(
            f"{name[:200]!r} cannot name an object in a store: a part between slashes is empty, begins with a dot, or "
            "has a backslash or a control character."
        )
    return name


def checked_prefix(prefix: str) -> str:
    """Return `prefix`; `ValueError` if it is neither "" nor a folder's name with a slash at its end."""
    if prefix and (not prefix.endswith("/") or is_hidden(prefix[:-1])):
        raise ValueError(f"{prefix[:200]!r} is not the name of a folder in a store, with a slash at its end")
    return prefix


def is_hidden(name: str) -> bool:
    """Whether `checked_name` refuses `name`, such as that of a temporary file; listings leave out objects."""
    return not all(
        part and not part.startswith(HIDDEN) and part.isprintable() and "\\" not in part for part in name.split("/")
    )


def check_run_name(name: str) -> str:
    """Return `name`; `InputError` if a run cannot have this name, or a store uses it for something else than a run."""
    if name == CHAIN_HEAD or f"{name}/" in (EVALUATION_LOG, EVALUATION_CHAIN, WALKS):
        kind = "file" if name == CHAIN_HEAD else "folder"
        raise InputError(f"A run cannot be named {name!r}: the store has a {kind} of that name. Choose another name.")
    if not _RUN_NAME.fullmatch(name):
        raise InputError(
            f"A run cannot be named {name[:120]!r}: use 1 to 100 letters (a to z), digits, dots, dashes and "
            "underscores, and no dot or dash first."
        )
    return name


def default_run_name(preset: str, moment: datetime | None = None) -> str:
    """Return the default name of a run: its preset's name and the `moment` of its creation (UTC), by default now."""
    return f"{preset}-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"


class LocalStore(Store):
    """A store in a folder, which need not exist yet. `create` needs a file system with hard links, to be atomic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        return str(self.folder)

    def path(self, name: str) -> Path:
        return place(self.folder, checked_name(name))

    def time(self) -> datetime:
        return datetime.now(UTC)

    def check(self) -> None:
        late = f"The store {self.folder} did not answer within {_CHECK_SECONDS:.0f} seconds: check its disk."
        call_with_timeout(_CHECK_SECONDS, self._check, late)

    def _check(self) -> None:
        with self._errors("keep runs in"):
            make_folder(self.folder)
            with temporary_file(self.folder) as (file, temporary):
                file.write(b"?")
                sync_file(file)
                second = temporary.with_name(f"{temporary.name}-link")
                _link(temporary, second)
                second.unlink()
            os.scandir(self.folder).close()

    def put(self, name: str, content: bytes) -> None:
        target = self.path(name)
        with self._errors(f"store {name} in"), replacing(target) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        target = self.path(name)
        with self._errors(f"store {name} in"), temporary_file(target.parent) as (file, temporary):
            file.write(content)
            sync_file(file)
            try:
                _link(temporary, target)
            except FileExistsError:
                return has_content(self, name, content)
            with suppress(FileNotFoundError):
                sync_folder(target.parent)
            return True

    def read(self, name: str, limit: int) -> bytes:
        with self._errors(f"read {name} in"):
            try:
                with open_regular_file(self.path(name), follow=False) as file:
                    # `read(n)` allocates n bytes, however short the file is.
                    content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
            except OSError as error:
                if error.errno not in _NO_FILE and not isinstance(error, IsADirectoryError):
                    raise
                raise MissingObjectError(f"{self.folder} has no {name}") from error
        if len(content) > limit:
            raise StoreUnavailableError(f"{name} in {self.folder} is longer than {limit:,} bytes, the limit")
        return content

    def stat(self, name: str) -> StoredObject | None:
        with self._errors(f"look at {name} in"):
            return _stored(name, self.path(name))

    def objects(self, prefix: str) -> list[StoredObject]:
        with self._errors(f"list {prefix or 'the runs'} in"):
            return sorted(self._walk(checked_prefix(prefix)), key=lambda found: found.name)

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        for parent, folders, names in os.walk(place(self.folder, prefix), onerror=refuse):
            folders[:] = [folder for folder in folders if not is_hidden(folder)]
            for name in names:
                path = Path(parent, name)
                if not is_hidden(name) and (found := _stored(path.relative_to(self.folder).as_posix(), path)):
                    yield found

    def folders(self, prefix: str) -> list[str]:
        with self._errors(f"list {prefix or 'the runs'} in"):
            try:
                with os.scandir(place(self.folder, checked_prefix(prefix))) as entries:
                    return sorted(entry.name for entry in entries if not is_hidden(entry.name) and entry.is_dir())
            except (FileNotFoundError, NotADirectoryError) as error:
                if isinstance(error, NotADirectoryError) and not prefix:
                    raise
                return []

    def delete(self, names: Iterable[str]) -> None:
        with self._errors("remove files from"):
            parents = set()
            for name in names:
                path = self.path(name)
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    parents.add(path.parent)
            for parent in parents:
                self._remove_empty(parent)

    def _remove_empty(self, folder: Path) -> None:
        """Delete `folder` and its parents as long as they are empty; if `folder` is not, sync it to disk."""
        removed = False
        while folder != self.folder:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            removed = True
            folder = folder.parent
        if not removed:
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def _errors(self, action: str) -> AbstractContextManager[None]:
        return store_errors(action, self.folder)


def _link(path: Path, new: Path) -> None:
    try:
        os.link(path, new)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise InputError(
                f"Cannot keep runs in {new.parent}: its file system has no hard links, without which two runs could "
                "overwrite each other. Choose a folder on another disk."
            ) from error
        raise


def _stored(name: str, path: Path) -> StoredObject | None:
    try:
        status = path.lstat()
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredObject(name, status.st_size, datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC))


@dataclass(frozen=True)
class GcsLocation:
    """A bucket of Google Cloud Storage and a prefix of names in it ("": none), without slashes at the prefix's ends."""

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
