"""All that is in a folder, to be compared before and after a command that should change nothing."""

import hashlib
from pathlib import Path


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
