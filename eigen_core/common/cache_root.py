"""The folder of what is kept on this machine beside runs: what takes seconds to make, and heads of ledgers."""

import os
from pathlib import Path


def default_cache_root() -> Path:
    """Return the folder of the cache: EIGEN_CACHE, else `eigen` in XDG_CACHE_HOME, else `~/.cache/eigen`."""
    chosen = os.environ.get("EIGEN_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eigen"
