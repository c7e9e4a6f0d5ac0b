"""Where a store is: parse its URL or path, and open it."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from eigen_core.checkpoint.store import GcsLocation, LocalStore, Store
from eigen_core.common.errors import InputError
from eigen_core.common.files import require_own_files
from eigen_core.common.text import has_credentials

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEME_WITHOUT_SLASHES = re.compile(r"(?:gs|gcs|s3|file|memory|https?):(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PREFIX_PART = re.compile(r"(?!\.)[A-Za-z0-9._=+-]{1,200}")


def gcs_location(store: str) -> GcsLocation | None:
    """Return the location of a `gs://` URL, None for a path; `InputError` for any other `store`."""
    if has_credentials(store):
        raise InputError(
            "The store has a user or a password in its URL: leave it out, and name a key file with "
            "GOOGLE_APPLICATION_CREDENTIALS."
        )
    scheme = _scheme(store)
    if not scheme:
        return None
    if scheme not in ("gs", "gcs"):
        raise InputError(
            f"The store '{store}' cannot be used: runs are kept in a folder or on Google Cloud Storage. Give a path, "
            "such as 'runs', or a URL like gs://bucket/prefix."
        )
    bucket, *parts = store.partition("://")[2].rstrip("/").split("/")
    if not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"The store '{store}' names no bucket: after gs:// comes a bucket's name, of 3 to 222 lower-case "
            "letters, digits, dashes, underscores and dots."
        )
    if not all(_PREFIX_PART.fullmatch(part) for part in parts):
        raise InputError(
            f"The store '{store}' has a prefix that cannot be used: between its slashes, use letters (a to z), "
            "digits, and . _ = + - with no dot first."
        )
    return GcsLocation(bucket, "/".join(parts))


def store_folder(store: str) -> Path:
    """Return the absolute path of a folder; `InputError` if `store` is none."""
    if not store or "\0" in store:
        raise InputError("The store's path is empty or has a zero byte: give a folder, such as 'runs'.")
    if _SCHEME_WITHOUT_SLASHES.match(store):
        raise InputError(
            f"The store '{store}' is neither clearly a folder nor a URL: write gs://bucket/prefix, or ./{store} "
            "for a folder."
        )
    if _scheme(store):
        raise InputError(f"The store '{store}' is no folder on this machine: give a path, such as 'runs'.")
    try:
        return Path(store).expanduser().absolute()
    except RuntimeError as error:
        raise InputError(f"The home folder in the path '{store}' is not known: write the whole path.") from error


def _scheme(store: str) -> str:
    match = _SCHEME.match(store)
    return match[0].removesuffix("://").lower() if match else ""


def is_remote(url: str) -> bool:
    """Whether the store is a bucket, not a folder; then a run that trains here has a directory on this machine, too."""
    return gcs_location(url) is not None


def run_root(url: str, local: str) -> Path:
    """Return the absolute folder of run directories: the store, or for a bucket one in `local` (`checkpoint.local`)."""
    location = gcs_location(url)
    if location is None:
        return store_folder(url)
    return store_folder(local).joinpath(".remote", "gs", location.bucket, *location.prefix.split("/"))


def command_for(command: str, run: str, store: str) -> str:
    """Return the command `eigen` of this name for a run of a store (URL or path), to be pasted into a shell here."""
    # Imported here because a command that prints its help must not load all settings.
    from eigen_core.config.model import CheckpointConfig

    usual = CheckpointConfig().store
    option = "" if store in (usual, str(store_folder(usual))) else f" --store {shlex.quote(store)}"
    return f"eigen {command} {run}{option}"


def own_folder(url: str, local: str, name: str, is_checked: Callable[[str], bool] = lambda _: False) -> Path:
    """Return the folder `name` in `run_root`, which may be missing; raises as `require_own_files`."""
    root = run_root(url, local)
    chosen = store_folder(local) if is_remote(url) else root
    return require_own_files(chosen, (root / name).relative_to(chosen).as_posix(), is_checked)


def store_from_environment(environ: Mapping[str, str]) -> str | None:
    """Return the value of EIGEN_STORE, None if unset; `InputError` if only CLOUD_BUCKET is set, which Eigen ignores."""
    store, bucket = environ.get("EIGEN_STORE", "").strip(), environ.get("CLOUD_BUCKET", "").strip()
    if bucket and not store:
        raise InputError(
            f"CLOUD_BUCKET is set, which Eigen does not read: set EIGEN_STORE=gs://{bucket.removeprefix('gs://')} to "
            "keep runs there, or unset it."
        )
    return store or None


def open_store(url: str) -> Store:
    """Return the store at a folder's path or `gs://bucket/prefix`; `InputError` for anything else."""
    location = gcs_location(url)
    if location is None:
        return LocalStore(store_folder(url))
    # Importing the client takes a second, which runs in a folder do not need to spend.
    from eigen_core.checkpoint.gcs import GcsStore

    return GcsStore(location)


def require_store(url: str) -> None:
    """Check within 15 seconds that a remote store can be used, or raise; a folder is checked when a run is created."""
    if is_remote(url):
        open_store(url).check()
