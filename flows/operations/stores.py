"""Where the trainings of a worker on this machine keep their runs, seen from another folder."""

import os
from pathlib import Path

from eigen_core.config import Config
from eigen_core.config.sections import CheckpointConfig
from eigen_core.store import is_remote, store_folder, store_from_environment
from flows.operations.home import Record


def placed(store: str, folder: Path) -> str:
    """Return a store so that it means from anywhere what it means to a process in `folder`.

    Raises:
        InputError: it is no store.
    """
    if is_remote(store):
        return store
    if store.startswith("file:"):
        return str(store_folder(store))
    return str(folder / os.path.expanduser(store))


def as_worker_sees(config: Config, worker: Record) -> Config:
    """Return a configuration with its store as it will be in a flow of a worker on this machine.

    Raises:
        InputError: its store is none.
    """
    given = config.checkpoint
    store = worker.store if given.store == CheckpointConfig().store and worker.store is not None else given.store
    places = {"store": placed(store, worker.folder), "local": placed(given.local, worker.folder)}
    return config.model_copy(update={"checkpoint": given.model_copy(update=places)})


def store_here(worker: Record | None, given: str | None = None) -> str:
    """Return the store of a training: the one it was given, else that of its worker, else that of a command here.

    Raises:
        InputError: it is none, or the environment's variables contradict each other.
    """
    folder = Path.cwd() if worker is None else worker.folder
    default = CheckpointConfig().store
    if given is not None and given != default:
        return placed(given, folder)
    named = worker.store if worker is not None else store_from_environment(os.environ)
    return placed(named or default, folder)
