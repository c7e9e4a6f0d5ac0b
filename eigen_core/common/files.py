"""Files: atomic replacement that survives a power cut, checksums, and messages for errors of the file system."""

import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from eigen_core.common.errors import FULL_DISK, FullDiskError, InputError

HIDDEN = "."
"""First character of the names of temporary and other internal files, which a store of runs does not list."""
_TEMPORARY = f"{HIDDEN}writing-"
_BLOCK = 4 << 20
_OPEN_ATTEMPTS = 10
_OPEN_PAUSE_SECONDS = 0.01

_NOT_A_FOLDER = "a file is in the place of a folder. Move it away or {instead}"
_FORBIDDEN = "permission is denied. Change the permissions or {instead}"
_FULL = "there is no space left. Free some or {instead}"
_CANNOT_LOCK = "its file system cannot lock files. Choose a folder on a local disk"
_NOT_REGULAR = errno.ENXIO, "not a regular file"
_REASONS = {
    errno.ENOENT: "a folder is missing and cannot be created there. Create it or {instead}",
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EISDIR: "a folder is in the place of a file. Move it away or {instead}",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: "the file system is read-only. Make it writable or {instead}",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file would exceed the size limit of the process or the file system. Raise the limit or {instead}",
    errno.ENAMETOOLONG: "the path is too long. Choose a shorter one",
    errno.ELOOP: "a symbolic link is in its place, or links form a circle. Remove them or {instead}",
    errno.ENXIO: "a folder, link, pipe, socket or device is in its place. Move it away",
    errno.ENOLCK: _CANNOT_LOCK,
    errno.EOPNOTSUPP: _CANNOT_LOCK,
}


@contextmanager
def explained(action: str, path: Path, instead: str = "choose another path") -> Iterator[None]:
    """Raise an `OSError` of the block as an `InputError` if the user can correct it (see `_REASONS`), else unchanged.

    The message is "Cannot {action} {path}: {reason}.", where `action` is, for example, "save generation 7 in". Most
    reasons end with advice to the user, which ends with "or {instead}". A full disk is a `FullDiskError`.
    """
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        kind = FullDiskError if error.errno in FULL_DISK else InputError
        raise kind(f"Cannot {action} {path}: {reason.format(instead=instead)}.") from error


def require_place(path: Path, instead: str = "choose another path") -> None:
    """Raise `InputError` if no file can be written at `path`; create nothing. For a check before a long computation."""
    with explained("write", path, instead):
        nearest = nearest_existing(path.absolute().parent)
        if not nearest.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not shutil.disk_usage(nearest).total:
            # The system makes the files there, as in /proc.
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(path).st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))


def nearest_existing(path: Path) -> Path:
    """Return `path` if it exists, otherwise its nearest existing parent."""
    return next(found for found in (path, *path.parents) if os.path.lexists(found))


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents and sync them to disk; an existing folder is not an error."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that new and renamed files in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, open for writing and reading, that replaces `path` atomically and durably at the block's end.

    Missing folders are created. If the block raises an error, the new file is deleted and `path` stays unchanged.
    """
    with temporary_file(path.parent) as (file, temporary):
        yield file
        sync_file(file)
        os.replace(temporary, path)
        with suppress(FileNotFoundError):  # another process has emptied and removed the folder
            sync_folder(path.parent)


def write_file(path: Path, content: bytes, instead: str = "choose another path") -> None:
    """Write a file in place of one that may exist (`replacing`); `instead`, and its errors: see `explained`."""
    with explained("write", path, instead), replacing(path) as file:
        file.write(content)


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new hidden file in `folder` and yield it with its path; delete it afterwards unless it was renamed."""
    path = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    file = _open_new(path)
    try:
        with file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def _open_new(path: Path) -> BinaryIO:
    """Create a file and its folder; retry if another process removes the folder while it is still empty."""
    for _ in range(_OPEN_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):
            make_folder(path.parent)
            return open(path, "x+b")
        time.sleep(_OPEN_PAUSE_SECONDS)
    make_folder(path.parent)
    return open(path, "x+b")


class ForeignPlaceError(InputError):
    """A link, pipe or device is in a place of Eigen's own files, or a hard link in that of one which Eigen changes."""

    def __init__(self, path: str | Path) -> None:
        found = "hard link to another file" if os.path.isfile(path) else "pipe, socket, device or folder"
        kind = "symbolic link" if os.path.islink(path) else found
        super().__init__(
            f"{path} is a {kind}. Eigen uses none among its own files, since it could lead to files that are not "
            "Eigen's: replace it by the file or folder itself. To use another disk, move the whole folder of runs "
            "there, and name that folder as the store."
        )


def place(root: Path, name: str) -> Path:
    """Return `root / name`; `ForeignPlaceError` if a folder between the two is a link.

    A user has chosen the folder `root`, which may be a link. Somebody else may have made its content, from where links
    would lead reads, writes and deletions anywhere. What is at the returned path is not examined: do not follow it.
    """
    found = os.fspath(root)
    *folders, last = name.split("/")
    for folder in folders:
        found = f"{found}/{folder}"
        if os.path.islink(found):
            raise ForeignPlaceError(found)
    return Path(found, last)


def require_own_files(root: Path, name: str, is_checked: Callable[[str], bool] = lambda _: False) -> Path:
    """Return `root / name`, a folder that may be missing; `ForeignPlaceError` if `place` raises it.

    It is also raised if anything in the folder is a link, pipe, socket or device, except where `is_checked` is true for
    its name (relative to the folder): whoever reads those files takes anything but a regular file for damage.
    """
    path = place(root, f"{name}/")
    folders = [""]
    with explained("read", path):
        while folders:
            folder = folders.pop()
            with suppress(FileNotFoundError), os.scandir(f"{path}/{folder}") as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    elif (
                        not entry.is_file(follow_symlinks=False)
                        and not is_checked(f"{folder}{entry.name}")
                        # A temporary file of another process may be gone by now.
                        and os.path.lexists(entry.path)
                    ):
                        raise ForeignPlaceError(entry.path)
    return path


@contextmanager
def open_regular_file(path: Path, *, follow: bool = True) -> Iterator[BufferedReader]:
    """Open a file to read; `IsADirectoryError` if it is a folder, pipe or device, or a link unless `follow`."""
    # O_NONBLOCK: opening a pipe would wait until a process writes to it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise IsADirectoryError(*_NOT_REGULAR) from error
        raise
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(*_NOT_REGULAR)
        yield file


def open_own_file(path: Path, flags: int) -> int:
    """Open a file of Eigen's own and return its descriptor; `ForeignPlaceError` if it is no regular file, or a link."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ForeignPlaceError(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignPlaceError(path)
    return descriptor


def open_to_append(path: Path) -> BinaryIO:
    """Open a file of Eigen's own to append and read; create it if it is missing.

    Raises as `open_own_file`, also if the file has another name (hard link), by which it may be no file of Eigen's.
    """
    file = open(open_own_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b")  # noqa: SIM115 - the caller closes it
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise ForeignPlaceError(path)
    file.seek(0, os.SEEK_END)
    return file


def without_file(path: Path) -> Path:
    """Remove the file at `path`, if any, and return `path`: a file written into could have another name (hard link)."""
    path.unlink(missing_ok=True)
    return path


def temporary_files_in(folder: Path) -> list[Path]:
    """Return the temporary files below `folder`: killed processes left them, or other processes are writing them."""
    return sorted(
        Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name.startswith(_TEMPORARY)
    )


def crc32c(content: bytes, before: int = 0) -> int:
    """Return the CRC-32C of `content`; `before` is the CRC-32C of the bytes that precede it."""
    return int(google_crc32c.extend(before, content))


def stream_checksum(stream: BinaryIO) -> tuple[int, int]:
    """Return size (bytes) and CRC-32C of a stream from its current position to its end, in bounded memory."""
    size = checksum = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        checksum = crc32c(block, checksum)
    return size, checksum
