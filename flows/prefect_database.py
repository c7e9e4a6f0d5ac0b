"""Where a Prefect server that runs here keeps its history, and whether it can: Prefect itself ends with tracebacks."""

import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from eigen_core.errors import InputError
from flows.prefect_internals import known_revisions

_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<path>/[^?]+)")
_ADVICE = "move it away or set PREFECT_HOME to another folder. It holds the history of Prefect alone: no run needs it."


def require_home(environ: Mapping[str, str]) -> None:
    """Make the folder of Prefect, as Prefect does when it is imported.

    Raises:
        InputError: it cannot be made or written to.
    """
    home = Path(os.path.expanduser(environ.get("PREFECT_HOME") or "~/.prefect"))
    advice = "set PREFECT_HOME to a folder that can be written to."
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
        raise InputError(f"Prefect's folder {home} cannot be made ({reason}): correct HOME, or {advice}") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise InputError(f"Prefect's folder {home} cannot be written to: change its permissions, or {advice}")


def require_database() -> None:
    """Refuse a database file that a server which is started here could not use. Nothing is written.

    Raises:
        InputError: it is no database of Prefect, or one of a version that is not known.
    """
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    found = _SQLITE.fullmatch(str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("?")[0])
    path = None if found is None else Path(found["path"])
    if path is None or not path.exists():
        return
    try:
        tables, revisions = _content(path)
    except sqlite3.OperationalError:
        # Locked by a server, or a folder that cannot be written to: that says nothing of its content.
        return
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} should be the database of Prefect and cannot be read ({error}): {_ADVICE}") from error
    if tables and not revisions:
        raise InputError(f"{path} is a database, but none of Prefect: {_ADVICE}")
    unknown = revisions - known_revisions()
    if unknown:
        raise InputError(
            f"{path} is the database of another version of Prefect (its revision {min(unknown)} is not known here): "
            f"{_ADVICE}"
        )


def _content(path: Path) -> tuple[set[str], set[str]]:
    """Return the names of the tables of a database, and the revisions of Prefect's that it is at."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
        tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "alembic_version" not in tables or "flow_run" not in tables:
            return tables, set()
        return tables, {str(number) for (number,) in connection.execute("SELECT version_num FROM alembic_version")}
