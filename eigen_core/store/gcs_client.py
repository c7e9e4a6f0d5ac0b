"""Requests to Google Cloud Storage through gcsfs: connection, timeouts, retries, and errors as a `Store` raises them.

Of gcsfs only the function that sends a request is used. Its file operations report progress in the thread that serves
all requests of this process, so that a limited transfer rate would block them all; they detect a damaged upload only
once it is visible; and they retry for minutes without saying what is wrong.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
import fsspec.asyn
import requests
from gcsfs.core import GCSFileSystem
from gcsfs.retry import ChecksumError, HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError, RefreshError
from multidict import CIMultiDictProxy

from eigen_core.errors import InputError
from eigen_core.store.credentials import ANONYMOUS, Identity, find_identity, reason_of
from eigen_core.store.interface import MissingObjectError, ObjectExistsError, StoreUnavailableError
from eigen_core.store.location import GcsLocation
from eigen_core.store.retries import RETRY_SECONDS, TransientError, retry

_EMULATOR = "STORAGE_EMULATOR_HOST"
_ANSWER_SECONDS = 15.0
_TRANSFER_SECONDS = 60.0
_TIMEOUTS = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_ANSWER_SECONDS)
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_BAD_REQUEST, _UNAUTHORIZED, _GONE, _BAD_RANGE = 400, 401, 410, 416
_RETRIED = {_BAD_REQUEST, 408, 429, *range(500, 600)}
_MAX_REASON = 300
_CHECK_NETWORK = "Check the network of this machine; the store may also be down for a while."

# Without gcsfs's retries around it: they wait longer than our timeout, and do not say what failed when it is over.
_send = GCSFileSystem._request.__wrapped__


class InterruptedTransferError(StoreUnavailableError):
    """An upload or download cannot be continued: it must be started again."""


class RangeError(InterruptedTransferError):
    """The object has no bytes in the range that was asked for."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: CIMultiDictProxy[str]
    content: bytes


class GcsClient:
    """Sends requests for the objects of one location.

    Attributes:
        objects: path of the bucket's objects, to list them; an object's path continues with a slash and its name.
        uploads: path to which new objects are sent.
    """

    def __init__(self, location: GcsLocation, timeout: float | None = None) -> None:
        """
        Args:
            location: where the objects are.
            timeout: how long a request is retried, and a transfer of content may take (seconds); None: 30 and 60.
        """
        self.objects = f"/storage/v1/b/{quote(location.bucket, safe='')}/o"
        self.uploads = f"/upload{self.objects}"
        self._bucket = location.bucket
        self._url = location.url
        self._retry_seconds = RETRY_SECONDS if timeout is None else timeout
        self._transfer_seconds = _TRANSFER_SECONDS if timeout is None else timeout
        self._connections: dict[int, tuple[GCSFileSystem, Identity]] = {}

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        transfer: bool = False,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Answer:
        """Send a request, with retries, and return the answer.

        Args:
            method: GET, POST, PUT or DELETE.
            path: a path on the service, or a whole URL.
            query: parameters of the query.
            transfer: whether content is sent or received, which may take longer.
            headers: headers of the request.
            data: its body.

        Raises:
            MissingObjectError: there is no such object, or no bucket where the path is that of an object.
            ObjectExistsError: a precondition failed.
            InterruptedTransferError: the upload's session is gone, or there are no bytes in the range.
            InputError, StoreUnavailableError: see `Store`.
        """

        def attempt(seconds_left: float) -> Answer:
            client, identity = self._connect()
            timeout = self._transfer_seconds if transfer else min(_ANSWER_SECONDS, seconds_left)
            with self._translated_errors(path, identity.description):
                identity.refresh()
                address = client.base.removesuffix("/storage/v1/") + path if path.startswith("/") else path
                status, answer_headers, _, content = fsspec.asyn.sync(
                    client.loop, _send, client, method, address, timeout=timeout, headers=headers, data=data, **query
                )
            return Answer(status, answer_headers, content)

        return retry(attempt, self._retry_seconds)

    def document(self, answer: Answer) -> dict[str, Any]:
        """Return the JSON object in an answer.

        Raises:
            TransientError: there is none.
        """
        try:
            document = json.loads(answer.content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise TransientError(f"{self._url} gave an answer that cannot be read")
        return document

    def _connect(self) -> tuple[GCSFileSystem, Identity]:
        """Return this process's client and credentials; a client cannot be used after a fork.

        If two threads make one at the same time, the later one is kept.
        """
        connection = self._connections.get(os.getpid())
        if connection is None:
            endpoint = _emulator()
            identity = ANONYMOUS if endpoint else find_identity()
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
            self._connections[os.getpid()] = connection = client, identity
        return connection

    @contextmanager
    def _translated_errors(self, path: str, identity: str) -> Iterator[None]:
        """Turn what a request raises into what a store may raise."""
        url = self._url
        try:
            yield
        except HttpError as error:
            raise self._of_status(error, identity) from error
        except FileNotFoundError as error:
            if path in (self.objects, self.uploads):
                raise InputError(
                    f"The store {url} cannot be used: there is no bucket '{self._bucket}'. Create it (gcloud storage "
                    f"buckets create gs://{self._bucket}) or correct its name."
                ) from error
            raise MissingObjectError(f"{url} has no such object") from error
        except FileExistsError as error:
            raise ObjectExistsError(f"{url} has this object already, in another version") from error
        except NonRetryableError as error:
            raise self._refused(identity, str(error)) from error
        except GoogleAuthError as error:
            raise self._of_credentials(error, identity) from error
        except (fsspec.FSTimeoutError, TimeoutError) as error:
            raise TransientError(f"{url} did not answer in time. {_CHECK_NETWORK}") from error
        except (aiohttp.ClientError, requests.exceptions.RequestException, ChecksumError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            # gcsfs raises it for JSON that cannot be parsed, and for most statuses if the text contains "invalid".
            raise TransientError(
                f"{url} refused a request or gave an answer that cannot be read ({reason_of(error)})"
            ) from error
        except OSError as error:
            status, _, reason = str(error).partition("\n")
            if not status.startswith("Forbidden"):
                raise self._unreachable(error) from error
            detail = f" ({reason.strip()[:_MAX_REASON]})" if reason.strip() else ""
            raise InputError(
                f"The store {url} cannot be used: {identity} may not list, read, write and delete there{detail}. Give "
                "the role 'Storage Object User' on the bucket, or choose another store."
            ) from error

    def _of_status(self, error: HttpError, identity: str) -> Exception:
        code = int(error.code) if str(error.code or "").isdigit() else 0
        if code == _GONE:
            return InterruptedTransferError(f"{self._url} has ended the session of an upload")
        if code == _BAD_RANGE:
            return RangeError(f"{self._url} has a shorter object")
        if code == _UNAUTHORIZED:
            if isinstance(error.__cause__, GoogleAuthError):
                return self._of_credentials(error.__cause__, identity)
            return self._refused(identity)
        answer = f"(HTTP {code}: {reason_of(error)})"
        if code in _RETRIED:
            return TransientError(f"{self._url} answers with an error {answer}. It may work later.")
        return StoreUnavailableError(f"{self._url} refused a request {answer}")

    def _of_credentials(self, error: GoogleAuthError, identity: str) -> Exception:
        if isinstance(error, RefreshError) and not error.retryable:
            return self._refused(identity, reason_of(error))
        return TransientError(
            f"The store {self._url} cannot be used yet: Google did not confirm {identity} ({reason_of(error)}). "
            f"{_CHECK_NETWORK}"
        )

    def _refused(self, identity: str, reason: str = "") -> InputError:
        detail = f" ({reason})" if reason else ""
        return InputError(
            f"The store {self._url} cannot be used: Google refused {identity}{detail}. Make a new key and point "
            "GOOGLE_APPLICATION_CREDENTIALS to it, or run: gcloud auth application-default login."
        )

    def _unreachable(self, error: Exception) -> TransientError:
        return TransientError(f"{self._url} cannot be reached ({reason_of(error)}). {_CHECK_NETWORK}")


def _emulator() -> str | None:
    """Return the URL of the emulator that the environment names, None for the real service."""
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
