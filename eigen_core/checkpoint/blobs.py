"""Blobs on this machine: written in one pass, named by their SHA-256, and read only when that is right."""

import hashlib
import os
import stat
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from eigen_core.checkpoint.checksums import CHUNK_BYTES
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.names import blob_name
from eigen_core.store.files import make_folder, sync_folder
from eigen_core.store.interface import HIDDEN

_SAVING = ".saving"
_WORTH_A_THREAD = 1 << 20
_BACKLOG = 8
"""Pieces of a file that may be written and not hashed yet: waiting for each would switch threads twice a piece."""


class HashingFile:
    """A new file whose bytes are hashed while they are written, large pieces by a second thread.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed at the end of this object's own block
        self._stack = ExitStack()
        self._stack.callback(self._file.close)
        self._digest = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._hashing: deque[Future[None]] = deque()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def write(self, chunk: bytes | memoryview, *, lasting: bool = False) -> None:
        """Append bytes, which may be changed once this returns, unless they are `lasting`: then after `finish`."""
        if self._thread is None and len(chunk) >= _WORTH_A_THREAD:
            self._thread = self._stack.enter_context(ThreadPoolExecutor(1))
        if self._thread is None:
            self._digest.update(chunk)
            self._write_all(chunk)
        else:
            # One thread takes them in their order.
            self._hashing.append(self._thread.submit(self._digest.update, chunk))
            try:
                self._write_all(chunk)
            finally:
                self._wait_for_hashes(_BACKLOG if lasting else 0)
        self.size += len(chunk)

    def _wait_for_hashes(self, left: int) -> None:
        while len(self._hashing) > left:
            self._hashing.popleft().result()

    def _write_all(self, chunk: bytes | memoryview) -> None:
        left = memoryview(chunk)
        while left:
            left = left[self._file.write(left) :]

    def finish(self) -> str:
        """Make the content last and return its SHA-256, in hexadecimal."""
        os.fsync(self._file.fileno())
        self._wait_for_hashes(0)
        return self._digest.hexdigest()


class BlobFolder:
    """The blobs of a run on this machine.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._to_sync: set[Path] = set()

    def path(self, sha256: str) -> Path:
        """Return where a blob is, or would be."""
        return self._run / blob_name(sha256)

    def write(self, fill: Callable[[HashingFile], None]) -> tuple[str, int]:
        """Write what `fill` writes as a blob and return its SHA-256 and size (bytes); it lasts after `sync`.

        A blob of that content that is there already is replaced, so that a damaged one is made good.
        """
        folder = self._run / _SAVING
        make_folder(folder)
        temporary = folder / uuid.uuid4().hex
        try:
            with HashingFile(temporary) as file:
                fill(file)
                sha256 = file.finish()
            path = self.path(sha256)
            self._make_folder_of(path)
            if path.is_dir() and not path.is_symlink():
                # No file takes a folder's place. What it holds may be of use to its owner.
                path.rename(path.with_name(f"{HIDDEN}{path.name}-{uuid.uuid4().hex}"))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._to_sync.add(path.parent)
        return sha256, file.size

    def _make_folder_of(self, path: Path) -> None:
        """Make a blob's folder; its name lasts after `sync`, like the blob's own."""
        if path.parent.is_dir():
            return
        blobs = path.parent.parent
        make_folder(blobs)
        path.parent.mkdir(exist_ok=True)
        self._to_sync.add(blobs)

    def sync(self) -> None:
        """Make the names of all blobs last that were written so far."""
        while self._to_sync:
            sync_folder(self._to_sync.pop())

    def clear_unfinished(self) -> int:
        """Remove what a killed process was writing and return how many files that were; no process may be writing."""
        folder = self._run / _SAVING
        if not folder.is_dir():
            return 0
        names = os.listdir(folder)
        for name in names:
            (folder / name).unlink()
        folder.rmdir()
        return len(names)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read, without waiting for another process.

    Raises:
        OSError: it cannot be opened; `IsADirectoryError` for whatever is no regular file.
    """
    # A pipe in the place of the file would wait until a process writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError
        yield file


def check_blob(path: Path, size: int, read: Callable[[int], None] | None = None) -> None:
    """Compare a blob's file with its size (bytes) and with the SHA-256 that is its name.

    Args:
        path: the file.
        size: bytes that it must have.
        read: called with the number of further bytes that were read.

    Raises:
        DamagedFileError: it differs, or cannot be read.
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


def _sha256(file: BinaryIO, read: Callable[[int], None] | None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES // 8))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]  # BinaryIO lacks it; files opened raw have it
        digest.update(buffer[:count])
        if read is not None:
            read(count)
    return digest.hexdigest()
