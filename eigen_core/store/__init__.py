"""Stores: where runs are kept, on a disk or on Google Cloud Storage, behind one interface."""

from eigen_core.store.interface import (
    MissingObjectError,
    ObjectExistsError,
    Progress,
    Store,
    StoredObject,
    StoreUnavailableError,
)

__all__ = [
    "MissingObjectError",
    "ObjectExistsError",
    "Progress",
    "Store",
    "StoreUnavailableError",
    "StoredObject",
]
