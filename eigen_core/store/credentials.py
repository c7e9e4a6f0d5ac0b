"""The credentials of this process for Google Cloud, found and refreshed without the client library's long waits."""

import functools
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google.auth
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.cloud.storage.retry import DEFAULT_RETRY

from eigen_core.errors import InputError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_MAX_REASON = 300
_REFRESH_SECONDS = 4
# Longer than the five minutes before expiry at which gcsfs refreshes, so that gcsfs itself never does.
_RESERVE = timedelta(minutes=6)
_METADATA_SECONDS = 1.0
_ADVICE = f"Make a key or a login (gcloud auth application-default login) and set {_VARIABLE} to its file."

# It warns that no project is chosen, which no store needs.
logging.getLogger("google.auth._default").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Identity:
    """Credentials of Google's library, and what an error message calls them."""

    credentials: Credentials
    description: str

    def refresh(self) -> None:
        """Refresh the access token unless it is valid for some minutes more.

        gcsfs would refresh it in the thread that serves all requests, and block them all for up to minutes.

        Raises:
            GoogleAuthError, RetryError: Google refuses the credentials, or cannot be reached.
        """
        expiry: datetime | None = self.credentials.expiry
        lasts = expiry is None or expiry.replace(tzinfo=UTC) - datetime.now(UTC) > _RESERVE
        if not (self.credentials.valid and lasts):
            # The library's own timeout is two minutes.
            request = functools.partial(Request(), timeout=_REFRESH_SECONDS)
            DEFAULT_RETRY.with_timeout(2 * _REFRESH_SECONDS)(self.credentials.refresh)(request)


def find_identity(*, anonymous: bool) -> Identity:
    """Return this process's credentials, without a request to Google Cloud Storage.

    They are those of the file that GOOGLE_APPLICATION_CREDENTIALS names, else those of `gcloud auth
    application-default login`, else those of the Google machine on which this runs. If they cannot be used there is no
    fallback to the next, nor to anonymous requests.

    Args:
        anonymous: return those of anonymous requests.

    Raises:
        InputError: there are none, or their file cannot be used.
    """
    if anonymous:
        without: Callable[[], Credentials] = AnonymousCredentials
        return Identity(without(), "a client without credentials")
    named = os.environ.get(_VARIABLE, "")
    # Where gcloud keeps the credentials of a user who logged in.
    logins = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    path = Path(named) if named else logins / "application_default_credentials.json"
    has_file = bool(named) or path.exists()
    if not has_file and not _is_machine_of_google():
        raise InputError(f"There are no credentials for Google Cloud: {_VARIABLE} is not set. {_ADVICE}")
    source = f"the credentials of {path if has_file else 'this machine'}"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise InputError(f"T{source[1:]} cannot be used ({reason_of(error)}). {_ADVICE}") from error
    account = getattr(credentials, "service_account_email", None)
    return Identity(credentials, f"{account} ({path})" if account and has_file else source)


def reason_of(error: BaseException) -> str:
    """Return an error's text on one line of at most 300 characters; its type if it has none."""
    text = ", ".join(str(part) for part in error.args if isinstance(part, str | Exception)) or str(error)
    return " ".join(text.split())[:_MAX_REASON] or type(error).__name__


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
