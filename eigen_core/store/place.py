"""From what a user says to a store."""

import os
from collections.abc import Mapping
from pathlib import Path

from eigen_core.errors import InputError
from eigen_core.store.interface import Store
from eigen_core.store.local import LocalStore
from eigen_core.store.location import remote_place, store_folder

_REMOTE_FOLDER = ".remote"


def open_store(url: str) -> Store:
    """Return the store at a folder's path, a `file://` URL, `gs://bucket/prefix` or `memory://name/prefix`.

    Nothing is asked of it yet: that is what `Store.check` is for.

    Raises:
        InputError: it is none of these.
    """
    place = remote_place(url)
    if place is None:
        return LocalStore(store_folder(url))
    _refuse_pickled_tokens()
    # The clients of the services take a second to import, which whoever keeps runs in a folder need not wait for.
    from eigen_core.store.remote import open_remote

    return open_remote(place)


def _refuse_pickled_tokens() -> None:
    """Raise `InputError` if gcsfs, when it is imported, would find tokens that an old version of it has pickled.

    Reading such a file runs whatever somebody may have put into it.
    """
    path = Path.home() / ".gcs_tokens"
    if os.path.lexists(path):
        raise InputError(
            f"{path} holds tokens of an old login in a form that can run code when it is read: remove it, and name a "
            "key file with GOOGLE_APPLICATION_CREDENTIALS instead."
        )


def is_remote(url: str) -> bool:
    """Whether a store is elsewhere, so that runs reach it through a run directory on this machine.

    Raises:
        InputError: it is no store.
    """
    return remote_place(url) is not None


def run_root(url: str, local: str) -> Path:
    """Return the absolute folder of this machine in which the run directories of a store are.

    Args:
        url: the store.
        local: the folder (`checkpoint.local`) that takes what is on its way to a store elsewhere.

    Raises:
        InputError: it is no store, or `local` no folder.
    """
    place = remote_place(url)
    if place is None:
        return store_folder(url)
    return store_folder(local).joinpath(_REMOTE_FOLDER, place.scheme, place.bucket, *place.prefix.split("/"))


def store_from_environment(environ: Mapping[str, str]) -> str | None:
    """Return the store that the environment names, None if it names none.

    `EIGEN_STORE` is a store as `open_store` takes it. `CLOUD_PROVIDER=gcs` with `CLOUD_BUCKET=bucket` or
    `bucket/prefix` is how the system that came before was told.

    Raises:
        InputError: they contradict each other, one is missing, or the provider is unknown.
    """
    store = environ.get("EIGEN_STORE", "").strip()
    cloud = _cloud_store(environ.get("CLOUD_PROVIDER", "").strip(), environ.get("CLOUD_BUCKET", "").strip())
    if store and cloud and remote_place(store) != remote_place(cloud):
        raise InputError(
            f"EIGEN_STORE is '{store}' but CLOUD_PROVIDER and CLOUD_BUCKET mean '{cloud}': unset one of the two."
        )
    return store or cloud


def _cloud_store(provider: str, bucket: str) -> str | None:
    """Return the store that `CLOUD_PROVIDER` and `CLOUD_BUCKET` name, None if both are empty."""
    if not provider and not bucket:
        return None
    if provider.lower() not in ("", "gcs", "gs"):
        raise InputError(
            f"CLOUD_PROVIDER is '{provider}', but 'gcs' is the only one known: set that, or unset it and give the "
            "store as EIGEN_STORE."
        )
    if not provider:
        raise InputError("CLOUD_BUCKET is set without CLOUD_PROVIDER: set CLOUD_PROVIDER=gcs too, or unset it.")
    if not bucket:
        raise InputError(
            f"CLOUD_PROVIDER is '{provider}' but CLOUD_BUCKET is not set: set it to a bucket's name, which a slash and "
            "a prefix may follow."
        )
    place = remote_place(f"gs://{bucket.removeprefix('gs://')}")
    return place.url if place else None
