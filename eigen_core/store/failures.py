"""What the client of Google Cloud Storage raises, in the words of `Store`."""

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import fsspec
import requests
from gcsfs.retry import ChecksumError, HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError, RefreshError

from eigen_core.errors import InputError
from eigen_core.store.bucket import LostUploadError
from eigen_core.store.credentials import first_words
from eigen_core.store.interface import MissingObjectError, ObjectExistsError, StoreUnavailableError
from eigen_core.store.patience import TransientError

_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_GONE = 410
_RANGE = 416
_WORTH_ANOTHER_TRY = {_BAD_REQUEST, 408, 429, *range(500, 600)}
_LONGEST = 300


class OutOfRangeError(Exception):
    """There are no bytes where some were asked for."""


@contextmanager
def translated(place: str, who: str) -> Iterator[None]:
    """Turn what a request to Google Cloud Storage raises into what a store may raise.

    A bucket that is missing looks like an object that is: both raise `MissingObjectError`.

    Args:
        place: the store's URL.
        who: whose credentials were used, in words.
    """
    try:
        yield
    except HttpError as error:
        raise _of_status(error, place, who) from error
    except FileNotFoundError as error:
        raise MissingObjectError(f"{place} has no such object") from error
    except FileExistsError as error:
        raise ObjectExistsError(f"{place} has this object already, in another version") from error
    except NonRetryableError as error:
        raise _no_access(place, who, str(error)) from error
    except GoogleAuthError as error:
        raise _of_credentials(error, place, who) from error
    except (fsspec.FSTimeoutError, TimeoutError) as error:
        raise TransientError(f"{place} did not answer in time. {_CHECK_NETWORK}") from error
    except (aiohttp.ClientError, requests.exceptions.RequestException, ChecksumError) as error:
        raise TransientError(f"{place} cannot be reached ({first_words(error)}). {_CHECK_NETWORK}") from error
    except ValueError as error:
        # gcsfs raises this for every status but a few whose text has the word "invalid", and for broken JSON.
        raise TransientError(
            f"{place} refused a request or gave an answer that cannot be read ({first_words(error)})"
        ) from error
    except OSError as error:
        if str(error).startswith("Forbidden"):
            raise _no_permission(place, who, str(error).partition("\n")[2]) from error
        raise TransientError(f"{place} cannot be reached ({first_words(error)}). {_CHECK_NETWORK}") from error


_CHECK_NETWORK = "Check the network of this machine; the store may also be down for a while."


def missing_bucket(place: str, bucket: str) -> InputError:
    """Return the error for a bucket that is not there."""
    return InputError(
        f"The store {place} cannot be used: there is no bucket '{bucket}'. Create it (gcloud storage buckets create "
        f"gs://{bucket}) or correct its name."
    )


def _of_status(error: HttpError, place: str, who: str) -> Exception:
    code = int(error.code) if str(error.code or "").isdigit() else 0
    if code == _GONE:
        return LostUploadError(f"{place} has forgotten an upload")
    if code == _RANGE:
        return OutOfRangeError(place)
    if code == _UNAUTHORIZED:
        cause = error.__cause__
        return _of_credentials(cause, place, who) if isinstance(cause, GoogleAuthError) else _no_access(place, who, "")
    if code in _WORTH_ANOTHER_TRY:
        return TransientError(f"{place} answers with an error (HTTP {code}: {first_words(error)}). It may work later.")
    return StoreUnavailableError(f"{place} refused a request (HTTP {code}: {first_words(error)})")


def _of_credentials(error: GoogleAuthError, place: str, who: str) -> Exception:
    if isinstance(error, RefreshError) and not error.retryable:
        return _no_access(place, who, first_words(error))
    return TransientError(
        f"The store {place} cannot be used yet: Google did not confirm {who} ({first_words(error)}). {_CHECK_NETWORK}"
    )


def _no_access(place: str, who: str, reason: str) -> InputError:
    said = f" ({reason})" if reason else ""
    return InputError(
        f"The store {place} cannot be used: Google refused {who}{said}. Make a new key and point "
        "GOOGLE_APPLICATION_CREDENTIALS to it, or run: gcloud auth application-default login."
    )


def _no_permission(place: str, who: str, reason: str) -> InputError:
    said = f" ({reason.strip()[:_LONGEST]})" if reason.strip() else ""
    return InputError(
        f"The store {place} cannot be used: {who} may not list, read, write and delete there{said}. Give the role "
        "'Storage Object User' on the bucket, or choose another store."
    )
