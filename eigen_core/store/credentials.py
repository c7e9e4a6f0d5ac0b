"""Who this process is to Google Cloud."""

import functools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google.auth
import requests
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

from eigen_core.errors import InputError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_LARGEST_FILE = 1 << 20
_LONGEST = 300
_REFRESH_SECONDS = 4
# Longer than the five minutes that gcsfs keeps in reserve, so that it never asks itself.
_RESERVE = timedelta(minutes=6)
_METADATA_SECONDS = 1.0
_ADVICE = f"Make a key or a login (gcloud auth application-default login) and set {_FILE} to its file."

# It would ask the user to choose a project, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


class Identity:
    """Who asks.

    Attributes:
        credentials: what Google's library made of them; None for nobody in particular.
        who: how to name them in a sentence.
    """

    def __init__(self, credentials: Credentials | None, who: str) -> None:
        self.credentials = credentials
        self.who = who
        self._lock = threading.Lock()

    def confirm(self) -> None:
        """Have Google confirm the credentials, unless what it said lately holds for some minutes yet.

        gcsfs would do it too, but in the thread that serves all requests, where it may hold up everybody for minutes.

        Raises:
            GoogleAuthError: it does not, or cannot be reached.
        """
        if self.credentials is None or _hold_for_a_while(self.credentials):
            return
        refresh: Callable[..., None] = self.credentials.refresh
        with self._lock, requests.Session() as session:
            if not _hold_for_a_while(self.credentials):
                # The library would wait two minutes for an answer.
                refresh(functools.partial(Request(session), timeout=_REFRESH_SECONDS))


NOBODY = Identity(None, "a client without credentials")
"""Whom an emulator takes in."""


def find_identity(environ: Mapping[str, str]) -> Identity:
    """Return this process's credentials; nothing is asked of Google Cloud Storage yet.

    They are those of the file that GOOGLE_APPLICATION_CREDENTIALS names, else those of `gcloud auth
    application-default login`, else those that a machine of Google gives to its processes. There is no fallback from
    one to the other, and none to an anonymous client.

    Raises:
        InputError: there are none, or their file cannot be used.
    """
    named = environ.get(_FILE, "")
    path = Path(named) if named else _login_file(environ)
    none = f"There are no credentials for Google Cloud: {_FILE} is not set. {_ADVICE}"
    if named:
        _check_file(path)
    elif not path.exists() and not _is_machine_of_google(environ):
        raise InputError(none)
    source = str(path) if path.exists() else "this machine"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if not path.exists():
            raise InputError(none) from error
        raise InputError(f"The credentials of {source} cannot be used ({first_words(error)}). {_ADVICE}") from error
    account = getattr(credentials, "service_account_email", None)
    return Identity(credentials, f"{account} ({source})" if account else f"the credentials of {source}")


def _hold_for_a_while(credentials: Credentials) -> bool:
    if not credentials.valid:
        return False
    expiry: datetime | None = credentials.expiry
    return expiry is None or expiry.replace(tzinfo=UTC) - datetime.now(UTC) > _RESERVE


def first_words(error: BaseException) -> str:
    """Return what an error says, in one line of bearable length; its kind if it says nothing."""
    said = ", ".join(str(part) for part in error.args if isinstance(part, str | Exception)) or str(error)
    return " ".join(said.split())[:_LONGEST] or type(error).__name__


def _check_file(path: Path) -> None:
    """Say what is wrong with a file of credentials before a library says it less well."""
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise InputError(f"{_FILE} names {path}, where there is no file: correct it or unset it.") from error
    except OSError as error:
        raise InputError(f"{_FILE} names {path}, which cannot be read ({error.strerror}).") from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if len(content) > _LARGEST_FILE or not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise InputError(f"{_FILE} names {path}, which is not a file of credentials. {_ADVICE}")


def _login_file(environ: Mapping[str, str]) -> Path:
    """Return where gcloud keeps the credentials of a user who logged in."""
    folder = environ.get("CLOUDSDK_CONFIG")
    return (Path(folder) if folder else Path("~/.config/gcloud").expanduser()) / "application_default_credentials.json"


def _is_machine_of_google(environ: Mapping[str, str]) -> bool:
    """Whether somebody answers where machines of Google find their credentials.

    The library would look for them for 17 to 42 seconds on any other machine.
    """
    if environ.get("NO_GCE_CHECK") == "true":
        return False
    host, _, port = environ.get("GCE_METADATA_HOST", "169.254.169.254").partition(":")
    try:
        socket.create_connection((host, int(port or 80)), timeout=_METADATA_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def process_identity() -> Identity:
    """Return the credentials that the environment of this process leads to (see `find_identity`)."""
    return find_identity(os.environ)
