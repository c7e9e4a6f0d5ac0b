"""Where a flow run that a worker has started works."""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "EIGEN_FOLDER"


def enter() -> dict[str, str]:
    """Go where the worker was started; the step of the deployments before a flow is loaded.

    Prefect would start it in a temporary folder, where the store `runs` would be removed with it.

    Raises:
        RuntimeError: nobody says where that is.
    """
    folder = folder_of(os.environ)
    os.chdir(folder)
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
