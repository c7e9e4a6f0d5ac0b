"""Where a run is kept, and what of it is where."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eigen_core.checkpoint.contents import RunContents, newness
from eigen_core.checkpoint.damage import Damage
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.config.running import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import LocalStore, Store, check_run_name, is_remote, open_store, run_root


@dataclass(frozen=True)
class RunLocation:
    """Where a run is kept.

    Attributes:
        name: the run.
        store: where it is kept; for a folder the run directory lies in it.
        root: folder of this machine that holds the run directory.
        remote: the store is elsewhere.
    """

    name: str
    store: Store
    root: Path
    remote: bool

    @classmethod
    def of(cls, settings: CheckpointConfig, name: str) -> "RunLocation":
        """Return the location that the settings name.

        Raises:
            InputError: they name none, or no run can have this name.
        """
        url = settings.store
        check_run_name(name)
        return cls(name, open_store(url), run_root(url, settings.local), is_remote(url))

    @property
    def local(self) -> RunContents:
        """What is on this machine."""
        return RunContents(LocalStore(self.root), self.name)

    @property
    def stored(self) -> RunContents:
        """What is in the store."""
        return RunContents(self.store, self.name) if self.remote else self.local

    def exists(self) -> bool:
        """Whether the run was begun, here or in the store."""
        return self.local.exists() or (self.remote and self.stored.exists())

    def contents(self) -> list[RunContents]:
        """All places that may hold the run's generations, this machine first."""
        return [self.local, self.stored] if self.remote else [self.local]


def newest_of(contents: Iterable[RunContents]) -> Iterator[tuple[RunContents, Manifest | Damage]]:
    """Yield all manifests of a run and where they are, as `RunContents.newest_first` does.

    Of those that are equally new, those of the first contents come first.
    """

    def pairs(one: RunContents) -> Iterator[tuple[RunContents, Manifest | Damage]]:
        return ((one, found) for found in one.newest_first())

    return heapq.merge(*map(pairs, contents), key=lambda pair: newness(pair[1]), reverse=True)


def list_runs(store: Store) -> list[str]:
    """Return the names of the runs in a store, sorted."""
    return [name for name in store.folders("") if RunContents(store, name).exists()]


def no_such_run(store: Store, name: str) -> InputError:
    """Return the error for a run that is missing, which names those that the store holds."""
    runs = list_runs(store)
    held = f"it holds {', '.join(runs[:20])}{', ...' if len(runs) > 20 else ''}" if runs else "it holds none"
    return InputError(f"There is no run '{name}' in {store.url}: {held}.")
