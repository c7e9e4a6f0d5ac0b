"""Google Cloud Storage through gcsfs: its connections, credentials and errors, one request at a time.

gcsfs's own file operations are not used, only what sends a request. They would tell of progress in the thread that
serves all requests of this process, where a limited rate holds up everybody; let a damaged upload become visible and
notice it afterwards, where the service refuses content that does not match a checksum sent along; and try again for
minutes without saying what is wrong.
"""

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import aiohttp
import fsspec.asyn
from gcsfs.core import GCSFileSystem
from multidict import CIMultiDictProxy

from eigen_core.errors import InputError
from eigen_core.store.bucket import Entry, LostUploadError
from eigen_core.store.checksums import crc32c, from_base64, to_base64
from eigen_core.store.credentials import NOBODY, Identity, process_identity
from eigen_core.store.failures import OutOfRangeError, missing_bucket, translated
from eigen_core.store.interface import MissingObjectError, Progress, StoreUnavailableError
from eigen_core.store.location import RemotePlace
from eigen_core.store.patience import SECONDS, TransientError, insist

BLOCK = 8 << 20
"""Most bytes in a request; a multiple of 256 KiB, which the service asks for."""

_EMULATOR = "STORAGE_EMULATOR_HOST"
_ANSWER_SECONDS = 15.0
_BLOCK_SECONDS = 60.0
_TIMEOUTS = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_ANSWER_SECONDS)
_FIELDS = "name,size,updated,crc32c,generation"
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_INCOMPLETE = 308
_DONE = (200, 201)

# The client's own way to send one request, without its repetitions around it: those wait longer than we may, and do
# not say what went wrong when our time is up.
_send = GCSFileSystem._request.__wrapped__


@dataclass(frozen=True)
class _Connection:
    """What a process needs to ask something: a client cannot be taken along into a forked process."""

    process: int
    client: GCSFileSystem
    identity: Identity

    @property
    def endpoint(self) -> str:
        return str(self.client.base).removesuffix("/storage/v1/")


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: CIMultiDictProxy[str]
    content: bytes

    def document(self, place: str) -> dict[str, Any]:
        """Return the JSON object that was answered."""
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise TransientError(f"{place} gave an answer that cannot be read")
        return document


class GcsBucket:
    """A part of a bucket of Google Cloud Storage (see `Bucket`)."""

    def __init__(self, place: RemotePlace, patience: float = SECONDS, block_patience: float = _BLOCK_SECONDS) -> None:
        """
        Args:
            place: the bucket and what all names in it begin with.
            patience: how long a request is tried again (seconds).
            block_patience: how long a request that carries content may take (seconds).
        """
        self._place = place
        self._patience = patience
        self._block_patience = block_patience
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._connection: _Connection | None = None

    @property
    def url(self) -> str:
        """See `Bucket.url`."""
        return self._place.url

    def hasty(self, seconds: float) -> "GcsBucket":
        """See `Bucket.hasty`."""
        return GcsBucket(self._place, seconds, seconds)

    def check_access(self) -> None:
        """See `Bucket.check_access`."""
        self._page(self._least_listing())

    def time(self) -> datetime:
        """See `Bucket.time`. Every answer says when it was given."""
        answer = self._page(self._least_listing())
        try:
            return parsedate_to_datetime(answer.headers["Date"]).astimezone(UTC)
        except (KeyError, ValueError) as error:
            raise StoreUnavailableError(f"{self.url} does not say what time it is") from error

    def _least_listing(self) -> dict[str, str]:
        return {"prefix": self._prefix, "maxResults": "1", "fields": "items(name)"}

    def entry(self, name: str) -> Entry | None:
        """See `Bucket.entry`."""
        try:
            answer = self._ask("GET", self._object(name), query={"fields": _FIELDS})
        except MissingObjectError:
            return None
        return self._entry(answer.document(self.url))

    def entries(self, prefix: str) -> list[Entry]:
        """See `Bucket.entries`."""
        pages = self._list({"prefix": self._prefix + prefix, "fields": f"items({_FIELDS}),nextPageToken"})
        return [self._entry(item) for page in pages for item in page.get("items", [])]

    def folders(self, prefix: str) -> list[str]:
        """See `Bucket.folders`."""
        whole = self._prefix + prefix
        pages = self._list({"prefix": whole, "delimiter": "/", "fields": "prefixes,nextPageToken"})
        return [str(found)[len(whole) :].rstrip("/") for page in pages for found in page.get("prefixes", [])]

    def upload(self, name: str, content: bytes, version: str | None = None) -> Entry:
        """See `Bucket.upload`."""
        # A boundary of our own: gcsfs has one for all, which content could contain.
        boundary = uuid.uuid4().hex
        about = json.dumps({"name": self._prefix + name, "crc32c": to_base64(crc32c(content))})
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        condition = {} if version is None else {"ifGenerationMatch": version}
        try:
            answer = self._ask(
                "POST",
                self._uploads(),
                seconds=self._block_patience,
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                data=b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode())),
                query={"uploadType": "multipart", **condition},
            )
        except MissingObjectError as error:
            raise missing_bucket(self.url, self._place.bucket) from error
        return self._entry(answer.document(self.url))

    def upload_file(self, name: str, file: BinaryIO, size: int, checksum: int, moved: Progress) -> None:
        """See `Bucket.upload_file`."""
        if size <= BLOCK:
            content = file.read(size)
            self.upload(name, content)
            moved(len(content))
            return
        session = self._begin_upload(name, size, checksum)
        first = 0
        while True:
            file.seek(first)
            block = file.read(BLOCK)
            stored = self._send_block(session, first, block, size)
            if stored is None:
                moved(size - first)
                return
            if not first < stored <= first + len(block):
                raise LostUploadError(f"{self.url} holds {stored:,} bytes where {first + len(block):,} were sent")
            moved(stored - first)
            first = stored

    def _begin_upload(self, name: str, size: int, checksum: int) -> str:
        """Return the address to which the blocks of a file are sent."""
        try:
            answer = self._ask(
                "POST",
                self._uploads(),
                headers={"X-Upload-Content-Type": "application/octet-stream", "X-Upload-Content-Length": str(size)},
                json={"name": self._prefix + name, "crc32c": to_base64(checksum)},
                query={"uploadType": "resumable"},
            )
        except MissingObjectError as error:
            raise missing_bucket(self.url, self._place.bucket) from error
        session = answer.headers.get("Location", "")
        if not session.startswith(("http://", "https://")):
            raise LostUploadError(f"{self.url} did not say where to send a file")
        return session

    def _send_block(self, session: str, first: int, block: bytes, size: int) -> int | None:
        """Send a part of a file; return how many bytes of it are stored now, None if that is all of it."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"bytes {first}-{first + len(block) - 1}/{size}",
        }
        try:
            answer = self._ask("PUT", session, seconds=self._block_patience, headers=headers, data=block)
        except MissingObjectError as error:
            raise LostUploadError(f"{self.url} has forgotten an upload") from error
        if answer.status in _DONE:
            return None
        last = answer.headers.get("Range", "").rpartition("-")[2]
        if answer.status != _INCOMPLETE or (last and not last.isdigit()):
            raise LostUploadError(f"{self.url} answered a part of a file with {answer.status}")
        return int(last) + 1 if last else 0

    def read(self, name: str, count: int) -> tuple[bytes, int | None]:
        """See `Bucket.read`."""
        headers = {"Range": f"bytes=0-{count - 1}"}
        try:
            answer = self._ask(
                "GET", self._object(name), seconds=self._block_patience, headers=headers, query={"alt": "media"}
            )
        except OutOfRangeError:
            return b"", crc32c(b"")
        except MissingObjectError as error:
            raise MissingObjectError(f"{self.url} has no {name}") from error
        return answer.content, _checksum_header(answer.headers)

    def download(self, entry: Entry, first: int, count: int) -> bytes:
        """See `Bucket.download`."""
        path = self._object(entry.name)
        headers = {"Range": f"bytes={first}-{first + count - 1}"}
        try:
            query = {"alt": "media", "generation": entry.version}
            answer = self._ask("GET", path, seconds=self._block_patience, headers=headers, query=query)
        except OutOfRangeError as error:
            raise MissingObjectError(f"{self.url} has a shorter {entry.name} now") from error
        return answer.content

    def remove(self, name: str) -> None:
        """See `Bucket.remove`."""
        try:
            self._ask("DELETE", self._object(name))
        except MissingObjectError:
            return

    def _object(self, name: str) -> str:
        return f"{self._connect().endpoint}/storage/v1/b/{_quoted(self._place.bucket)}/o/{_quoted(self._prefix + name)}"

    def _uploads(self) -> str:
        return f"{self._connect().endpoint}/upload/storage/v1/b/{_quoted(self._place.bucket)}/o"

    def _list(self, query: dict[str, str]) -> list[dict[str, Any]]:
        """Return the pages of a listing."""
        pages: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            page = self._page(query | token).document(self.url)
            pages.append(page)
            if not page.get("nextPageToken"):
                return pages
            token = {"pageToken": str(page["nextPageToken"])}

    def _page(self, query: dict[str, str]) -> _Answer:
        """Return one page of a listing."""
        path = f"{self._connect().endpoint}/storage/v1/b/{_quoted(self._place.bucket)}/o"
        try:
            return self._ask("GET", path, query=query)
        except MissingObjectError as error:
            raise missing_bucket(self.url, self._place.bucket) from error

    def _entry(self, item: dict[str, Any]) -> Entry:
        """Return what the service says of an object."""
        try:
            return Entry(
                name=str(item["name"])[len(self._prefix) :],
                size=int(item["size"]),
                modified=datetime.fromisoformat(item["updated"]),
                checksum=from_base64(str(item["crc32c"])),
                version=str(item["generation"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TransientError(f"{self.url} gave an answer that cannot be read") from error

    def _ask(
        self,
        method: str,
        path: str,
        *,
        seconds: float | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        json: Mapping[str, str] | None = None,
    ) -> _Answer:
        """Send a request, again where that may help, and return the answer.

        Args:
            method: GET, POST, PUT or DELETE.
            path: its whole address.
            seconds: how long to wait for an answer; None: as is usual for a small one.
            query: what comes after the address.
            headers: what goes with it.
            data: what is sent.
            json: what is sent, as JSON.
        """
        options: dict[str, Any] = {**(query or {}), "headers": headers, "data": data, "json": json}

        def attempt(left: float) -> _Answer:
            connection = self._connect()
            patience = seconds or min(_ANSWER_SECONDS, left)
            with translated(self.url, connection.identity.who):
                connection.identity.confirm()
                status, headers, _, content = fsspec.asyn.sync(
                    connection.client.loop, _send, connection.client, method, path, timeout=patience, **options
                )
            return _Answer(status, headers, content)

        return insist(attempt, self._patience)

    def _connect(self) -> _Connection:
        """Return this process's connection. Two threads may make one each; the later one stays."""
        connection = self._connection
        if connection is None or connection.process != os.getpid():
            endpoint = _emulator()
            identity = NOBODY if endpoint else process_identity()
            client = GCSFileSystem(
                project="",
                access="read_write",
                token="anon" if endpoint else identity.credentials,
                endpoint_url=endpoint,
                requests_timeout=_TIMEOUTS,
                use_listings_cache=False,
                skip_instance_cache=True,
                session_kwargs={"trust_env": not endpoint},
            )
            self._connection = connection = _Connection(os.getpid(), client, identity)
        return connection


def _checksum_header(headers: CIMultiDictProxy[str]) -> int | None:
    """Return the CRC-32C of the whole object, which comes with its content or a part of it."""
    for part in ",".join(headers.getall("X-Goog-Hash", [])).split(","):
        kind, _, value = part.strip().partition("=")
        if kind == "crc32c":
            try:
                return from_base64(value)
            except ValueError:
                return None
    return None


def _emulator() -> str | None:
    """Return the address of the emulator that the environment names, None for the service itself."""
    named = os.environ.get(_EMULATOR, "")
    if named in ("", "default"):
        return None
    address = (named if "://" in named else f"http://{named}").rstrip("/")
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and not parts.path and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _HOST.fullmatch(parts.hostname or ""):
        raise InputError(f"{_EMULATOR} is '{named}', which is no address: write it like http://127.0.0.1:4443.")
    return address


def _quoted(text: str) -> str:
    return quote(text, safe="")
