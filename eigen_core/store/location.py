"""Where stores are: URLs, paths and environment variables, and the store that each of them means."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from eigen_core.common.errors import InputError
from eigen_core.common.text import has_credentials
from eigen_core.store.interface import Store
from eigen_core.store.local import LocalStore

LOOKS = "looks/"
"""Folder of a store that belongs to no run: the ledger of looks."""
LOOKS_CHAIN = "looks-chain/"
"""Another one: the chain by which changes of that ledger are found; apart, so that it outlives the folder."""
LEDGER_HEAD = "ledger.json"
"""An object beside them: number and SHA-256 of the newest entry of that chain."""
WALKS = "walks/"
"""Another one: what walks were begun as, and what they came to."""
_RUN_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,100}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEME_WITHOUT_SLASHES = re.compile(r"(?:gs|gcs|s3|file|memory|https?):(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PREFIX_PART = re.compile(r"(?!\.)[A-Za-z0-9._=+-]{1,200}")


def check_run_name(name: str) -> str:
    """Return `name` if it is valid for a run.

    Raises:
        InputError: it is not: a name is 1 to 100 letters (a to z), digits, dots, dashes and underscores, no dot or
            dash first; and not `looks`, `looks-chain`, `ledger.json` or `walks`, which lie beside the runs.
    """
    if name == LEDGER_HEAD or f"{name}/" in (LOOKS, LOOKS_CHAIN, WALKS):
        kind = "file" if name == LEDGER_HEAD else "folder"
        raise InputError(f"A run cannot be named {name!r}: the store has a {kind} of that name. Choose another.")
    if not _RUN_NAME.fullmatch(name):
        raise InputError(
            f"A run cannot be named {name[:120]!r}: use 1 to 100 letters (a to z), digits, dots, dashes and "
            "underscores, and no dot or dash first."
        )
    return name


@dataclass(frozen=True)
class GcsLocation:
    """A bucket of Google Cloud Storage and a prefix in it.

    Attributes:
        bucket: the bucket's name.
        prefix: what all names in the bucket begin with, without slashes around it; it may be empty.
    """

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The URL as a user would write it."""
        return f"gs://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def gcs_location(store: str) -> GcsLocation | None:
    """Return the location of a store given as a `gs://` URL, None if the store is a folder on this machine.

    Raises:
        InputError: the URL has another scheme, or its bucket or prefix is invalid.
    """
    if has_credentials(store):
        raise InputError(
            "The store has a user or a password in its URL: leave it out, and name a key file with "
            "GOOGLE_APPLICATION_CREDENTIALS."
        )
    scheme = _scheme(store)
    if scheme in ("", "file"):
        return None
    if scheme not in ("gs", "gcs"):
        raise InputError(
            f"The store '{store}' cannot be used: runs are kept in a folder or on Google Cloud Storage. Give a path, "
            "such as 'runs', or a URL like gs://bucket/prefix."
        )
    bucket, *parts = store.partition("://")[2].split("/")
    if not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"The store '{store}' names no bucket: after gs:// comes a bucket's name, of 3 to 222 lower-case "
            "letters, digits, dashes, underscores and dots."
        )
    while parts and not parts[-1]:
        parts.pop()
    if not all(_PREFIX_PART.fullmatch(part) for part in parts):
        raise InputError(
            f"The store '{store}' has a prefix that cannot be used: between its slashes, use letters (a to z), "
            "digits, and . _ = + - with no dot first."
        )
    return GcsLocation(bucket, "/".join(parts))


def store_folder(store: str) -> Path:
    """Return the absolute folder of a store given as a path or a `file://` URL; it need not exist.

    Raises:
        InputError: the store is not a folder on this machine.
    """
    if not store or "\0" in store:
        raise InputError("The store's path is empty or has a zero byte: give a folder, such as 'runs'.")
    if _SCHEME_WITHOUT_SLASHES.match(store):
        raise InputError(
            f"The store '{store}' is neither a folder nor a URL: write it like gs://bucket/prefix, or ./{store} if a "
            "folder is meant."
        )
    scheme = _scheme(store)
    if not scheme:
        try:
            return Path(store).expanduser().absolute()
        except RuntimeError as error:
            raise InputError(f"The store '{store}' is in a home folder that is not known: give its path.") from error
    host, slash, path = store.partition("://")[2].partition("/")
    folder = slash + unquote(path)
    # An unescaped question mark or hash would start the URL's query or fragment.
    fits = host in ("", "localhost") and slash and not set(path) & set("?#") and "\0" not in folder
    if scheme != "file" or not fits:
        raise InputError(
            f"The store '{store}' is no folder on this machine: give a path, such as 'runs', or a URL like "
            "file:///data/runs."
        )
    return Path(folder)


def _scheme(store: str) -> str:
    """Return the scheme of a URL in lower case, "" for a path."""
    match = _SCHEME.match(store)
    return match[0].removesuffix("://").lower() if match else ""


def open_store(url: str) -> Store:
    """Return the store at a folder's path, a `file://` URL or `gs://bucket/prefix`, without accessing it.

    `Store.check` checks whether it can be used.

    Raises:
        InputError: the URL is none of these.
    """
    location = gcs_location(url)
    if location is None:
        return LocalStore(store_folder(url))
    _refuse_pickled_tokens()
    # Importing the client takes a second, which runs in a folder do not need to spend.
    from eigen_core.store.gcs import GcsStore

    return GcsStore(location)


def _refuse_pickled_tokens() -> None:
    """Raise `InputError` if importing gcsfs would unpickle tokens of an old version, which can run any code."""
    path = Path.home() / ".gcs_tokens"
    if os.path.lexists(path):
        raise InputError(
            f"{path} holds tokens of an old login in a form that can run code when it is read: remove it, and name a "
            "key file with GOOGLE_APPLICATION_CREDENTIALS instead."
        )


def is_remote(url: str) -> bool:
    """Whether a store is not on this machine, so that runs reach it through a run directory on this machine.

    Raises:
        InputError: it is not a store.
    """
    return gcs_location(url) is not None


def run_root(url: str, local: str) -> Path:
    """Return the absolute folder of this machine that contains the run directories of a store.

    Args:
        url: the store.
        local: the folder (`checkpoint.local`) for the run directories of remote stores.

    Raises:
        InputError: `url` is not a store, or `local` not a folder.
    """
    location = gcs_location(url)
    if location is None:
        return store_folder(url)
    return store_folder(local).joinpath(".remote", "gs", location.bucket, *location.prefix.split("/"))


def store_from_environment(environ: Mapping[str, str]) -> str | None:
    """Return the store that EIGEN_STORE names, None if it names none.

    Raises:
        InputError: CLOUD_BUCKET alone names one, as in the system that Eigen replaces.
    """
    store, bucket = environ.get("EIGEN_STORE", "").strip(), environ.get("CLOUD_BUCKET", "").strip()
    if bucket and not store:
        raise InputError(
            f"CLOUD_BUCKET is set, which Eigen does not read: set EIGEN_STORE=gs://{bucket.removeprefix('gs://')} to "
            "keep runs there, or unset it."
        )
    return store or None
