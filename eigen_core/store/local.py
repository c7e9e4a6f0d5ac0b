"""A store in a folder of this machine: every file lasts once it is there, and is there as a whole or not at all."""

import errno
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from eigen_core.errors import InputError
from eigen_core.store.checksums import crc32c, file_checksum, stream_checksum
from eigen_core.store.deadline import within
from eigen_core.store.interface import (
    MissingObjectError,
    ObjectExistsError,
    Progress,
    StoredObject,
    StoreUnavailableError,
)
from eigen_core.store.location import explained
from eigen_core.store.names import HIDDEN, checked_name, checked_prefix, is_hidden

_TEMPORARY = f"{HIDDEN}writing-"
_BLOCK = 4 << 20
_ATTEMPTS = 10
_CHECK_SECONDS = 11.0
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
"""Errors of what is no file: nothing, a circle of links, a socket, a device that is not there."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, so that they last; one that is there already is no error."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write; once the block ends without an error its content lasts under `path`, as a whole.

    Until then, and if the block fails, what was there stays there. Folders are made as needed. The file may be read
    again inside the block.

    Raises:
        OSError: the file system refuses.
    """
    with _new_file(path.parent) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_names(path.parent)


def leftovers(folder: Path) -> list[Path]:
    """Return the files anywhere in `folder` that a killed process was writing, or a living one still is."""
    return sorted(
        Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name.startswith(_TEMPORARY)
    )


class LocalStore:
    """A store in a folder (see `Store`), which need not exist yet.

    Objects are files; parts of names that begin with a dot are hidden, whoever put them there. Its file system must
    have hard links: they are what makes `create` safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def path(self, name: str) -> Path:
        """Return where an object's file is, or would be."""
        return self.folder / checked_name(name)

    def time(self) -> datetime:
        """See `Store.time`. It is this machine's clock: one machine at a time writes to a run in a folder."""
        return datetime.now(UTC)

    def check(self) -> None:
        """See `Store.check`."""
        late = f"The store {self.folder} did not answer within {_CHECK_SECONDS:.0f} seconds: is its disk attached?"
        within(_CHECK_SECONDS, self._check, late)

    def _check(self) -> None:
        with self._usable("keep runs in"):
            make_folder(self.folder)
            with _new_file(self.folder) as (file, temporary):
                file.write(b"?")
                file.flush()
                os.fsync(file.fileno())
                second = temporary.with_name(f"{temporary.name}-link")
                _link(temporary, second)
                second.unlink()
            os.scandir(self.folder).close()

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """See `Store.put_file`."""
        target = self.path(name)
        with open(path, "rb", buffering=0) as source, self._usable(f"store {name} in"):
            _copy(source, target, moved)

    def put(self, name: str, content: bytes) -> None:
        """See `Store.put`."""
        target = self.path(name)
        with self._usable(f"store {name} in"), replacing(target) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> None:
        """See `Store.create`."""
        target = self.path(name)
        with self._usable(f"store {name} in"), _new_file(target.parent) as (file, temporary):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            try:
                _link(temporary, target)
            except FileExistsError as error:
                # Over NFS a link whose reply was lost is tried again, and meets itself.
                if not os.path.samestat(os.lstat(temporary), os.lstat(target)):
                    raise ObjectExistsError(f"{self.folder} has {name} already") from error
            _sync_names(target.parent)

    def read(self, name: str, limit: int) -> bytes:
        """See `Store.read`."""
        with self._usable(f"read {name} in"), self._opened(name) as file:
            # Python takes room for as much as it is asked for, however short the file is.
            content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        if len(content) > limit:
            raise StoreUnavailableError(f"{name} in {self.folder} is longer than {limit:,} bytes")
        return content

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """See `Store.fetch`."""
        with self._usable(f"read {name} in"), self._opened(name) as source, file_errors(f"copy {name} to", path):
            _copy(source, path, moved)

    def holds(self, name: str, path: Path) -> bool:
        """See `Store.holds`."""
        known = self.stat(name)
        if known is None or known.bytes != path.stat().st_size:
            return False
        wanted = file_checksum(path)
        try:
            with self._usable(f"read {name} in"), self._opened(name) as file:
                return stream_checksum(file) == wanted
        except MissingObjectError:
            return False

    def stat(self, name: str) -> StoredObject | None:
        """See `Store.stat`."""
        with self._usable(f"look at {name} in"):
            return _stored(name, self.path(name))

    def objects(self, prefix: str) -> list[StoredObject]:
        """See `Store.objects`."""
        with self._usable(f"list {prefix or 'the runs'} in"):
            return sorted(self._walk(checked_prefix(prefix)), key=lambda found: found.name)

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        for parent, folders, names in os.walk(self.folder / prefix, onerror=refuse):
            folders[:] = [folder for folder in folders if not is_hidden(folder)]
            for name in names:
                path = Path(parent, name)
                if not is_hidden(name) and (found := _stored(path.relative_to(self.folder).as_posix(), path)):
                    yield found

    def folders(self, prefix: str) -> list[str]:
        """See `Store.folders`."""
        with self._usable(f"list {prefix or 'the runs'} in"):
            try:
                with os.scandir(self.folder / checked_prefix(prefix)) as entries:
                    return sorted(entry.name for entry in entries if not is_hidden(entry.name) and entry.is_dir())
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                if not prefix:
                    raise
                return []

    def delete(self, names: Iterable[str]) -> None:
        """See `Store.delete`. Folders that become empty go too, as they do in a bucket."""
        with self._usable("remove files from"):
            parents = set()
            for name in names:
                path = self.path(name)
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    parents.add(path.parent)
            for parent in parents:
                self._settle(parent)

    def _settle(self, folder: Path) -> None:
        """Remove a folder that became empty, and those above it; else let what was removed from it last.

        That an empty folder is gone need not last: what comes back after a power cut can be removed again.
        """
        if self._remove_empty(folder):
            return
        _sync_names(folder)

    def _remove_empty(self, folder: Path) -> bool:
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
        return removed

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """Open an object's file to read."""
        missing = f"{self.folder} has no {name}"
        try:
            # A pipe in the place of the file would wait for somebody to write to it.
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise MissingObjectError(missing) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise MissingObjectError(missing)
            with open(descriptor, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(descriptor)

    @contextmanager
    def _usable(self, action: str) -> Iterator[None]:
        with file_errors(action, self.folder):
            yield


@contextmanager
def file_errors(action: str, path: Path) -> Iterator[None]:
    """Turn errors of the file system into those that a store may raise."""
    try:
        with explained(action, path):
            yield
    except OSError as error:
        raise StoreUnavailableError(f"Cannot {action} {path}: {error.strerror or error}") from error


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Give a new temporary file in a folder and its path; it is removed at the end if it still has that name."""
    path = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    file = _open_new(path)
    try:
        with file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def _open_new(path: Path) -> BinaryIO:
    """Create a file; somebody who clears away empty folders may remove its folder in between."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.01)
        with suppress(FileNotFoundError, FileExistsError):
            make_folder(path.parent)
            return open(path, "x+b")
    make_folder(path.parent)
    return open(path, "x+b")


def _sync_names(folder: Path) -> None:
    """Make the names in a folder last, unless somebody has emptied and removed it since."""
    with suppress(FileNotFoundError):
        sync_folder(folder)


def _link(path: Path, new: Path) -> None:
    """Give a file of ours a second name in its folder, unless there is a file of that name."""
    try:
        os.link(path, new)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise InputError(
                f"Cannot keep runs in {new.parent}: its file system has no hard links, without which two runs could "
                "overwrite each other. Choose a store on another disk."
            ) from error
        raise


def _copy(source: BinaryIO, target: Path, moved: Progress | None) -> None:
    """Copy a stream into a file and read it again, to see that it is the same, before it gets its name."""
    size = checksum = 0
    with replacing(target) as file:
        while block := source.read(_BLOCK):
            file.write(block)
            size += len(block)
            checksum = crc32c(block, checksum)
            if moved is not None:
                moved(len(block))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if stream_checksum(file) != (size, checksum):
            raise StoreUnavailableError(f"{target} does not read as it was written: is its disk failing?")


def _stored(name: str, path: Path) -> StoredObject | None:
    """Return what is known of a file, None if there is none."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredObject(name, status.st_size, datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC))
