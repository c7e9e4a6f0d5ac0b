"""A store on Google Cloud Storage: every transfer is compared with a checksum, and started again if it differs."""

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from eigen_core.store import retries
from eigen_core.store.files import crc32c, file_checksum, replacing, store_errors, stream_checksum
from eigen_core.store.gcs_client import Answer, GcsClient, InterruptedTransferError, RangeError
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
    is_hidden,
)
from eigen_core.store.location import GcsLocation

BLOCK = 8 << 20
"""Most bytes in a request; a multiple of 256 KiB, as the service requires."""

_CHECK_SECONDS = 11.0
_CHECK_RETRY_SECONDS = 8.0
_TRANSFER_ATTEMPTS = 4
_PAUSE_SECONDS = 0.5
_CONCURRENT_DELETIONS = 8
_FIELDS = "name,size,updated,crc32c,generation"
_CHECKSUM = re.compile(r"crc32c=([A-Za-z0-9+/]+=*)")
_INCOMPLETE = 308
_DONE = (200, 201)
_MISSING = "0"
"""The version of an object that does not exist."""


@dataclass(frozen=True)
class _Entry(StoredObject):
    """An object with its CRC-32C, as the service writes it, and its version, which changes whenever it is written."""

    checksum: str
    version: str

    def matches(self, size: int, checksum: int) -> bool:
        """Whether it has a content of that size (bytes) and CRC-32C."""
        return (self.bytes, self.checksum) == (size, _encoded(checksum))


class GcsStore(Store):
    """A store in a bucket (see `Store`), under a prefix.

    `create` is safe among any number of machines: the service checks the precondition.
    """

    def __init__(self, location: GcsLocation, timeout: float | None = None) -> None:
        """
        Args:
            location: bucket and prefix.
            timeout: how long a request is retried or transfers content (seconds); None: the default of `GcsClient`.
        """
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._client = GcsClient(location, timeout)

    @property
    def url(self) -> str:
        """Such as gs://bucket/prefix."""
        return self._location.url

    def time(self) -> datetime:
        """Return the date of an answer of the service (see `Store.time`)."""
        answer = self._list_one()
        try:
            return parsedate_to_datetime(answer.headers["Date"]).astimezone(UTC)
        except (KeyError, ValueError) as error:
            raise StoreUnavailableError(f"{self.url} does not say what time it is") from error

    def check(self) -> None:
        """Write, read and remove a small object (see `Store.check`)."""
        late = (
            f"The store {self.url} did not answer within {_CHECK_SECONDS:.0f} seconds. Check the network of this "
            "machine; the store may also be down for a while."
        )
        retries.within(_CHECK_SECONDS, GcsStore(self._location, _CHECK_RETRY_SECONDS)._check, late)

    def _check(self) -> None:
        self._list_one()
        name = f"{HIDDEN}check-{uuid.uuid4().hex}"
        content = uuid.uuid4().bytes
        self._upload(name, content)
        try:
            found, _ = self._read(name, len(content))
        finally:
            self._delete(name)
        if found != content:
            raise StoreUnavailableError(f"The store {self.url} gives back something else than was written.")

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        checked_name(name)
        with open(path, "rb") as file:
            for _ in self._attempts(f"store {name}"):
                with suppress(InterruptedTransferError):
                    file.seek(0)
                    size, checksum = stream_checksum(file)
                    self._upload_file(name, file, size, checksum, moved or _ignore)
                    entry = self._entry(name)
                    if entry is not None and entry.matches(size, checksum):
                        return

    def _upload_file(self, name: str, file: BinaryIO, size: int, checksum: int, moved: Progress) -> None:
        """Upload a file, in a resumable session if it is larger than a block."""
        if size <= BLOCK:
            file.seek(0)
            self._upload(name, file.read(size))
            moved(size)
            return
        headers = {
            "Content-Type": "application/json",
            "X-Upload-Content-Type": "application/octet-stream",
            "X-Upload-Content-Length": str(size),
        }
        metadata = self._metadata(name, checksum)
        uploads = self._client.uploads
        answer = self._client.request("POST", uploads, {"uploadType": "resumable"}, headers=headers, data=metadata)
        session = answer.headers.get("Location", "")
        if not session.startswith(("http://", "https://")):
            raise InterruptedTransferError(f"{self.url} did not say where to send a file")
        first = 0
        while first < size:
            file.seek(first)
            block = file.read(BLOCK)
            stored = self._upload_block(session, first, block, size)
            if not first < stored <= first + len(block):
                raise InterruptedTransferError(f"{self.url} says that it has {stored:,} bytes of an upload")
            moved(stored - first)
            first = stored

    def _upload_block(self, session: str, first: int, block: bytes, size: int) -> int:
        """Upload a block of a file and return how many bytes of the file are stored now."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"bytes {first}-{first + len(block) - 1}/{size}",
        }
        try:
            answer = self._client.request("PUT", session, {}, transfer=True, headers=headers, data=block)
        except MissingObjectError as error:
            raise InterruptedTransferError(f"{self.url} has ended the session of an upload") from error
        if answer.status in _DONE:
            return size
        last = answer.headers.get("Range", "").rpartition("-")[2]
        if answer.status != _INCOMPLETE or (last and not last.isdigit()):
            raise InterruptedTransferError(f"{self.url} answered a block of a file with {answer.status}")
        return int(last) + 1 if last else 0

    def put(self, name: str, content: bytes) -> None:
        self._put(name, content, version=None)

    def create(self, name: str, content: bytes) -> None:
        """Store a small object under a name that is not taken (see `Store.create`).

        If the object has this very content already, this call counts as the one that made it: so a retry succeeds
        after a lost reply. Different writers must therefore write different contents.

        Raises:
            ObjectExistsError: the name is taken.
        """
        try:
            self._put(name, content, _MISSING)
        except ObjectExistsError as error:
            if not self._reads_as(name, content):
                raise ObjectExistsError(f"{self.url} has {name} already") from error

    def _put(self, name: str, content: bytes, version: str | None) -> None:
        """Upload a small object until it is undamaged, only if the object there is of `version` unless that is None."""
        checked_name(name)
        for _ in self._attempts(f"store {name}"):
            entry = self._upload(name, content, version)
            if entry.name == name:
                if entry.matches(len(content), crc32c(content)):
                    return
                # It was damaged on the way: a create may replace that damaged version, and no other.
                version = None if version is None else entry.version

    def _reads_as(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name, len(content)) == content
        except (MissingObjectError, StoreUnavailableError):
            return False

    def _upload(self, name: str, content: bytes, version: str | None = None) -> _Entry:
        """Upload a small object (see `_put`) and return what the service has stored."""
        # The boundary is random because gcsfs's constant one could occur in the content.
        boundary = uuid.uuid4().hex
        parts = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
            self._metadata(name, crc32c(content)),
            f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
            content,
            f"\r\n--{boundary}--\r\n".encode(),
        )
        query = {"uploadType": "multipart"} | ({} if version is None else {"ifGenerationMatch": version})
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        data = b"".join(parts)
        answer = self._client.request("POST", self._client.uploads, query, transfer=True, headers=headers, data=data)
        return self._parsed(self._client.document(answer))

    def _metadata(self, name: str, checksum: int) -> bytes:
        """Return the description of a new object, whose content the service compares with the checksum."""
        return json.dumps({"name": self._prefix + name, "crc32c": _encoded(checksum)}).encode()

    def read(self, name: str, limit: int) -> bytes:
        checked_name(name)
        for _ in self._attempts(f"read {name}"):
            content, checksum = self._read(name, limit + 1)
            if len(content) > limit:
                raise StoreUnavailableError(f"{name} in {self.url} is longer than {limit:,} bytes")
            if checksum is None:
                entry = self._entry(name)
                checksum = entry.checksum if entry else None
            if _encoded(crc32c(content)) == checksum:
                return content
        raise AssertionError("unreachable: the attempts end with an error")

    def _read(self, name: str, count: int) -> tuple[bytes, str | None]:
        """Return an object's first `count` bytes, and the checksum of the whole object if the answer has it."""
        try:
            answer = self._get(name, {"alt": "media"}, 0, count)
        except RangeError:
            return b"", _encoded(0)
        except MissingObjectError as error:
            raise MissingObjectError(f"{self.url} has no {name}") from error
        found = _CHECKSUM.search(",".join(answer.headers.getall("X-Goog-Hash", [])))
        return answer.content, found[1] if found else None

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        checked_name(name)
        for _ in self._attempts(f"read {name}"):
            entry = self._entry(name)
            if entry is None:
                raise MissingObjectError(f"{self.url} has no {name}")
            with suppress(InterruptedTransferError, MissingObjectError):
                with store_errors(f"copy {name} to", path), replacing(path) as file:
                    self._download(entry, file, moved or _ignore)
                return

    def _download(self, entry: _Entry, file: BinaryIO, moved: Progress) -> None:
        """Write an object's content to a file, in blocks.

        Raises:
            MissingObjectError: the object was replaced meanwhile.
            InterruptedTransferError: what arrived differs from the object.
        """
        checksum = 0
        query = {"alt": "media", "generation": entry.version}
        for first in range(0, entry.bytes, BLOCK):
            block = self._get(entry.name, query, first, min(BLOCK, entry.bytes - first)).content
            file.write(block)
            checksum = crc32c(block, checksum)
            moved(len(block))
        if not entry.matches(file.tell(), checksum):
            raise InterruptedTransferError(f"{entry.name} in {self.url} was damaged on the way")

    def _get(self, name: str, query: dict[str, str], first: int, count: int) -> Answer:
        """Request `count` bytes of an object from `first` on."""
        headers = {"Range": f"bytes={first}-{first + count - 1}"}
        return self._client.request("GET", self._path(name), query, transfer=True, headers=headers)

    def holds(self, name: str, path: Path) -> bool:
        entry = self._entry(checked_name(name))
        if entry is None or entry.bytes != path.stat().st_size:
            return False
        return entry.matches(*file_checksum(path))

    def stat(self, name: str) -> StoredObject | None:
        return self._entry(checked_name(name))

    def _entry(self, name: str) -> _Entry | None:
        try:
            answer = self._client.request("GET", self._path(name), {"fields": _FIELDS})
        except MissingObjectError:
            return None
        return self._parsed(self._client.document(answer))

    def objects(self, prefix: str) -> list[StoredObject]:
        items = self._list({"prefix": self._prefix + checked_prefix(prefix), "fields": f"items({_FIELDS})"}, "items")
        entries = [entry for item in items if not is_hidden((entry := self._parsed(item)).name)]
        return sorted(entries, key=lambda entry: entry.name)

    def folders(self, prefix: str) -> list[str]:
        start = self._prefix + checked_prefix(prefix)
        paths = self._list({"prefix": start, "delimiter": "/", "fields": "prefixes"}, "prefixes")
        names = [str(path)[len(start) :].rstrip("/") for path in paths]
        return sorted(name for name in names if not is_hidden(name))

    def _list(self, query: dict[str, str], key: str) -> Iterator[Any]:
        """Return what all pages of a listing have under `key`."""
        query = query | {"fields": f"{query['fields']},nextPageToken"}
        while True:
            page = self._client.document(self._client.request("GET", self._client.objects, query))
            yield from page.get(key, [])
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = str(page["nextPageToken"])

    def _list_one(self) -> Answer:
        """Request the shortest listing."""
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "items(name)"}
        return self._client.request("GET", self._client.objects, query)

    def delete(self, names: Iterable[str]) -> None:
        checked = [checked_name(name) for name in names]
        with ThreadPoolExecutor(_CONCURRENT_DELETIONS, thread_name_prefix="eigen-store-delete") as threads:
            for _ in threads.map(self._delete, checked):
                pass

    def _delete(self, name: str) -> None:
        with suppress(MissingObjectError):
            self._client.request("DELETE", self._path(name), {})

    def _path(self, name: str) -> str:
        return f"{self._client.objects}/{quote(self._prefix + name, safe='')}"

    def _parsed(self, item: dict[str, Any]) -> _Entry:
        """Return the object that the service describes."""
        try:
            return _Entry(
                name=str(item["name"])[len(self._prefix) :],
                bytes=int(item["size"]),
                modified=datetime.fromisoformat(item["updated"]),
                checksum=str(item["crc32c"]),
                version=str(item["generation"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise retries.TransientError(f"{self.url} gave an answer that cannot be read") from error

    def _attempts(self, action: str) -> Iterator[int]:
        """Count the attempts at a transfer, with growing pauses, and raise `StoreUnavailableError` after the last."""
        for attempt in range(_TRANSFER_ATTEMPTS):
            if attempt:
                retries.sleep(_PAUSE_SECONDS * 2**attempt)
            yield attempt
        raise StoreUnavailableError(
            f"Cannot {action} in {self.url}: {_TRANSFER_ATTEMPTS} times it was cut off or damaged on the way."
        )


def _ignore(_: int) -> None:
    """Ignore progress."""


def _encoded(checksum: int) -> str:
    """Return a CRC-32C as the service writes it."""
    return b64encode(checksum.to_bytes(4, "big")).decode()
