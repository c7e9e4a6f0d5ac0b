"""The credentials of this process for Google Cloud, found and refreshed without the client library's long waits."""

import functools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google.auth
import requests
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

from eigen_core.errors import InputError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_MAX_FILE_BYTES = 1 << 20
_MAX_REASON = 300
_REFRESH_SECONDS = 4
# Longer than the five minutes before expiry at which gcsfs refreshes, so that gcsfs itself never does.
_RESERVE = timedelta(minutes=6)
_METADATA_SECONDS = 1.0
_ADVICE = f"Make a key or a login (gcloud auth application-default login) and set {_VARIABLE} to its file."

# It warns that no project is chosen, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


class Identity:
    """Credentials and their description.

    Attributes:
        credentials: of Google's library; None for anonymous requests.
        description: what an error message calls them.
    """

    def __init__(self, credentials: Credentials | None, description: str) -> None:
        self.credentials = credentials
        self.description = description
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Refresh the access token unless it is valid for some minutes more.

        gcsfs would refresh it in the thread that serves all requests, and block them all for up to minutes.

        Raises:
            GoogleAuthError: Google refuses the credentials, or cannot be reached.
        """
        if self.credentials is None or _is_valid(self.credentials):
            return
        refresh: Callable[..., None] = self.credentials.refresh
        with self._lock, requests.Session() as session:
            if not _is_valid(self.credentials):
                # The library's own timeout is two minutes.
                refresh(functools.partial(Request(session), timeout=_REFRESH_SECONDS))


ANONYMOUS = Identity(None, "a client without credentials")
"""For an emulator."""


def find_identity() -> Identity:
    """Return this process's credentials, without a request to Google Cloud Storage.

    They are those of the file that GOOGLE_APPLICATION_CREDENTIALS names, else those of `gcloud auth
    application-default login`, else those of the Google machine on which this runs. If they cannot be used there is no
    fallback to the next, nor to anonymous requests.

    Raises:
        InputError: there are none, or their file cannot be used.
    """
    named = os.environ.get(_VARIABLE, "")
    path = Path(named) if named else _login_file()
    none = f"There are no credentials for Google Cloud: {_VARIABLE} is not set. {_ADVICE}"
    if named:
        _check_file(path)
    elif not path.exists() and not _is_machine_of_google():
        raise InputError(none)
    source = str(path) if path.exists() else "this machine"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if not path.exists():
            raise InputError(none) from error
        raise InputError(f"The credentials of {source} cannot be used ({reason_of(error)}). {_ADVICE}") from error
    account = getattr(credentials, "service_account_email", None)
    return Identity(credentials, f"{account} ({source})" if account else f"the credentials of {source}")


def reason_of(error: BaseException) -> str:
    """Return an error's text on one line of at most 300 characters; its type if it has none."""
    text = ", ".join(str(part) for part in error.args if isinstance(part, str | Exception)) or str(error)
    return " ".join(text.split())[:_MAX_REASON] or type(error).__name__


def _is_valid(credentials: Credentials) -> bool:
    if not credentials.valid:
        return False
    expiry: datetime | None = credentials.expiry
    return expiry is None or expiry.replace(tzinfo=UTC) - datetime.now(UTC) > _RESERVE


def _check_file(path: Path) -> None:
    """Refuse a file that holds no credentials, with a clearer message than the library's."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{_VARIABLE} names {path}, where there is no file: correct it or unset it.") from error
    except OSError as error:
        raise InputError(f"{_VARIABLE} names {path}, which cannot be read ({error.strerror}).") from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if len(content) > _MAX_FILE_BYTES or not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise InputError(f"{_VARIABLE} names {path}, which is not a file of credentials. {_ADVICE}")


def _login_file() -> Path:
    """Return the path at which gcloud keeps the credentials of a user who logged in."""
    folder = os.environ.get("CLOUDSDK_CONFIG")
    return (Path(folder) if folder else Path("~/.config/gcloud").expanduser()) / "application_default_credentials.json"


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
