"""The clients of Google Cloud Storage, gcsfs and Google's own for uploads: credentials, timeouts, retries, errors."""

import functools
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import BufferedIOBase
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

from eigen_core.common.errors import InputError
from eigen_core.store.interface import MissingObjectError, ObjectExistsError, StoreUnavailableError
from eigen_core.store.location import GcsLocation

BLOCK = 8 << 20
"""Most bytes of content in a request; a multiple of 256 KiB, as the service requires."""
CALL_SECONDS = 60.0
"""Longest call of gcsfs, its retries included."""

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 15.0
_METADATA_SECONDS = 1.0
_REFRESH_SECONDS = 4
# Longer than the five minutes before expiry at which gcsfs refreshes, so that gcsfs itself never does.
_RESERVE = timedelta(minutes=6)
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_ADDRESS = re.compile(r"(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?/?")
# OSError: also what `requests` raises, and timeouts. KeyError and ValueError: an answer that cannot be understood; in
# gcsfs also a refusal that has the word "invalid".
_FAILURES = (
    *(GoogleAPIError, InvalidResponse, GoogleAuthError, HttpError, NonRetryableError, aiohttp.ClientError),
    *(OSError, KeyError, ValueError),
)

# Else Google's client requests the bucket's own description, in a thread, to name its region in traces.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
# It prints a traceback of every request that fails.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
# It warns that no project is chosen, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


class GcsClient:
    """Both clients for one bucket, in one process: neither survives a fork.

    Raises:
        InputError: there are no credentials, or the emulator's address is none.
    """

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
        self, key: str, file: BinaryIO | BufferedIOBase, size: int, generation: int | None
    ) -> tuple[int, str, int] | None:
        """Return size (bytes), CRC-32C (base64) and generation of the new object; None if it must be uploaded again.

        Through Google's client: uploads of gcsfs send no checksum that the service compares before the object is
        visible, take no precondition for large files, and report progress in the thread that serves all requests.

        Raises:
            ObjectExistsError: the bucket does not have `generation` of the object (0: none), and that is not None.
            InputError, StoreUnavailableError: see `Store`.
        """
        blob = self._bucket.blob(key, chunk_size=BLOCK)
        limits = {"timeout": (_CONNECT_SECONDS, _SILENCE_SECONDS), "retry": self._retry}
        with self.store_errors():
            try:
                blob.upload_from_file(file, size=size, if_generation_match=generation, checksum="crc32c", **limits)
            except GoogleAuthError:
                raise
            except (DataCorruption, ValueError):  # ValueError: the service has kept a part of a block
                return None
            except GoogleAPICallError as error:
                # 400: the checksum differs. 404 and 410: the service has ended the upload of a large file.
                begun = error.response is not None and error.response.request.method != "POST"
                if error.code in (400, 410) or (error.code == 404 and begun):
                    return None
                raise
        return blob.size, blob.crc32c, blob.generation

    def _refresh(self) -> None:
        """Refresh the access token unless it is valid for some minutes more.

        gcsfs would refresh it in the thread that serves all requests, and block them all for up to minutes.
        """
        expiry: datetime | None = self._credentials.expiry
        lasts = expiry is None or expiry.replace(tzinfo=UTC) - datetime.now(UTC) > _RESERVE
        if not (self._credentials.valid and lasts):
            # The library's own timeout is two minutes.
            request = functools.partial(Request(), timeout=_REFRESH_SECONDS)
            DEFAULT_RETRY.with_timeout(2 * _REFRESH_SECONDS)(self._credentials.refresh)(request)

    @contextmanager
    def store_errors(self, name: str = "") -> Iterator[Any]:
        """Give gcsfs for requests in the block, with fresh credentials, and raise their errors as those of a `Store`.

        gcsfs repeats a request five times, with pauses of some 33 seconds in all, after the statuses 408, 429 and 500
        to 504 and after broken connections.

        Args:
            name: of the object that is requested; "" if it is the bucket.
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
            return ObjectExistsError(f"{url} has this object already, in another version")
        if status == 403:
            return InputError(
                f"The store {url} cannot be used: {account} may not list, read, write and delete there ({reason}). "
                "Give the role 'Storage Object User' on the bucket, or choose another store."
            )
        transient = isinstance(error, TransportError) or getattr(error, "retryable", False)
        if status == 401 or (isinstance(error, GoogleAuthError | NonRetryableError) and not transient):
            return InputError(
                f"The store {url} cannot be used: Google refused {account} ({reason}). Make a new key and point "
                "GOOGLE_APPLICATION_CREDENTIALS to it, or run: gcloud auth application-default login."
            )
        answer = f"HTTP {status}: {reason}" if status else reason
        return StoreUnavailableError(
            f"{url} cannot be used now by {account} ({answer}). Check the network of this machine; the store may also "
            "be down for a while."
        )


def find_credentials() -> tuple[Credentials, str]:
    """Return this process's credentials, and what error messages call them, without a request to the store.

    They are those of the file that GOOGLE_APPLICATION_CREDENTIALS names, else those of `gcloud auth
    application-default login`, else those of the Google machine on which this runs. If they cannot be used there is no
    fallback to the next, nor to anonymous requests.

    Raises:
        InputError: there are none, or their file cannot be used.
    """
    advice = f"Make a key or a login (gcloud auth application-default login) and set {_KEY_FILE} to its file."
    named = os.environ.get(_KEY_FILE, "")
    logins = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    path = Path(named) if named else logins / "application_default_credentials.json"
    has_file = bool(named) or path.exists()
    if not has_file and not _is_machine_of_google():
        raise InputError(f"There are no credentials for Google Cloud: {_KEY_FILE} is not set. {advice}")
    source = f"credentials of {path if has_file else 'this machine'}"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise InputError(f"The {source} cannot be used ({_reason(error)}). {advice}") from error
    account = getattr(credentials, "service_account_email", None)
    return credentials, f"{account} ({path})" if account and has_file else f"the {source}"


def _is_machine_of_google() -> bool:
    """Whether there is a metadata server, from which Google's machines get credentials.

    Where there is none, the library would search for 17 to 42 seconds.
    """
    if os.environ.get("NO_GCE_CHECK") == "true":
        return False
    host, _, port = os.environ.get("GCE_METADATA_HOST", "169.254.169.254").partition(":")
    try:
        socket.create_connection((host, int(port or 80)), timeout=_METADATA_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _answer(error: Exception) -> tuple[int, str]:
    """Return status and text of the answer for which a request failed; 0 and why, if there was none."""
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
    """Return the URL of the emulator that the environment names, None for the real service."""
    named = os.environ.get(_EMULATOR, "")
    if named in ("", "default"):
        return None
    if not _ADDRESS.fullmatch(named):
        raise InputError(f"{_EMULATOR} is '{named}', which is no address: write it like http://127.0.0.1:4443.")
    return (named if "://" in named else f"http://{named}").rstrip("/")


def _reason(error: Exception) -> str:
    """Return an error's text on one line of at most 300 characters; its type if it has none."""
    text = ", ".join(str(part) for part in error.args if isinstance(part, str | Exception)) or str(error)
    return " ".join(text.split())[:300].rstrip(".") or type(error).__name__
