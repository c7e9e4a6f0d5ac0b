"""Stores: where runs are kept, on a disk or on Google Cloud Storage, behind one interface."""

from eigen_core.store.interface import (
    MissingObjectError,
    ObjectExistsError,
    Progress,
    Store,
    StoredObject,
    StoreUnavailableError,
    created,
)
from eigen_core.store.local import LocalStore
from eigen_core.store.location import (
    check_run_name,
    is_remote,
    open_store,
    run_root,
    store_folder,
    store_from_environment,
)

__all__ = [
    "LocalStore",
    "MissingObjectError",
    "ObjectExistsError",
    "Progress",
    "Store",
    "StoreUnavailableError",
    "StoredObject",
    "check_run_name",
    "created",
    "is_remote",
    "open_store",
    "run_root",
    "store_folder",
    "store_from_environment",
]
