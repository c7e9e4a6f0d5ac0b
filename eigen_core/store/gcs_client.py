"""The clients of Google Cloud Storage: gcsfs, and Google's own for uploads. Timeouts, retries and errors of both."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from typing import Any, BinaryIO

import aiohttp
from fsspec import FSTimeoutError
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, RetryError
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from eigen_core.errors import InputError
from eigen_core.store.credentials import find_identity, reason_of
from eigen_core.store.interface import MissingObjectError, ObjectExistsError, StoreUnavailableError
from eigen_core.store.location import GcsLocation

BLOCK = 8 << 20
"""Most bytes of content in a request; a multiple of 256 KiB, as the service requires."""
CALL_SECONDS = 60.0
"""Longest call of gcsfs, its retries included."""

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 15.0
_EMULATOR = "STORAGE_EMULATOR_HOST"
_ADDRESS = re.compile(r"(https?://)?[A-Za-z0-9._-]+(:[1-9][0-9]{0,4})?/?")
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


class GcsClient:
    """Both clients for one bucket, in one process: neither survives a fork.

    Raises:
        InputError: there are no credentials, or the emulator's address is none.
    """

    def __init__(self, location: GcsLocation, retry_seconds: float) -> None:
        endpoint = _emulator()
        self._location = location
        self._identity = find_identity(anonymous=endpoint is not None)
        self._retry = DEFAULT_RETRY.with_timeout(retry_seconds)
        self._files = GCSFileSystem(
            project="",
            access="read_write",
            token="anon" if endpoint else self._identity.credentials,
            endpoint_url=endpoint,
            requests_timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"trust_env": not endpoint},
        )
        self._bucket = storage.Client(
            project="-",
            credentials=self._identity.credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
        ).bucket(location.bucket)

    def upload(
        self, key: str, file: BinaryIO | BufferedIOBase, size: int, generation: int | None
    ) -> tuple[int, str, int] | None:
        """Upload a file of `size` bytes through Google's client.

        Uploads of gcsfs send no checksum that the service compares before the object is visible, take no precondition
        for large files, and report progress in the thread that serves all requests.

        Returns:
            size (bytes), CRC-32C (base64) and generation of the new object; None if the service refused what arrived
            or has ended the upload, which must be started again.

        Raises:
            ObjectExistsError: the bucket does not have `generation` of the object (0: none), and that is not None.
            InputError, StoreUnavailableError: see `Store`.
        """
        blob = self._bucket.blob(key, chunk_size=BLOCK)
        timeout = (_CONNECT_SECONDS, _SILENCE_SECONDS)
        with self.store_errors():
            try:
                blob.upload_from_file(
                    file,
                    size=size,
                    if_generation_match=generation,
                    checksum="crc32c",
                    timeout=timeout,
                    retry=self._retry,
                )
            except GoogleAuthError:
                raise
            except (DataCorruption, ValueError):  # ValueError: the service has kept a part of a block
                return None
            except GoogleAPICallError as error:
                # 400: the checksum differs. 404 and 410: the service has ended the upload of a large file.
                session = error.response is not None and error.response.request.method != "POST"
                if error.code in (400, 410) or (error.code == 404 and session):
                    return None
                raise
        return blob.size, blob.crc32c, blob.generation

    @contextmanager
    def store_errors(self, name: str = "") -> Iterator[Any]:
        """Give gcsfs for requests in the block, with fresh credentials, and raise their errors as those of a `Store`.

        gcsfs repeats a request five times, with pauses of some 33 seconds in all, after the statuses 408, 429 and 500
        to 504 and after broken connections.

        Args:
            name: of the object that is requested; "" if it is the bucket.
        """
        try:
            self._identity.refresh()
            yield self._files
        except _FAILURES as error:
            cause = error.cause if isinstance(error, RetryError) and error.cause is not None else error
            raise self._store_error(cause, name) from error

    def _store_error(self, error: Exception, name: str) -> Exception:
        url, bucket, identity = self._location.url, self._location.bucket, self._identity.description
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
                f"The store {url} cannot be used: {identity} may not list, read, write and delete there ({reason}). "
                "Give the role 'Storage Object User' on the bucket, or choose another store."
            )
        transient = isinstance(error, TransportError) or getattr(error, "retryable", False)
        if status == 401 or (isinstance(error, GoogleAuthError | NonRetryableError) and not transient):
            return InputError(
                f"The store {url} cannot be used: Google refused {identity} ({reason}). Make a new key and point "
                "GOOGLE_APPLICATION_CREDENTIALS to it, or run: gcloud auth application-default login."
            )
        return StoreUnavailableError(
            f"{url} cannot be used now by {identity} ({reason}). Check the network of this machine; the store may also "
            "be down for a while."
        )


def _answer(error: Exception) -> tuple[int, str]:
    """Return status and text of the answer for which a request failed; 0 and why, if there was none."""
    reason = "no answer in time" if isinstance(error, FSTimeoutError) else reason_of(error)
    if isinstance(error, FileNotFoundError):
        return 404, reason
    if isinstance(error, OSError) and reason.startswith("Forbidden"):  # as gcsfs raises it
        return 403, reason
    code = error.code if isinstance(error, HttpError) else None
    if isinstance(error, GoogleAPICallError | InvalidResponse) and error.response is not None:
        code = error.response.status_code
        with suppress(ValueError, KeyError, TypeError):
            reason = " ".join(str(error.response.json()["error"]["message"]).split())[:300]
    return int(code or 0), f"HTTP {code}: {reason.removesuffix(f', {code}')}" if code else reason


def _emulator() -> str | None:
    """Return the URL of the emulator that the environment names, None for the real service."""
    named = os.environ.get(_EMULATOR, "")
    if named in ("", "default"):
        return None
    if not _ADDRESS.fullmatch(named):
        raise InputError(f"{_EMULATOR} is '{named}', which is no address: write it like http://127.0.0.1:4443.")
    return (named if "://" in named else f"http://{named}").rstrip("/")
