"""Names of runs, places of stores, and sentences for a place that cannot be used."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from eigen_core.errors import InputError

_RUN_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

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
        InputError: it may not: a name is 1 to 100 letters (a to z), digits, dots, dashes and underscores, no dot first.
    """
    if not _RUN_NAME.fullmatch(name):
        raise InputError(
            f"A run cannot be named {name[:120]!r}: use 1 to 100 letters (a to z), digits, dots, dashes and "
            "underscores, and no dot first."
        )
    return name


def store_folder(store: str) -> Path:
    """Return the absolute folder of a store given as a path or a `file://` URL; it need not exist.

    Raises:
        InputError: the store is something else than a folder on this machine.
    """
    if not store or "\0" in store:
        raise InputError("The store's path is empty or has a zero byte: give a folder, such as 'runs'.")
    if not _SCHEME.match(store):
        try:
            return Path(store).expanduser().absolute()
        except RuntimeError as error:
            raise InputError(f"The store '{store}' is in a home folder that is not known: give its path.") from error
    url = urlsplit(store)
    path = Path(unquote(url.path))
    if url.scheme != "file" or url.netloc not in ("", "localhost") or not path.is_absolute() or "\0" in str(path):
        raise InputError(
            f"The store '{store}' cannot be used: this version keeps runs in a folder only. "
            "Give a path, such as 'runs', or a URL like file:///data/runs."
        )
    return path
