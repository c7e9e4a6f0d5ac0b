"""An empty database of Prefect, which `make setup` keeps in the cache: servers of tests begin with a copy.

A new one takes each server seconds of migrations: `python -P tests/support/kept_database.py`.
"""

import hashlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from eigen_core.common.files import make_folder, replacing, sync_file, temporary_file
from eigen_core.common.runtime import default_cache_root

# What SQLite keeps beside a database. Left behind by a database that is gone, it would be read into the copy.
_BESIDE = ("-wal", "-shm", "-journal")


def main() -> None:
    try:
        keep(kept_file(), _migrated())
    except OSError as error:
        sys.stderr.write(f"No empty database is kept for Prefect; each server of a test makes its own: {error}\n")


def keep(kept: Path, content: bytes) -> None:
    """Keep the tables of a new database in `kept`."""
    make_folder(kept.parent)
    with replacing(kept) as opened:
        opened.write(content)


def begin_with_copy(database: Path, kept: Path) -> None:
    """Create `database` as a copy of `kept` if that is whole; several processes may do so at once.

    Raises:
        OSError: a file cannot be written, or its file system has no links.
    """
    content = _whole(kept)
    if content is None or any(os.path.lexists(f"{database}{suffix}") for suffix in ("", *_BESIDE)):
        return
    make_folder(database.parent)
    with temporary_file(database.parent) as (file, temporary):
        file.write(content)
        sync_file(file)
        # Unlike a rename, it never replaces the database of a server that was faster.
        with suppress(FileExistsError):
            os.link(temporary, database)


def _whole(kept: Path) -> bytes | None:
    if not kept.is_file():
        return None
    try:
        # Read-only, and without the files that SQLite would write beside it.
        with closing(sqlite3.connect(f"{kept.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            has_tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
            is_whole = has_tables and connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    except sqlite3.DatabaseError:
        return None
    return kept.read_bytes() if is_whole else None


def kept_file() -> Path:
    """Return where the tables of this release of Prefect are kept."""
    import prefect.server.database

    folder = Path(prefect.server.database.__file__).parent / "_migrations" / "versions" / "sqlite"
    names = sorted(path.name for path in folder.glob("*.py"))
    migrations = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    return default_cache_root() / "prefect" / f"{version('prefect')}-{migrations}.db"


def _migrated() -> bytes:
    """Return a new database with all tables and no row of a server's.

    Raises:
        subprocess.CalledProcessError: Prefect cannot migrate it.
    """
    # In a process of its own: what Prefect remembers of a database would be taken for that of the other one.
    command = [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"]
    with tempfile.TemporaryDirectory(prefix="eigen-") as folder:
        database = Path(folder) / "prefect.db"
        url = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}"}
        subprocess.run(command, env={**os.environ, **url}, check=True, capture_output=True)
        with closing(sqlite3.connect(database)) as connection:
            return connection.serialize()


if __name__ == "__main__":
    main()
