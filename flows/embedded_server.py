"""The process of the embedded server of Prefect: `python -P -m flows.embedded_server serve`.

Its imports take seconds. They are done first, then a line of standard input names the port to serve at; without one
nothing is served. So the process can be started before it is known whether its server is needed.

A new database takes seconds of migrations. Without an argument the same module does them beforehand: `make setup` lets
it keep the empty tables in the cache, and a home without a database begins with a copy. Without that copy, and where a
database exists, the server's own migrations do the work.
"""

import gc
import hashlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from eigen_core.cache_root import default_cache_root
from eigen_core.errors import InputError
from eigen_core.store.files import make_folder, replacing, sync_file, temporary_file
from flows.prefect_environment import set_umask
from flows.request_guard import guard

if TYPE_CHECKING:
    from fastapi import FastAPI

_HOST = "127.0.0.1"
# What SQLite keeps beside a database. Left behind by a database that is gone, it would be read into the copy.
_BESIDE = ("-wal", "-shm", "-journal")


def main() -> None:
    """Serve Prefect's API until the process is ended, or make a database."""
    with suppress(InputError):  # the command that starts this process has refused it
        set_umask(os.environ)
    if len(sys.argv) == 1:
        try:
            keep(kept_file(), _migrated())
        except OSError as error:
            sys.stderr.write(f"No empty database is kept for Prefect; the first training makes its own: {error}\n")
        return
    # What imports create is never freed: looking for garbage among it takes a tenth of their time.
    gc.disable()
    import uvicorn  # noqa: F401
    from prefect.server.api.server import create_app
    from starlette.routing import Mount

    gc.freeze()
    gc.enable()
    app = create_app()
    guard(app)
    for mount in app.routes:
        for route in mount.routes if isinstance(mount, Mount) else ():
            # FastAPI builds what a router needs when it is first asked for a path: else the first request waits for it.
            route.matches({"type": "http", "method": "GET", "path": ""})
    port = sys.stdin.readline()
    if port:
        _serve(app, int(port))


def _serve(app: "FastAPI", port: int) -> None:
    import uvicorn

    database = _database_file()
    if database is not None:
        # A copy only saves time: what prevents one is left to the server, which migrates or says what is wrong.
        with suppress(OSError):
            begin_with_copy(database, kept_file())
    uvicorn.run(app, host=_HOST, port=port, log_level="error", lifespan="on")


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
    """Return the content of a kept database; None if it is missing or damaged."""
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


def _database_file() -> Path | None:
    """Return the file of the database that Prefect is configured with; None if it is none of SQLite's."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value())
    except ArgumentError:
        return None
    path = url.database or ""
    return Path(path) if url.get_backend_name() == "sqlite" and os.path.isabs(path) else None


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
