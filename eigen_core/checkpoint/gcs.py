"""A store in a bucket of Google Cloud Storage: a checksum verifies each transfer; a damaged one is repeated."""

import functools
import logging
import os
import re
import socket
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import google.auth
from fsspec import FSTimeoutError
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, RetryError
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from eigen_core.checkpoint.store import (
    GcsLocation,
    MissingObjectError,
    Progress,
    RemoteStore,
    StoredObject,
    StoreUnavailableError,
    call_with_timeout,
    checked_name,
    checked_prefix,
    has_content,
    is_hidden,
    store_errors,
)
from eigen_core.common.errors import InputError
from eigen_core.common.files import HIDDEN, crc32c, file_checksum, replacing, stream_checksum

# Bytes of an object that one request transfers; the service requires a multiple of 256 KiB.
BLOCK = 8 << 20
# Timeout of a call of gcsfs, including its retries (seconds).
CALL_SECONDS = 60.0

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 15.0
_METADATA_SECONDS = 1.0
_REFRESH_SECONDS = 4
# Eigen refreshes access tokens this long before they expire: earlier than gcsfs would (5 minutes), so gcsfs never does.
_RESERVE = timedelta(minutes=6)
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_ADDRESS = re.compile(r"(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?/?")
# OSError: includes errors of `requests`, and timeouts. KeyError and ValueError: an answer that cannot be understood; in
# gcsfs also a refusal that has the word "invalid".
_FAILURES = (
    *(GoogleAPIError, InvalidResponse, GoogleAuthError, HttpError, NonRetryableError, aiohttp.ClientError),
    *(OSError, KeyError, ValueError),
)
_RETRY_SECONDS = 30.0
_CHECK_SECONDS = 11.0
_CHECK_RETRY_SECONDS = 8.0
_ATTEMPTS = 4
_CONCURRENT_DELETIONS = 8
_FIELDS = "name,size,updated,crc32c,generation"

# Otherwise Google's client requests the bucket's description, in a thread, to name the bucket's region in traces.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
# gcsfs prints a traceback of every request that fails.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
# google-auth warns that no project is chosen, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


class _ObjectExistsError(Exception):
    """The bucket's object is not of the version that the request requires (Google calls a version "generation")."""


class GcsClient:
    """Two clients of a bucket, Google's for uploads and gcsfs for all other requests. Neither works after a fork."""

    def __init__(self, location: GcsLocation, retry_seconds: float) -> None:
        endpoint = _emulator()
        self._location = location
        anonymous: Callable[[], Credentials] = AnonymousCredentials
        without = anonymous(), "a client without credentials"
        self._credentials, self._account = without if endpoint else find_credentials()
        self._retry = DEFAULT_RETRY.with_timeout(retry_seconds)
        self._files = GCSFileSystem(
            project="",
            access="read_write",
            token="anon" if endpoint else self._credentials,
            endpoint_url=endpoint,
            requests_timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"trust_env": not endpoint},
        )
        self._bucket = storage.Client(
            project="-",
            credentials=self._credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
        ).bucket(location.bucket)

    def upload(
        self, key: str, file: BinaryIO | BufferedIOBase, size: int, version: int | None
    ) -> tuple[int, str, int] | None:
        """Upload a file; return the object's size (bytes), CRC-32C (base64) and version, None if the caller must retry.

        This uses Google's client: uploads of gcsfs send no checksum that the service compares before the object is
        visible, take no precondition for large files, and report progress in the thread that serves all requests.

        Raises:
            _ObjectExistsError: the object in the bucket is not of `version` (0: none must exist; None: not checked).
        """
        blob = self._bucket.blob(key, chunk_size=BLOCK)
        limits = {"timeout": (_CONNECT_SECONDS, _SILENCE_SECONDS), "retry": self._retry}
        with self.store_errors():
            try:
                blob.upload_from_file(file, size=size, if_generation_match=version, checksum="crc32c", **limits)
            except GoogleAuthError:
                raise
            except (DataCorruption, ValueError):  # ValueError: the service has stored only a part of a block
                return None
            except GoogleAPICallError as error:
                # 400: the checksum differs. 404 and 410: the service has ended the upload of a large file.
                started = error.response is not None and error.response.request.method != "POST"
                if error.code in (400, 410) or (error.code == 404 and started):
                    return None
                raise
        return blob.size, blob.crc32c, blob.generation

    def _refresh(self) -> None:
        """Refresh the access token before gcsfs does, which would block its thread that serves all requests."""
        expiry: datetime | None = self._credentials.expiry
        lasts = expiry is None or expiry.replace(tzinfo=UTC) - datetime.now(UTC) > _RESERVE
        if not (self._credentials.valid and lasts):
            # The default timeout of google-auth is two minutes.
            request = functools.partial(Request(), timeout=_REFRESH_SECONDS)
            DEFAULT_RETRY.with_timeout(2 * _REFRESH_SECONDS)(self._credentials.refresh)(request)

    @contextmanager
    def store_errors(self, name: str = "") -> Iterator[Any]:
        """Yield gcsfs with a valid access token; raise errors of the block as the errors that `Store` lists.

        `name` is the requested object, "" for the bucket. After the HTTP statuses 408, 429 and 500 to 504, and after
        broken connections, gcsfs retries a request five times itself, with pauses of some 33 seconds in all.
        """
        try:
            self._refresh()
            yield self._files
        except _FAILURES as error:
            cause = error.cause if isinstance(error, RetryError) and error.cause is not None else error
            raise self._store_error(cause, name) from error

    def _store_error(self, error: Exception, name: str) -> Exception:
        url, bucket, account = self._location.url, self._location.bucket, self._account
        status, reason = _answer(error)
        if status == 404 and name:
            return MissingObjectError(f"{url} has no {name}")
        if status == 404:
            return InputError(
                f"The store {url} cannot be used: there is no bucket '{bucket}'. Create it (gcloud storage buckets "
                f"create gs://{bucket}) or correct its name."
            )
        if status == 412:
            return _ObjectExistsError(f"{url} has this object already, in another version")
        if status == 403:
            return InputError(
                f"The store {url} cannot be used: {account} may not list, read, write and delete there ({reason}). "
                "Grant this account the role 'Storage Object User' on the bucket, or choose another store."
            )
        transient = isinstance(error, TransportError) or getattr(error, "retryable", False)
        if status == 401 or (isinstance(error, GoogleAuthError | NonRetryableError) and not transient):
            return InputError(
                f"The store {url} cannot be used: Google refused {account} ({reason}). Create a new key file and "
                f"set {_KEY_FILE} to its path, or unset that variable and run: gcloud auth application-default login."
            )
        answer = f"HTTP {status}: {reason}" if status else reason
        return StoreUnavailableError(
            f"{url} cannot be used now by {account} ({answer}). Check the network of this machine; the store may also "
            "be down for a while."
        )


def find_credentials() -> tuple[Credentials, str]:
    """Return Google credentials and, for error messages, a description of them; send no request to the store.

    It uses the first of these that exists: the file that GOOGLE_APPLICATION_CREDENTIALS names, the login by `gcloud
    auth application-default login`, the service account of the Google Cloud machine on which this runs.
    """
    advice = f"Set {_KEY_FILE} to the path of a key file, or unset it and run: gcloud auth application-default login."
    named = os.environ.get(_KEY_FILE, "")
    logins = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    path = Path(named) if named else logins / "application_default_credentials.json"
    has_file = bool(named) or path.exists()
    if not has_file and not _is_machine_of_google():
        raise InputError(
            f"There are no credentials for Google Cloud: {_KEY_FILE} is not set, and {path} does not exist. {advice}"
        )
    source = f"credentials of {path if has_file else 'this machine'}"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise InputError(f"The {source} cannot be used ({_reason(error)}). {advice}") from error
    account = getattr(credentials, "service_account_email", None)
    return credentials, f"{account} ({path})" if account and has_file else f"the {source}"


def _is_machine_of_google() -> bool:
    """Whether the metadata server of a Google Cloud machine answers; google-auth would try for 17 to 42 seconds."""
    if os.environ.get("NO_GCE_CHECK") == "true":
        return False
    host, _, port = os.environ.get("GCE_METADATA_HOST", "169.254.169.254").partition(":")
    try:
        socket.create_connection((host, int(port or 80)), timeout=_METADATA_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _answer(error: Exception) -> tuple[int, str]:
    """Return the HTTP status of a failed request and the reason in its answer; 0 and the error's text if none came."""
    reason = "no answer in time" if isinstance(error, FSTimeoutError) else _reason(error)
    if isinstance(error, FileNotFoundError):
        return 404, reason
    if isinstance(error, OSError) and reason.startswith("Forbidden"):  # as gcsfs raises it
        return 403, reason
    code = error.code if isinstance(error, HttpError) else None
    if isinstance(error, GoogleAPICallError | InvalidResponse) and error.response is not None:
        code = error.response.status_code
        with suppress(ValueError, KeyError, TypeError):
            reason = " ".join(str(error.response.json()["error"]["message"]).split())[:300]
    return int(code or 0), reason.removesuffix(f", {code}")


def _emulator() -> str | None:
    named = os.environ.get(_EMULATOR, "")
    if named in ("", "default"):
        return None
    if not _ADDRESS.fullmatch(named):
        raise InputError(f"{_EMULATOR} is '{named}', which is no address: write it like http://127.0.0.1:4443.")
    return (named if "://" in named else f"http://{named}").rstrip("/")


def _reason(error: Exception) -> str:
    text = ", ".join(str(part) for part in error.args if isinstance(part, str | Exception)) or str(error)
    return " ".join(text.split())[:300].rstrip(".") or type(error).__name__


class GcsStore(RemoteStore):
    """A store at `location`. It retries failed upload requests for `retry_seconds`, other requests as gcsfs does."""

    def __init__(self, location: GcsLocation, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._root = f"{location.bucket}/{self._prefix}"
        self._retry_seconds = retry_seconds
        self._clients: dict[int, GcsClient] = {}

    @property
    def url(self) -> str:
        return self._location.url

    @property
    def _client(self) -> GcsClient:
        client = self._clients.get(os.getpid())
        if client is None:
            self._clients[os.getpid()] = client = GcsClient(self._location, self._retry_seconds)
        return client

    def time(self) -> datetime:
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "items(name)"}
        with self._client.store_errors() as files:
            headers, _ = files.call("GET", "b/{}/o", self._location.bucket, timeout=CALL_SECONDS, **query)
            return parsedate_to_datetime(headers["Date"]).astimezone(UTC)

    def check(self) -> None:
        late = (
            f"The store {self.url} did not answer within {_CHECK_SECONDS:.0f} seconds. Check the network of this "
            "machine; the store may also be down for a while."
        )
        call_with_timeout(_CHECK_SECONDS, GcsStore(self._location, _CHECK_RETRY_SECONDS)._check, late)

    def _check(self) -> None:
        name = f"{HIDDEN}check-{uuid.uuid4().hex}"
        # An upload first, since it fails soon enough to say why: gcsfs retries for longer than a check may take.
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

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._upload(checked_name(name), BytesIO(content), version=0)
        except _ObjectExistsError:
            return has_content(self, name, content)
        return True

    def _upload(self, name: str, file: BinaryIO, version: int | None = None, moved: Progress | None = None) -> None:
        """Upload a file, again if damaged; replace only this `version` of the object (0: none may exist; None: any)."""
        sent = _described(*stream_checksum(file))
        source = file if moved is None else _ReportedFile(file, moved)
        for _ in range(_ATTEMPTS):
            file.seek(0)
            stored = self._client.upload(self._prefix + name, source, sent[0], version)
            if stored and stored[:2] == sent:
                return
            if stored and version is not None:
                # An emulator keeps an object that arrived damaged: the retry may replace that version, and no other.
                version = stored[2]
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
        """Write one version of an object to `file`, block by block, and retry if it arrives damaged."""
        path = self._root + name
        for _ in range(_ATTEMPTS):
            entry, checksum = self._entry(name), 0
            size, version = int(entry["size"]), entry["generation"]
            if limit is not None and size > limit:
                raise StoreUnavailableError(f"{name} in {self.url} is longer than {limit:,} bytes, the limit")
            file.seek(0)
            file.truncate()
            with suppress(MissingObjectError):  # another process has replaced the object
                for first in range(0, size, BLOCK):
                    last = min(first + BLOCK, size)
                    with self._client.store_errors(name) as files:
                        block = files.cat_file(path, first, last, generation=version, timeout=CALL_SECONDS)
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
            f"Cannot {action} in {self.url}: each of {_ATTEMPTS} transfers was cut off, damaged or refused. Try later."
        )


class _ReportedFile(BufferedIOBase):
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
    return size, b64encode(checksum.to_bytes(4, "big")).decode()
