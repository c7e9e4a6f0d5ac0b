"""Where a flow run that a worker has started works, and where its store is, seen from another folder."""

import os
from collections.abc import Mapping
from pathlib import Path

from eigen_core.config import Config
from eigen_core.config.model import CheckpointConfig
from eigen_core.store import is_remote, store_folder, store_from_environment
from flows.server.environment import VARIABLE, api_at
from flows.server.home import Home, ProcessRecord


def enter() -> dict[str, str]:
    """Enter the folder where the worker was started; the step of the deployments before a flow is loaded.

    Prefect would start it in a temporary folder, where the store `runs` would be removed with it.

    Raises:
        RuntimeError: the environment does not name it.
    """
    folder = folder_of(os.environ)
    os.chdir(folder)
    home = Home.of(os.environ)
    port = home.port()
    if port is not None and os.environ.get("PREFECT_API_URL") == api_at(port):
        home.use_server()
    return {"directory": str(folder)}


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return the folder that `eigen up` has noted, else that of the shell which started the worker.

    Raises:
        RuntimeError: there is neither.
    """
    for name in (VARIABLE, "PWD"):
        folder = Path(environ.get(name, ""))
        if folder.is_absolute() and folder.is_dir():
            return folder
    raise RuntimeError(
        f"The worker does not say where its flows work: start it with `eigen up`, or set {VARIABLE} to a folder."
    )


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


def as_worker_sees(config: Config, worker: ProcessRecord) -> Config:
    """Return a configuration with its store as it will be in a flow of a worker on this machine.

    Raises:
        InputError: its store is none.
    """
    given = config.checkpoint
    store = worker.store if given.store == CheckpointConfig().store and worker.store is not None else given.store
    located = {"store": placed(store, worker.folder), "local": placed(given.local, worker.folder)}
    return config.model_copy(update={"checkpoint": given.model_copy(update=located)})


def store_here(worker: ProcessRecord | None, given: str | None = None) -> str:
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
