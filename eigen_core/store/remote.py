"""A store elsewhere: whatever goes there or comes from there is compared with its checksum, and tried again."""

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from eigen_core.store import patience
from eigen_core.store.bucket import NEW, Bucket, Entry, LostUploadError
from eigen_core.store.checksums import crc32c, file_checksum, stream_checksum
from eigen_core.store.deadline import within
from eigen_core.store.gcs import BLOCK, GcsBucket
from eigen_core.store.interface import (
    MissingObjectError,
    ObjectExistsError,
    Progress,
    StoredObject,
    StoreUnavailableError,
)
from eigen_core.store.local import file_errors, replacing
from eigen_core.store.location import RemotePlace
from eigen_core.store.memory_bucket import MemoryBucket
from eigen_core.store.names import HIDDEN, checked_name, checked_prefix, is_hidden

_WHOLE_ATTEMPTS = 4
_PAUSE_SECONDS = 0.5
_CHECK_SECONDS = 11.0
_CHECK_PATIENCE_SECONDS = 8.0
_DELETIONS_AT_A_TIME = 8


def open_remote(place: RemotePlace) -> "RemoteStore":
    """Return the store at a place elsewhere; nothing is asked of it yet."""
    return RemoteStore(MemoryBucket(place) if place.scheme == "memory" else GcsBucket(place))


class RemoteStore:
    """A store in a bucket (see `Store`).

    On Google Cloud Storage `create` is safe among any number of machines, by a precondition that the service itself
    checks. In memory it is so among the threads of one process, which is all there is.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def url(self) -> str:
        """Such as gs://bucket/prefix."""
        return self._bucket.url

    def time(self) -> datetime:
        """See `Store.time`."""
        return self._bucket.time()

    def check(self) -> None:
        """See `Store.check`. A small object is written, read and removed."""
        late = (
            f"The store {self.url} did not answer within {_CHECK_SECONDS:.0f} seconds. Check the network of this "
            "machine; the store may also be down for a while."
        )
        within(_CHECK_SECONDS, self._check, late)

    def _check(self) -> None:
        bucket = self._bucket.hasty(_CHECK_PATIENCE_SECONDS)
        bucket.check_access()
        name = f"{HIDDEN}check-{uuid.uuid4().hex}"
        content = uuid.uuid4().bytes
        bucket.upload(name, content)
        try:
            found, _ = bucket.read(name, len(content))
        finally:
            bucket.remove(name)
        if found != content:
            raise StoreUnavailableError(f"The store {self.url} gives back something else than was written.")

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """See `Store.put_file`. A whole upload is begun anew up to three times."""
        checked_name(name)
        with open(path, "rb") as file:
            for _ in self._attempts(f"store {name}"):
                file.seek(0)
                size, checksum = stream_checksum(file)
                file.seek(0)
                try:
                    self._bucket.upload_file(name, file, size, checksum, moved or _ignore)
                except LostUploadError:
                    continue
                entry = self._bucket.entry(name)
                if entry is not None and (entry.size, entry.checksum) == (size, checksum):
                    return

    def put(self, name: str, content: bytes) -> None:
        """See `Store.put`."""
        checked_name(name)
        for _ in self._attempts(f"store {name}"):
            if self._bucket.upload(name, content).is_of(name, content):
                return

    def create(self, name: str, content: bytes) -> None:
        """See `Store.create`. Contents of different makers must differ: an object of this very content counts as ours.

        A request whose answer is lost may have been obeyed, and then meets its own object when it is sent again.
        """
        checked_name(name)
        version = NEW
        for _ in self._attempts(f"store {name}"):
            try:
                entry = self._bucket.upload(name, content, version)
            except ObjectExistsError:
                if self._reads_as(name, content):
                    return
                raise ObjectExistsError(f"{self.url} has {name} already") from None
            if entry.is_of(name, content):
                return
            # It was damaged on the way: what may be replaced is exactly that.
            version = entry.version if entry.name == name else version

    def _reads_as(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name, len(content)) == content
        except (MissingObjectError, StoreUnavailableError):
            return False

    def read(self, name: str, limit: int) -> bytes:
        """See `Store.read`."""
        checked_name(name)
        for _ in self._attempts(f"read {name}"):
            content, checksum = self._bucket.read(name, limit + 1)
            if len(content) > limit:
                raise StoreUnavailableError(f"{name} in {self.url} is longer than {limit:,} bytes")
            if checksum is None:
                entry = self._bucket.entry(name)
                checksum = entry.checksum if entry else None
            if crc32c(content) == checksum:
                return content
        raise AssertionError("unreachable: the attempts end with an error")

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """See `Store.fetch`. A whole download is begun anew up to three times."""
        checked_name(name)
        for _ in self._attempts(f"read {name}"):
            entry = self._bucket.entry(name)
            if entry is None:
                raise MissingObjectError(f"{self.url} has no {name}")
            try:
                with file_errors(f"copy {name} to", path), replacing(path) as file:
                    checksum = 0
                    for block in self._blocks(entry):
                        file.write(block)
                        checksum = crc32c(block, checksum)
                        if moved is not None:
                            moved(len(block))
                    if file.tell() != entry.size or checksum != entry.checksum:
                        raise _DamagedOnTheWayError
                    return
            except (_DamagedOnTheWayError, MissingObjectError):
                continue

    def _blocks(self, entry: Entry) -> Iterator[bytes]:
        for first in range(0, entry.size, BLOCK):
            yield self._bucket.download(entry, first, min(BLOCK, entry.size - first))

    def holds(self, name: str, path: Path) -> bool:
        """See `Store.holds`."""
        entry = self._bucket.entry(checked_name(name))
        if entry is None or entry.size != path.stat().st_size:
            return False
        return (entry.size, entry.checksum) == file_checksum(path)

    def stat(self, name: str) -> StoredObject | None:
        """See `Store.stat`."""
        entry = self._bucket.entry(checked_name(name))
        return _stored(entry) if entry else None

    def objects(self, prefix: str) -> list[StoredObject]:
        """See `Store.objects`."""
        found = [_stored(entry) for entry in self._bucket.entries(checked_prefix(prefix)) if not is_hidden(entry.name)]
        return sorted(found, key=lambda stored: stored.name)

    def folders(self, prefix: str) -> list[str]:
        """See `Store.folders`."""
        return sorted(name for name in self._bucket.folders(checked_prefix(prefix)) if not is_hidden(name))

    def delete(self, names: Iterable[str]) -> None:
        """See `Store.delete`."""
        checked = [checked_name(name) for name in names]
        with ThreadPoolExecutor(_DELETIONS_AT_A_TIME, thread_name_prefix="eigen-store-delete") as threads:
            for _ in threads.map(self._bucket.remove, checked):
                pass

    def _attempts(self, action: str) -> Iterator[int]:
        """Count attempts at something whole, with growing pauses between them, and raise once there were enough.

        Raises:
            StoreUnavailableError: that was the last one.
        """
        for attempt in range(_WHOLE_ATTEMPTS):
            if attempt:
                patience.sleep(_PAUSE_SECONDS * 2**attempt)
            yield attempt
        raise StoreUnavailableError(
            f"Cannot {action} in {self.url}: {_WHOLE_ATTEMPTS} times it was cut off or damaged on the way."
        )


class _DamagedOnTheWayError(Exception):
    """What arrived is not what the service holds."""


def _ignore(_: int) -> None:
    """Take no notice of progress."""


def _stored(entry: Entry) -> StoredObject:
    return StoredObject(entry.name, entry.size, entry.modified)
