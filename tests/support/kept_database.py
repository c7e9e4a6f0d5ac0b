"""An empty database of Prefect, which `make setup` keeps in the cache: servers of tests begin with a copy.

A new one takes each server seconds of migrations: `python -P tests/support/kept_database.py`.
"""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from eigen_core.common.files import replacing
from eigen_core.common.process import default_cache_root


def main() -> None:
    try:
        with replacing(kept_file()) as file:
            file.write(_migrated())
    except OSError as error:
        sys.stderr.write(f"No empty database is kept for Prefect; each server of a test makes its own: {error}\n")


def begin_with_copy(database: Path, kept: Path) -> None:
    """Create `database` as a copy of `kept`, unless it exists or nothing is kept."""
    if kept.is_file() and not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, database)


def kept_file() -> Path:
    import prefect.server.database

    folder = Path(prefect.server.database.__file__).parent / "_migrations" / "versions" / "sqlite"
    names = sorted(path.name for path in folder.glob("*.py"))
    migrations = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    return default_cache_root() / "prefect" / f"{version('prefect')}-{migrations}.db"


def _migrated() -> bytes:
    # In a process of its own: Prefect would take what it remembers of another database for that of this one.
    command = [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"]
    with tempfile.TemporaryDirectory(prefix="eigen-") as folder:
        database = Path(folder) / "prefect.db"
        url = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}"}
        subprocess.run(command, env={**os.environ, **url}, check=True, capture_output=True)
        with closing(sqlite3.connect(database)) as connection:
            return connection.serialize()


if __name__ == "__main__":
    main()
