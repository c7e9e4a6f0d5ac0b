"""A hash of installed code, by which processes find out whether they run the same."""

import hashlib
from collections.abc import Collection, Iterable
from importlib.resources import files
from pathlib import Path


def code_digest(packages: Iterable[str], kinds: Collection[str] = (".py",), beside: str = "") -> str:
    """Return the SHA-256 of the files of packages, with their paths in them.

    Args:
        packages: names of packages that can be imported.
        kinds: endings of the files that count.
        beside: what else is to change the hash.
    """
    found = hashlib.sha256(beside.encode())
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in kinds):
            found.update(f"\0{package}/{path.relative_to(root).as_posix()}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
