"""A bucket in the memory of this process, through fsspec: for trying things out, and for tests."""

import threading
from datetime import UTC, datetime
from typing import Any, BinaryIO

from fsspec.implementations.memory import MemoryFileSystem

from eigen_core.store.bucket import NEW, Entry
from eigen_core.store.checksums import crc32c
from eigen_core.store.interface import MissingObjectError, ObjectExistsError, Progress
from eigen_core.store.location import RemotePlace

# All file systems in memory of a process share their files, and none of them expects threads.
_lock = threading.RLock()


class MemoryBucket:
    """A bucket that ends with this process (see `Bucket`)."""

    def __init__(self, place: RemotePlace) -> None:
        self._place = place
        self._files: Any = MemoryFileSystem()
        self._root = f"/{place.bucket}/{place.prefix}".rstrip("/") + "/"

    @property
    def url(self) -> str:
        """See `Bucket.url`."""
        return self._place.url

    def hasty(self, seconds: float) -> "MemoryBucket":  # noqa: ARG002 - it never makes anybody wait
        """See `Bucket.hasty`."""
        return self

    def check_access(self) -> None:
        """See `Bucket.check_access`."""

    def time(self) -> datetime:
        """See `Bucket.time`."""
        return datetime.now(UTC)

    def entry(self, name: str) -> Entry | None:
        """See `Bucket.entry`."""
        with _lock:
            if not self._files.isfile(self._root + name):
                return None
            content = self._files.cat_file(self._root + name)
            modified = self._files.modified(self._root + name).astimezone(UTC)
        return _entry(name, content, modified)

    def entries(self, prefix: str) -> list[Entry]:
        """See `Bucket.entries`."""
        with _lock:
            names = [str(path)[len(self._root) :] for path in self._files.find(self._root)]
            return [entry for name in names if name.startswith(prefix) and (entry := self.entry(name))]

    def folders(self, prefix: str) -> list[str]:
        """See `Bucket.folders`."""
        names = [entry.name[len(prefix) :] for entry in self.entries(prefix)]
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def upload(self, name: str, content: bytes, version: str | None = None) -> Entry:
        """See `Bucket.upload`."""
        with _lock:
            known = self.entry(name)
            if version is not None and version != (known.version if known else NEW):
                raise ObjectExistsError(f"{self.url} has {name} already, in another version")
            self._files.pipe_file(self._root + name, bytes(content))
        return _entry(name, content, datetime.now(UTC))

    def upload_file(self, name: str, file: BinaryIO, size: int, checksum: int, moved: Progress) -> None:  # noqa: ARG002 - nothing is damaged on the way
        """See `Bucket.upload_file`."""
        self.upload(name, file.read(size))
        moved(size)

    def read(self, name: str, count: int) -> tuple[bytes, int | None]:
        """See `Bucket.read`."""
        with _lock:
            content = self._content(name)
        return content[:count], crc32c(content)

    def download(self, entry: Entry, first: int, count: int) -> bytes:
        """See `Bucket.download`."""
        with _lock:
            content = self._content(entry.name)
        if _version(content) != entry.version:
            raise MissingObjectError(f"{self.url} has another {entry.name} now")
        return content[first : first + count]

    def remove(self, name: str) -> None:
        """See `Bucket.remove`."""
        with _lock:
            if self._files.isfile(self._root + name):
                self._files.rm_file(self._root + name)

    def _content(self, name: str) -> bytes:
        try:
            return bytes(self._files.cat_file(self._root + name))
        except FileNotFoundError as error:
            raise MissingObjectError(f"{self.url} has no {name}") from error


def _entry(name: str, content: bytes, modified: datetime) -> Entry:
    return Entry(name, len(content), modified, crc32c(content), _version(content))


def _version(content: bytes) -> str:
    """Tell two contents of an object apart, and both from one that is not there."""
    return f"{len(content)}-{crc32c(content)}"
