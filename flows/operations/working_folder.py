"""Where a flow run that a worker has started works."""

import os
from collections.abc import Mapping
from pathlib import Path

from flows.operations.environment import VARIABLE, api_at
from flows.operations.home import Home


def enter() -> dict[str, str]:
    """Go where the worker was started; the step of the deployments before a flow is loaded.

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
