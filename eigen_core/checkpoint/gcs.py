"""A store in a bucket of Google Cloud Storage: a checksum verifies each transfer; a damaged one is repeated."""

import logging
import os
import re
import socket
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import google.auth
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, RetryError
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
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
from eigen_core.common.files import HIDDEN, crc32c, replacing, stream_checksum

# Bytes of an object that one request transfers; the service requires a multiple of 256 KiB.
BLOCK = 8 << 20

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 15.0
_METADATA_SECONDS = 1.0
_REFRESH_SECONDS = 4
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_ADDRESS = re.compile(r"(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?/?")
# OSError: includes errors of `requests`, and timeouts. KeyError and ValueError: an answer that cannot be understood.
_FAILURES = (GoogleAPIError, InvalidResponse, GoogleAuthError, OSError, KeyError, ValueError)
_RETRY_SECONDS = 30.0
_CHECK_SECONDS = 11.0
_CHECK_RETRY_SECONDS = 8.0
_ATTEMPTS = 4
_CONCURRENT_DELETIONS = 8
_PAGE = 1_000
_FIELDS = "name,size,updated"

# Otherwise Google's client requests the bucket's description, in a thread, to name the bucket's region in traces.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
# google-auth warns that no project is chosen, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


class _ObjectExistsError(Exception):
    """The bucket's object is not of the version that the request requires (Google calls a version "generation")."""


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
    code, reason = 0, _reason(error)
    if isinstance(error, GoogleAPICallError | InvalidResponse) and error.response is not None:
        code = error.response.status_code
        with suppress(ValueError, KeyError, TypeError):
            reason = " ".join(str(error.response.json()["error"]["message"]).split())[:300]
    return code, reason


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
    """A store at `location`, which retries each request that fails for `retry_seconds`."""

    def __init__(self, location: GcsLocation, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        retry = DEFAULT_RETRY.with_timeout(retry_seconds)
        self._limits = {"timeout": (_CONNECT_SECONDS, _SILENCE_SECONDS), "retry": retry}
        # By process: Google's client does not work after a fork.
        self._buckets: dict[int, storage.Bucket] = {}
        self._account = ""
        self._date = ""

    @property
    def url(self) -> str:
        return self._location.url

    @contextmanager
    def _requests(self, name: str = "") -> Iterator[storage.Bucket]:
        """Yield the bucket; raise errors about object `name` ("": none) as those of `Store` or `_ObjectExistsError`."""
        bucket = self._buckets.get(os.getpid()) or self._opened()
        try:
            yield bucket
        except _FAILURES as error:
            cause = error.cause if isinstance(error, RetryError) and error.cause is not None else error
            raise self._store_error(cause, name) from error

    def _opened(self) -> storage.Bucket:
        endpoint = _emulator()
        anonymous: Callable[[], Credentials] = AnonymousCredentials
        without = anonymous(), "a client without credentials"
        credentials, self._account = without if endpoint else find_credentials()
        # The default timeout of google-auth is two minutes.
        new_session: Callable[..., Any] = AuthorizedSession
        session = new_session(credentials, refresh_timeout=_REFRESH_SECONDS)
        session.trust_env = not endpoint
        session.hooks["response"] = [self._note_date]
        options = {"api_endpoint": endpoint} if endpoint else None
        client = storage.Client(project="-", credentials=credentials, _http=session, client_options=options)
        self._buckets[os.getpid()] = bucket = client.bucket(self._location.bucket)
        return bucket

    def _note_date(self, answer: Any, **_options: object) -> None:  # noqa: ANN401 - of `requests`
        self._date = answer.headers.get("Date", "")

    def _store_error(self, error: Exception, name: str) -> Exception:
        url, bucket, account = self.url, self._location.bucket, self._account
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
        if status == 401 or (isinstance(error, GoogleAuthError) and not transient):
            return InputError(
                f"The store {url} cannot be used: Google refused {account} ({reason}). Create a new key file and "
                f"set {_KEY_FILE} to its path, or unset that variable and run: gcloud auth application-default login."
            )
        answer = f"HTTP {status}: {reason}" if status else reason
        return StoreUnavailableError(
            f"{url} cannot be used now by {account} ({answer}). Check the network of this machine; the store may also "
            "be down for a while."
        )

    def time(self) -> datetime:
        self.stat("time")
        with self._requests():
            return parsedate_to_datetime(self._date)

    def check(self) -> None:
        late = (
            f"The store {self.url} did not answer within {_CHECK_SECONDS:.0f} seconds. Check the network of this "
            "machine; the store may also be down for a while."
        )
        call_with_timeout(_CHECK_SECONDS, GcsStore(self._location, _CHECK_RETRY_SECONDS)._check, late)

    def _check(self) -> None:
        name = f"{HIDDEN}check-{uuid.uuid4().hex}"
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
            with self._requests() as bucket:
                stored = bucket.blob(self._prefix + name, chunk_size=BLOCK)
                if not self._is_uploaded(stored, source, sent[0], version):
                    continue
            if (stored.size, stored.crc32c) == sent:
                return
            if version is not None:
                # An emulator keeps an object that arrived damaged: the retry may replace that version, and no other.
                version = stored.generation
        raise self._damaged(f"store {name}")

    def _is_uploaded(self, blob: storage.Blob, file: BinaryIO | BufferedIOBase, size: int, version: int | None) -> bool:
        try:
            blob.upload_from_file(file, size=size, if_generation_match=version, checksum="crc32c", **self._limits)
        except GoogleAuthError:
            raise
        except (DataCorruption, ValueError):  # ValueError: the service has stored only a part of a block
            return False
        except GoogleAPICallError as error:
            # 400: the checksum differs. 404 and 410: the service has ended the upload of a large file.
            started = error.response is not None and error.response.request.method != "POST"
            if error.code in (400, 410) or (error.code == 404 and started):
                return False
            raise
        return True

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
        for _ in range(_ATTEMPTS):
            entry, checksum = self._entry(name), 0
            if limit is not None and entry.size > limit:
                raise StoreUnavailableError(f"{name} in {self.url} is longer than {limit:,} bytes, the limit")
            file.seek(0)
            file.truncate()
            with suppress(MissingObjectError):  # another process has replaced the object
                for first in range(0, entry.size, BLOCK):
                    last = min(first + BLOCK, entry.size) - 1
                    with self._requests(name) as bucket:
                        # Not `entry`, which would download from an address that the service has given.
                        blob = bucket.blob(entry.name, generation=entry.generation)
                        block = blob.download_as_bytes(
                            start=first, end=last, raw_download=True, checksum=None, **self._limits
                        )
                    file.write(block)
                    checksum = crc32c(block, checksum)
                    if moved is not None:
                        moved(len(block))
                if _described(file.tell(), checksum) == (entry.size, entry.crc32c):
                    return
        raise self._damaged(f"read {name}")

    def holds(self, name: str, path: Path) -> bool:
        with suppress(MissingObjectError):
            entry = self._entry(checked_name(name))
            with open(path, "rb") as file:
                return (entry.size, entry.crc32c) == _described(*stream_checksum(file))
        return False

    def stat(self, name: str) -> StoredObject | None:
        with suppress(MissingObjectError):
            return self._stored(self._entry(checked_name(name)))
        return None

    def _entry(self, name: str) -> storage.Blob:
        """Return size, CRC-32C, version and time of an object."""
        with self._requests(name) as bucket:
            blob = bucket.blob(self._prefix + name)
            blob.reload(**self._limits)
        return blob

    def _stored(self, entry: storage.Blob) -> StoredObject:
        return StoredObject(entry.name[len(self._prefix) :], entry.size, entry.updated)

    def objects(self, prefix: str) -> list[StoredObject]:
        blobs, _ = self._listed(prefix, fields=f"items({_FIELDS}),nextPageToken")
        stored = map(self._stored, blobs)
        return sorted((one for one in stored if not is_hidden(one.name)), key=lambda one: one.name)

    def folders(self, prefix: str) -> list[str]:
        _, paths = self._listed(prefix, fields="prefixes,nextPageToken", delimiter="/")
        names = (path[len(self._prefix + prefix) :].rstrip("/") for path in paths)
        return sorted(name for name in names if not is_hidden(name))

    def _listed(self, prefix: str, **options: str) -> tuple[list[storage.Blob], set[str]]:
        start = self._prefix + checked_prefix(prefix)
        with self._requests() as bucket:
            found = bucket.client.list_blobs(bucket, prefix=start, page_size=_PAGE, **options, **self._limits)
            return list(found), found.prefixes

    def delete(self, names: Iterable[str]) -> None:
        checked = [checked_name(name) for name in names]
        with ThreadPoolExecutor(_CONCURRENT_DELETIONS, thread_name_prefix="eigen-store-delete") as threads:
            list(threads.map(self._delete, checked))

    def _delete(self, name: str) -> None:
        with suppress(MissingObjectError), self._requests(name) as bucket:
            bucket.blob(self._prefix + name).delete(**self._limits)

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
