"""Locations of runs: the store at a URL, its folder on this machine, and the runs in it."""

import heapq
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eigen_core.checkpoint.file_lock import FileLock
from eigen_core.checkpoint.integrity import LOCK_NAME, Damage
from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents, age_key
from eigen_core.checkpoint.store import Store, check_run_name, gcs_location, is_remote, run_root, store_folder
from eigen_core.common.errors import InputError
from eigen_core.config.model import CheckpointConfig


def open_store(url: str) -> Store:
    """Return the store at a folder's path, a `file://` URL or `gs://bucket/prefix`, without accessing it."""
    location = gcs_location(url)
    if location is None:
        return LocalStore(store_folder(url))
    tokens = Path.home() / ".gcs_tokens"
    if os.path.lexists(tokens):
        # gcsfs, once it is imported, unpickles those of an old version, which can run any code.
        raise InputError(
            f"{tokens} holds the tokens of an old login as a pickle, which can run code when it is read: remove it, "
            "and set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file (JSON) instead."
        )
    # Importing the client takes a second, which runs in a folder do not need to spend.
    from eigen_core.checkpoint.gcs import GcsStore

    return GcsStore(location)


@dataclass(frozen=True)
class RunLocation:
    """A run's location: its store, a bucket if `remote`, and `root`, the folder of its directory on this machine."""

    name: str
    store: Store
    root: Path
    remote: bool

    @classmethod
    def of(cls, settings: CheckpointConfig, name: str) -> "RunLocation":
        url = settings.store
        check_run_name(name)
        return cls(name, open_store(url), run_root(url, settings.local), is_remote(url))

    @property
    def local(self) -> RunContents:
        return RunContents(LocalStore(self.root), self.name)

    @property
    def stored(self) -> RunContents:
        return RunContents(self.store, self.name) if self.remote else self.local

    def is_locked(self) -> bool:
        return FileLock(self.root / self.name / LOCK_NAME).is_taken()

    def exists(self) -> bool:
        return self.local.exists() or (self.remote and self.stored.exists())

    def contents(self) -> list[RunContents]:
        """Return the contents of the run in each location that may have generations of it, this machine first."""
        return [self.local, self.stored] if self.remote else [self.local]


def newest_of(contents: Iterable[RunContents]) -> Iterator[tuple[RunContents, Manifest | Damage]]:
    """Yield all manifests of a run with the contents that hold them, newest first; ties in the order of `contents`."""

    def pairs(one: RunContents) -> Iterator[tuple[RunContents, Manifest | Damage]]:
        return ((one, found) for found in one.newest_first())

    return heapq.merge(*map(pairs, contents), key=lambda pair: age_key(pair[1]), reverse=True)


def list_runs(store: Store) -> list[str]:
    return [name for name in store.folders("") if RunContents(store, name).exists()]


def no_such_run(store: Store, name: str) -> InputError:
    runs = list_runs(store)
    held = f"it holds {', '.join(runs[:20])}{', ...' if len(runs) > 20 else ''}" if runs else "it holds none"
    return InputError(f"There is no run '{name}' in {store.url}: {held}.")
