"""A store on Google Cloud Storage: every transfer is compared with a checksum, and started again if it differs."""

import os
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from eigen_core.store import gcs_client
from eigen_core.store.files import crc32c, file_checksum, replacing, store_errors, stream_checksum
from eigen_core.store.gcs_client import CALL_SECONDS, GcsClient
from eigen_core.store.interface import (
    HIDDEN,
    MissingObjectError,
    ObjectExistsError,
    Progress,
    Store,
    StoredObject,
    StoreUnavailableError,
    checked_name,
    checked_prefix,
    has_content,
    is_hidden,
    within,
)
from eigen_core.store.location import GcsLocation

_RETRY_SECONDS = 30.0
_CHECK_SECONDS = 11.0
_CHECK_RETRY_SECONDS = 8.0
_ATTEMPTS = 4
_CONCURRENT_DELETIONS = 8
_FIELDS = "name,size,updated,crc32c,generation"


class GcsStore(Store):
    """A store in a bucket (see `Store`), under a prefix. A request of an upload is repeated for `retry_seconds`."""

    def __init__(self, location: GcsLocation, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._root = f"{location.bucket}/{self._prefix}"
        self._retry_seconds = retry_seconds
        self._clients: dict[int, GcsClient] = {}

    @property
    def url(self) -> str:
        """Such as gs://bucket/prefix."""
        return self._location.url

    @property
    def _client(self) -> GcsClient:
        """The client of this process. If two threads make one at the same time, the later one is kept."""
        client = self._clients.get(os.getpid())
        if client is None:
            self._clients[os.getpid()] = client = GcsClient(self._location, self._retry_seconds)
        return client

    def time(self) -> datetime:
        """Return the date of an answer of the service (see `Store.time`)."""
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "items(name)"}
        with self._client.store_errors() as files:
            headers, _ = files.call("GET", "b/{}/o", self._location.bucket, timeout=CALL_SECONDS, **query)
            return parsedate_to_datetime(headers["Date"]).astimezone(UTC)

    def check(self) -> None:
        """Write, read and remove a small object (see `Store.check`)."""
        late = (
            f"The store {self.url} did not answer within {_CHECK_SECONDS:.0f} seconds. Check the network of this "
            "machine; the store may also be down for a while."
        )
        within(_CHECK_SECONDS, GcsStore(self._location, _CHECK_RETRY_SECONDS)._check, late)

    def _check(self) -> None:
        name = f"{HIDDEN}check-{uuid.uuid4().hex}"
        # An upload first, because it fails soon enough to say why: gcsfs retries for longer than a check may take.
        self._upload(name, BytesIO(name.encode()))
        try:
            self._download(name, BytesIO())
            self.time()
        finally:
            self._delete(name)

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        checked_name(name)
        with open(path, "rb") as file:
            self._upload(name, file, moved=moved)

    def put(self, name: str, content: bytes) -> None:
        self._upload(checked_name(name), BytesIO(content))

    def create(self, name: str, content: bytes) -> None:
        """Store a small object under a name that is not taken (see `Store.create`), among any number of machines.

        If the object has this very content already, this call counts as the one that made it: so a retry succeeds
        after a lost reply. Different writers must therefore write different contents.
        """
        try:
            self._upload(checked_name(name), BytesIO(content), generation=0)
        except ObjectExistsError as error:
            if not has_content(self, name, content):
                raise ObjectExistsError(f"{self.url} has {name} already") from error

    def _upload(self, name: str, file: BinaryIO, generation: int | None = None, moved: Progress | None = None) -> None:
        """Upload a file until it is undamaged, over this generation of the object only (0: none) unless it is None."""
        sent = _described(*stream_checksum(file))
        source = file if moved is None else _ReportedFile(file, moved)
        for _ in range(_ATTEMPTS):
            file.seek(0)
            stored = self._client.upload(self._prefix + name, source, sent[0], generation)
            if stored and stored[:2] == sent:
                return
            if stored and generation is not None:
                # An emulator keeps a damaged object: a create may replace that generation, and no other.
                generation = stored[2]
        raise self._damaged(f"store {name}")

    def read(self, name: str, limit: int) -> bytes:
        content = BytesIO()
        self._download(checked_name(name), content, limit=limit)
        return content.getvalue()

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        checked_name(name)
        with store_errors(f"copy {name} to", path), replacing(path) as file:
            self._download(name, file, moved=moved)

    def _download(self, name: str, file: BinaryIO, limit: int | None = None, moved: Progress | None = None) -> None:
        """Write one generation of an object to a file, in blocks, until it is undamaged."""
        path = self._root + name
        for _ in range(_ATTEMPTS):
            entry, checksum = self._entry(name), 0
            size, generation = int(entry["size"]), entry["generation"]
            if limit is not None and size > limit:
                raise StoreUnavailableError(f"{name} in {self.url} is longer than {limit:,} bytes")
            file.seek(0)
            file.truncate()
            with suppress(MissingObjectError):  # it was replaced meanwhile
                for first in range(0, size, gcs_client.BLOCK):
                    last = min(first + gcs_client.BLOCK, size)
                    with self._client.store_errors(name) as files:
                        block = files.cat_file(path, first, last, generation=generation, timeout=CALL_SECONDS)
                    file.write(block)
                    checksum = crc32c(block, checksum)
                    if moved is not None:
                        moved(len(block))
                if _described(file.tell(), checksum) == (size, entry["crc32c"]):
                    return
        raise self._damaged(f"read {name}")

    def holds(self, name: str, path: Path) -> bool:
        with suppress(MissingObjectError):
            entry = self._entry(checked_name(name))
            size = int(entry["size"])
            return size == path.stat().st_size and (size, entry["crc32c"]) == _described(*file_checksum(path))
        return False

    def stat(self, name: str) -> StoredObject | None:
        with suppress(MissingObjectError):
            return self._stored(self._entry(checked_name(name)))
        return None

    def _entry(self, name: str) -> Mapping[str, str]:
        """Return what the service says of an object."""
        bucket, key = self._location.bucket, self._prefix + name
        with self._client.store_errors(name) as files:
            entry = files.call("GET", "b/{}/o/{}", bucket, key, json_out=True, fields=_FIELDS, timeout=CALL_SECONDS)
            return {field: entry[field] for field in _FIELDS.split(",")}

    def _stored(self, entry: Mapping[str, str]) -> StoredObject:
        modified = datetime.fromisoformat(entry["updated"])
        return StoredObject(entry["name"][len(self._prefix) :], int(entry["size"]), modified)

    def objects(self, prefix: str) -> list[StoredObject]:
        entries = self._list("items", f"items({_FIELDS})", prefix=self._prefix + checked_prefix(prefix))
        stored = [self._stored(entry) for entry in entries]
        return sorted((one for one in stored if not is_hidden(one.name)), key=lambda one: one.name)

    def folders(self, prefix: str) -> list[str]:
        start = self._prefix + checked_prefix(prefix)
        paths = self._list("prefixes", "prefixes", prefix=start, delimiter="/")
        names = [path[len(start) :].rstrip("/") for path in paths]
        return sorted(name for name in names if not is_hidden(name))

    def _list(self, key: str, fields: str, **query: str) -> Iterator[Any]:
        """Yield what all pages of a listing have under `key`."""
        query["fields"] = f"{fields},nextPageToken"
        while True:
            with self._client.store_errors() as files:
                page = files.call("GET", "b/{}/o", self._location.bucket, json_out=True, timeout=CALL_SECONDS, **query)
            yield from page.get(key, [])
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def delete(self, names: Iterable[str]) -> None:
        checked = [checked_name(name) for name in names]
        with ThreadPoolExecutor(_CONCURRENT_DELETIONS, thread_name_prefix="eigen-store-delete") as threads:
            list(threads.map(self._delete, checked))

    def _delete(self, name: str) -> None:
        with suppress(MissingObjectError), self._client.store_errors(name) as files:
            files.rm_file(self._root + name, timeout=CALL_SECONDS)

    def _damaged(self, action: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"Cannot {action} in {self.url}: {_ATTEMPTS} times it was cut off, damaged on the way or refused."
        )


class _ReportedFile(BufferedIOBase):
    """A file that reports how many bytes were read from it."""

    def __init__(self, file: BinaryIO, moved: Progress) -> None:
        self._file = file
        self._moved = moved

    def read(self, size: int | None = -1, /) -> bytes:
        block = self._file.read(-1 if size is None else size)
        self._moved(len(block))
        return block

    def tell(self) -> int:
        return self._file.tell()


def _described(size: int, checksum: int) -> tuple[int, str]:
    """Return size (bytes) and CRC-32C of a content, the latter in base64 as the service describes it."""
    return size, b64encode(checksum.to_bytes(4, "big")).decode()
