"""A store in a folder of this machine."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from eigen_core.checkpoint.integrity import opened
from eigen_core.checkpoint.store import (
    MissingObjectError,
    Store,
    StoredObject,
    StoreUnavailableError,
    checked_name,
    checked_prefix,
    has_content,
    is_hidden,
    store_errors,
    within,
)
from eigen_core.common.errors import InputError
from eigen_core.common.files import (
    make_folder,
    replacing,
    sync_file,
    sync_folder,
    temporary_file,
)

_CHECK_SECONDS = 11.0
# Errors of a missing file, a loop of links, a socket, a missing device.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore(Store):
    """A folder, which need not exist yet. Its file system must have hard links, which make `create` atomic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        return str(self.folder)

    def path(self, name: str) -> Path:
        return self.folder / checked_name(name)

    def time(self) -> datetime:
        return datetime.now(UTC)

    def check(self) -> None:
        late = f"The store {self.folder} did not answer within {_CHECK_SECONDS:.0f} seconds: is its disk attached?"
        within(_CHECK_SECONDS, self._check, late)

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
        with self._errors(f"read {name} in"), self._opened(name) as file:
            # Python allocates as many bytes as it is asked to read, however short the file is.
            content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        if len(content) > limit:
            raise StoreUnavailableError(f"{name} in {self.folder} is longer than {limit:,} bytes")
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

        for parent, folders, names in os.walk(self.folder / prefix, onerror=refuse):
            folders[:] = [folder for folder in folders if not is_hidden(folder)]
            for name in names:
                path = Path(parent, name)
                if not is_hidden(name) and (found := _stored(path.relative_to(self.folder).as_posix(), path)):
                    yield found

    def folders(self, prefix: str) -> list[str]:
        with self._errors(f"list {prefix or 'the runs'} in"):
            try:
                with os.scandir(self.folder / checked_prefix(prefix)) as entries:
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
        """Remove an empty folder and its parents that become empty; sync one that is not empty."""
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

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        with ExitStack() as closing:
            try:
                file = closing.enter_context(opened(self.path(name)))
            except OSError as error:
                if error.errno not in _NO_FILE and not isinstance(error, IsADirectoryError):
                    raise
                raise MissingObjectError(f"{self.folder} has no {name}") from error
            yield file

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
        status = path.stat()
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredObject(name, status.st_size, datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC))
