"""Which code a deployment was made from; Prefect shows it as the version of the deployment."""

import hashlib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from eigen_core import __version__

_PACKAGES = ("eigen_core", "flows", "tasks", "deployments")
_KINDS = (".py", ".yaml", ".toml")
_DIGITS = 12


def code_version() -> str:
    """Return the version of Eigen, and a hash of all code and settings that a deployment depends on."""
    found = hashlib.sha256(version("prefect").encode())
    for package in _PACKAGES:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in _KINDS):
            found.update(f"\0{package}/{path.relative_to(root).as_posix()}\0".encode())
            found.update(path.read_bytes())
    return f"{__version__}+{found.hexdigest()[:_DIGITS]}"
