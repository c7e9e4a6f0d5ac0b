"""Names of runs, places of stores, and sentences for a place that cannot be used."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from eigen_core.errors import InputError

_RUN_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,100}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SLIP = re.compile(r"(?:gs|gcs|s3|file|memory|https?):(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PREFIX_PART = re.compile(r"(?!\.)[A-Za-z0-9._=+-]{1,200}")

_NOT_A_FOLDER = "a file is in the place of a folder. Move it away or choose another store"
_FORBIDDEN = "it is not allowed. Change the permissions or choose another store"
_FULL = "there is no space left. Free some or choose another store"
_CANNOT_LOCK = "its file system cannot lock files. Choose a store on a local disk"
_REASONS = {
    errno.ENOENT: "a folder is missing and cannot be created there. Choose another store",
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EISDIR: "a folder is in the place of a file. Move it away or choose another store",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: "the file system is read-only. Choose another store",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file would be larger than is allowed there. Choose another store",
    errno.ENAMETOOLONG: "the path is too long. Choose a shorter one",
    errno.ELOOP: "its links lead in a circle. Choose another store",
    errno.ENXIO: "something that is no file is in its place. Move it away",
    errno.ENOLCK: _CANNOT_LOCK,
    errno.EOPNOTSUPP: _CANNOT_LOCK,
}


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn the errors of the file system that a user can put right into an `InputError` with a sentence.

    Args:
        action: what was tried, after "Cannot": "save generation 7 in".
        path: where.
    """
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        raise InputError(f"Cannot {action} {path}: {reason}.") from error


def check_run_name(name: str) -> str:
    """Return `name` if a run may be called so.

    Raises:
        InputError: it may not: a name is 1 to 100 letters (a to z), digits, dots, dashes and underscores, no dot or
            dash first.
    """
    if not _RUN_NAME.fullmatch(name):
        raise InputError(
            f"A run cannot be named {name[:120]!r}: use 1 to 100 letters (a to z), digits, dots, dashes and "
            "underscores, and no dot or dash first."
        )
    return name


def store_folder(store: str) -> Path:
    """Return the absolute folder of a store given as a path or a `file://` URL; it need not exist.

    Raises:
        InputError: the store is something else than a folder on this machine.
    """
    if not store or "\0" in store:
        raise InputError("The store's path is empty or has a zero byte: give a folder, such as 'runs'.")
    if _SLIP.match(store):
        raise InputError(
            f"The store '{store}' is neither a folder nor a URL: write it like gs://bucket/prefix, or ./{store} if a "
            "folder is meant."
        )
    if not _SCHEME.match(store):
        try:
            return Path(store).expanduser().absolute()
        except RuntimeError as error:
            raise InputError(f"The store '{store}' is in a home folder that is not known: give its path.") from error
    host, slash, path = store.partition("://")[2].partition("/")
    folder = slash + unquote(path)
    # A question mark or a hash would begin another part of the URL; in the name of a folder they are written %3F, %23.
    fits = host in ("", "localhost") and slash and not set(path) & set("?#") and "\0" not in folder
    if not store.lower().startswith("file:") or not fits:
        raise InputError(
            f"The store '{store}' is no folder on this machine: give a path, such as 'runs', or a URL like "
            "file:///data/runs."
        )
    return Path(folder)


@dataclass(frozen=True)
class RemotePlace:
    """Where a store elsewhere is.

    Attributes:
        scheme: "gs", or "memory" for one that ends with this process.
        bucket: its bucket.
        prefix: what all names in the bucket begin with, without slashes around it; it may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The place as a user would write it."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def remote_place(store: str) -> RemotePlace | None:
    """Return the place of a store elsewhere given as a URL, None if the store is a folder on this machine.

    Raises:
        InputError: the URL is of a kind that cannot keep runs, or its bucket or prefix cannot be.
    """
    match = _SCHEME.match(store)
    scheme = match[0].removesuffix("://").lower() if match else "file"
    if match is None or scheme == "file":
        return None
    scheme = "gs" if scheme == "gcs" else scheme
    if scheme not in ("gs", "memory"):
        raise InputError(
            f"The store '{store}' cannot be used: runs are kept in a folder or on Google Cloud Storage. Give a path, "
            "such as 'runs', or a URL like gs://bucket/prefix."
        )
    bucket, *parts = store[match.end() :].split("/")
    if not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"The store '{store}' names no bucket: after {scheme}:// comes a bucket's name, of 3 to 222 lower-case "
            "letters, digits, dashes, underscores and dots."
        )
    while parts and not parts[-1]:
        parts.pop()
    if not all(_PREFIX_PART.fullmatch(part) for part in parts):
        raise InputError(
            f"The store '{store}' has a prefix that cannot be used: between its slashes, use letters (a to z), "
            "digits, and . _ = + - with no dot first."
        )
    return RemotePlace(scheme, bucket, "/".join(parts))
