"""Blobs on this machine: files that are named by their SHA-256, and read only when that is right."""

import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from eigen_core.checkpoint.integrity import DamagedFileError, blob_name
from eigen_core.common.files import HIDDEN, make_folder, sync_folder

_SAVING = ".saving"
_READ_BYTES = 1 << 20


def blob_path(run: Path, sha256: str) -> Path:
    """Return the file of a blob in a run's folder, whether it exists or not."""
    return run / blob_name(sha256)


def write_blob(run: Path, fill: Callable[[Path], object]) -> tuple[str, int]:
    """Write a blob durably, with the content that `fill` writes to a path; return its SHA-256 and size (bytes).

    A blob of this content that exists already is replaced, since it may be damaged.
    """
    folder = run / _SAVING
    make_folder(folder)
    temporary = folder / uuid.uuid4().hex
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        fill(temporary)
        # The writer of safetensors leaves a file that only its owner may read.
        temporary.chmod(mode)
        with opened(temporary) as file:
            sha256, size = _sha256(file), os.fstat(file.fileno()).st_size
            os.fsync(file.fileno())
        path = blob_path(run, sha256)
        make_folder(path.parent)
        if path.is_dir() and not path.is_symlink():
            # No file takes a folder's place. What it holds may be of use to its owner.
            path.rename(path.with_name(f"{HIDDEN}{path.name}-{uuid.uuid4().hex}"))
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return sha256, size


def clear_unfinished(run: Path) -> int:
    """Remove the files that a killed process was writing and return their number; no process may be writing."""
    folder = run / _SAVING
    if not folder.is_dir():
        return 0
    names = os.listdir(folder)
    for name in names:
        (folder / name).unlink()
    folder.rmdir()
    return len(names)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; `IsADirectoryError` if it is no regular file."""
    # A pipe in the place of the file would wait until a process writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError
        yield file


def check_blob(path: Path, size: int, read: Callable[[int], None] | None = None) -> None:
    """Raise `DamagedFileError` unless a blob's file has this size (bytes) and the SHA-256 that is its name.

    `read` is called with the number of further bytes that were read.
    """
    try:
        with opened(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise DamagedFileError(f"has {found:,} bytes instead of {size:,}")
            if _sha256(file, read) != path.name:
                raise DamagedFileError("does not match its SHA-256")
    except FileNotFoundError as error:
        raise DamagedFileError("is missing") from error
    except IsADirectoryError as error:
        raise DamagedFileError("is not a file") from error
    except OSError as error:
        raise DamagedFileError(f"cannot be read ({error.strerror})") from error


def _sha256(file: BinaryIO, read: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]  # BinaryIO lacks it; files opened raw have it
        digest.update(buffer[:count])
        if read is not None:
            read(count)
    return digest.hexdigest()
