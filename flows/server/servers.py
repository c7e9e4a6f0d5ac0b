"""Prefect's server: which one Eigen uses, how it starts one on this machine, and `main` of that server's process."""

import json
import os
import re
import socket
import sqlite3
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from eigen_core.common.errors import InputError
from eigen_core.common.text import has_credentials
from flows.server.prefect_internals import known_revisions
from flows.server.prefect_settings import (
    FOLDER_FILES,
    HOST,
    api_at,
    client_environment,
    server_environment,
    settings_in,
)
from flows.server.request_guard import refuse_foreign_pages
from flows.server.state_directory import StateDirectory

_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<path>/[^?]+)")
_ADVICE = "move it away or set PREFECT_HOME to another folder. It only holds Prefect's history: no run needs it."


def require_home(environ: Mapping[str, str]) -> None:
    """Make Prefect's folder (PREFECT_HOME), as an import of Prefect would; `InputError` if that or writing fails."""
    home = Path(os.path.expanduser(environ.get("PREFECT_HOME") or "~/.prefect"))
    try:
        home.mkdir(parents=True, exist_ok=True)
        refusal = None if os.access(home, os.W_OK | os.X_OK) else "it cannot be written to"
    except OSError as error:
        refusal = f"it cannot be made: {error.strerror}"
    if refusal is not None:
        raise InputError(
            f"Prefect's folder {home} cannot be used ({refusal}): correct HOME, or set PREFECT_HOME to a folder that "
            "can be written to."
        )


def require_database() -> None:
    """Raise an `InputError` if this release of Prefect cannot use the server's SQLite database file; write nothing."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    found = _SQLITE.fullmatch(str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("?")[0])
    path = None if found is None else Path(found["path"])
    if path is None or not path.exists():
        return
    revisions = set()
    try:
        if path.is_dir():
            raise sqlite3.DatabaseError("it is a folder")
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "alembic_version" in tables:
                revisions = {str(number) for (number,) in connection.execute("SELECT version_num FROM alembic_version")}
            elif tables:
                raise sqlite3.DatabaseError("its tables are not Prefect's")
    except sqlite3.OperationalError:
        # A server has locked the file, or its folder is read-only.
        return
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} should be Prefect's database, and cannot be read ({error}): {_ADVICE}") from error
    unknown = revisions - known_revisions()
    if unknown:
        raise InputError(
            f"{path} is the database of another version of Prefect (the installed one lacks revision {min(unknown)}): "
            f"{_ADVICE}"
        )


def is_up(home: StateDirectory) -> bool:
    worker = home.running("worker")
    return worker is not None and answers(worker.api)


def answers(api: str) -> bool:
    """Return whether Prefect's API answers at URL `api` within five seconds; any HTTP error but 404 is an answer."""
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=_ANSWER_SECONDS) as answer:
            json.load(answer)
            return True
    except urllib.error.HTTPError as error:
        return error.code != HTTPStatus.NOT_FOUND
    except urllib.error.URLError as error:
        # Prefect's client may accept a certificate that this request does not.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError, HTTPException):
        return False


def is_port_in_use(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


_START_SECONDS = 180.0
_ANSWER_SECONDS = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ListenOptions:
    """Options of `eigen up`: the address and port (None: `wanted_port` chooses) at which its server listens.

    `without_password`: allow an address that other machines reach, though the server has no password.
    """

    host: str = HOST
    port: int | None = None
    without_password: bool = False


def known_server(home: StateDirectory, environ: Mapping[str, str]) -> str:
    """Return the URL of the API that PREFECT_API_URL or Prefect's profile names, else of the server of `eigen up`.

    Raises:
        InputError: neither exists, or the server does not answer.
    """
    record = home.running("server")
    given = configured_api(environ)
    if given is not None and (record is None or not _is_same(given, record.api)):
        require_answer(given)
        return given
    if record is None:
        raise InputError(
            f"No server runs here: start one with `eigen up`, or set PREFECT_API_URL. (Looked in {home.path}; "
            "EIGEN_HOME names another folder.)"
        )
    if not answers(record.api):
        raise InputError(
            f"The server at {record.api} (process {record.process.pid}) does not answer. Its log is {record.log}; "
            "`eigen down` and `eigen up` restart it."
        )
    return record.api


def server_for_training(home: StateDirectory, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with which a training uses the server that `eigen up` has started here.

    The dictionary is empty if the user names an API, or if no such server answers. Call this before importing Prefect.
    """
    if names_an_api(environ):
        return {}
    record = home.running("server")
    if record is None or not answers(record.api):
        return {}
    return client_environment(environ, record.api)


def configured_api(environ: Mapping[str, str]) -> str | None:
    """Return the URL of the API that PREFECT_API_URL or Prefect's profile names, None if they name none.

    Raises:
        InputError: the URL contains a user name or password, which pages and alerts would show.
    """
    url = environ.get("PREFECT_API_URL", "").strip() or (_prefects_api() if names_an_api(environ) else None)
    if url and has_credentials(url):
        raise InputError(
            f"The URL of Prefect's API in {_source_of(url, environ)} has a user or a password in it: remove it there, "
            "and set PREFECT_API_AUTH_STRING=user:password."
        )
    return url.rstrip("/") if url else None


def require_answer(api: str) -> None:
    if not answers(api):
        raise InputError(
            f"Prefect's API at {api} does not answer. Start it, or remove its URL from {_source_of(api, os.environ)}: "
            "then `eigen train` needs no server, and `eigen up` starts one here."
        )


def wanted_port(
    given: int | None, configured: str | None, environ: Mapping[str, str], last: int | None = None
) -> int | None:
    """Return the port at which `eigen up` starts a server; None if it uses one that is elsewhere or answers already.

    If the user names an API, whose URL is `configured`: its port, if it is on this machine and nothing answers there.
    If not (None): `given` (--port), else PREFECT_SERVER_API_PORT, else `last` (the port of the last server here, for
    which trainings may wait), else 4200.

    Raises:
        InputError: `given` contradicts `configured`.
    """
    if configured is None:
        text = environ.get("PREFECT_SERVER_API_PORT", "").strip()
        return given or (int(text) if text.isdecimal() else None) or last or 4200
    parts = urlsplit(configured)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    local = parts.hostname in _LOOPBACK and parts.scheme == "http"
    if given is not None and not (local and given == port):
        raise InputError(
            f"{_source_of(configured, environ)} names {configured}, and --port {given} asks for another server: leave "
            "out --port, or remove that URL."
        )
    return None if not local or answers(configured) else port


def start_server(home: StateDirectory, environ: Mapping[str, str], port: int, host: str) -> None:
    """Start a server, record it in `home`, and return when it answers; `Stopped` if it ends or takes over 180 s."""
    api = api_at(port)
    command = [sys.executable, "-P", "-m", "flows.server.servers", host, str(port)]
    home.start("server", command, server_environment(environ, port), lambda: answers(api), _START_SECONDS, api=api)
    home.remember_port(port)


def require_startable(environ: Mapping[str, str], port: int, listening: ListenOptions) -> None:
    """Refuse to start a server that would not work or would not be safe; make nothing but Prefect's folder.

    Raises:
        InputError: the port is in use, other machines could reach the server though it has no password, Prefect's
            folder cannot be used, or another version of Prefect wrote its database.
    """
    host = listening.host
    if host not in _LOOPBACK and not listening.without_password and not _has_password(environ):
        raise InputError(
            f"At {host} other machines reach the server, and anyone who does can run code on this one: set "
            "PREFECT_SERVER_API_AUTH_STRING=user:password, or add --without-password if a firewall or a published port "
            "protects it."
        )
    require_home(environ)
    require_database()
    if is_port_in_use(host, port):
        raise InputError(f"Another process uses port {port}: choose another one with --port, or stop that process.")


def _prefects_api() -> str | None:
    from prefect.settings import PREFECT_API_URL

    url: str | None = PREFECT_API_URL.value()  # that of the active profile
    return url


def _has_password(environ: Mapping[str, str]) -> bool:
    from prefect.settings import get_current_settings

    return bool(environ.get("PREFECT_SERVER_API_AUTH_STRING") or get_current_settings().server.api.auth_string)


def names_an_api(environ: Mapping[str, str]) -> bool:
    """Return whether PREFECT_API_URL or a settings file of Prefect seems to name an API, without importing Prefect."""
    if environ.get("PREFECT_API_URL", "").strip():
        return True
    return any("PREFECT_API_URL" in name for file in _settings_files(environ) for name in settings_in(file))


def _settings_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the settings files of Prefect, in the order in which it uses them; they may be missing."""
    home = Path(os.path.expanduser(environ.get("PREFECT_HOME", "~/.prefect")))
    profiles = Path(os.path.expanduser(environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")))
    return [*(Path(name).absolute() for name in FOLDER_FILES), profiles]


def _source_of(api: str, environ: Mapping[str, str]) -> str:
    """Return what names the URL of an API: the variable PREFECT_API_URL, or a settings file of Prefect."""
    if environ.get("PREFECT_API_URL", "").strip():
        return "PREFECT_API_URL"
    naming = (file for file in _settings_files(environ) if any(api in str(one) for one in settings_in(file).values()))
    return str(next(naming, "Prefect's settings"))


def refuse_api_of_the_folder(api: str, environ: Mapping[str, str]) -> None:
    """Raise `InputError` if a file of the working directory names the API: it could run any code in a worker."""
    source = Path(_source_of(api, environ))
    if source.name in FOLDER_FILES:
        raise InputError(
            f"{source} names the server {api}, which could run any code in a worker here. If you trust it, set the "
            "environment variable PREFECT_API_URL."
        )


def _is_same(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    local = first.hostname in _LOOPBACK and second.hostname in _LOOPBACK
    return one == other or (local and first.port == second.port)


def main() -> None:
    """Serve Prefect's API and pages at the host and port of the command's arguments, until the process is stopped."""
    import uvicorn
    from prefect.settings import PREFECT_SERVER_LOGGING_LEVEL

    from flows.server.prefect_internals import server_app

    host, port = sys.argv[1:]
    app = server_app()
    refuse_foreign_pages(app, host)
    uvicorn.run(app, host=host, port=int(port), log_level=PREFECT_SERVER_LOGGING_LEVEL.value().lower())


if __name__ == "__main__":
    main()
