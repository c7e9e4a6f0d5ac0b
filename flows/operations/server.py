"""Which of Prefect's servers is meant, and starting one of our own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from eigen_core.errors import InputError
from flows.endings import Stopped
from flows.operations.environment import HOST, api_at, own_environment, server_command, server_environment, ui_of
from flows.operations.health import answers, is_reachable, is_taken
from flows.operations.home import Home, ProcessRecord
from flows.prefect_database import require_database, require_home

DEFAULT_PORT = 4200
START_SECONDS = 180.0
_ANSWER_SECONDS = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Listening:
    """Where a server of our own is to listen.

    Attributes:
        host: the address of this machine; 0.0.0.0: all of them.
        port: the port that was asked for, None if none was.
        without_password: other machines may reach it though it has no password.
    """

    host: str = HOST
    port: int | None = None
    without_password: bool = False


_HERE = Listening()


def known_server(home: Home, environ: Mapping[str, str]) -> str:
    """Return the URL of the API to ask: that of PREFECT_API_URL or a profile, else that which `eigen up` has started.

    Raises:
        InputError: there is none, or it does not answer.
    """
    record = home.running("server")
    given = configured_api(environ)
    if given is not None and (record is None or not _is_same(given, record.api)):
        if not answers(given):
            raise InputError(
                f"Prefect's API at {given} does not answer. Start it, or take PREFECT_API_URL out of environment and "
                "profile and start one here with `eigen up`."
            )
        return given
    if record is None:
        raise InputError(
            f"No server runs here: start one with `eigen up`, or set PREFECT_API_URL. (Looked in {home.path}; "
            "EIGEN_HOME names another folder.)"
        )
    if not answers(record.api):
        raise InputError(
            f"The server at {record.api} (process {record.process.pid}) does not answer. Its log is {record.log}; "
            "`eigen down` and `eigen up` start it anew."
        )
    return record.api


def server_for_training(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment so that a training of this process uses the server that runs here.

    An embedded server beside it would write to the same database, and act on the same crashes. Nothing is added if the
    user names an API, or none that `eigen up` has started here answers. To be called before Prefect is imported.

    Raises:
        InputError: what `eigen up` has noted cannot be read.
    """
    if names_an_api(environ):
        return {}
    record = home.running("server")
    if record is None or not answers(record.api):
        return {}
    home.use_server()
    return {**own_environment(environ), "PREFECT_API_URL": record.api, "PREFECT_UI_URL": ui_of(record.api)}


def configured_api(environ: Mapping[str, str]) -> str | None:
    """Return the URL of the API that environment or Prefect's profile names, None if they name none."""
    if url := environ.get("PREFECT_API_URL", "").strip():
        return url.rstrip("/")
    found = _prefects_api()
    return found.rstrip("/") if found else None


def require_answer(api: str) -> None:
    """Refuse an API that does not answer.

    Raises:
        InputError: so it is.
    """
    if not is_reachable(api, _ANSWER_SECONDS):
        raise InputError(
            f"Prefect's API at {api} does not answer. Start it, or take its URL out of environment and profile to "
            "train without a server."
        )


def wanted_port(
    given: int | None, configured: str | None, environ: Mapping[str, str], last: int | None = None
) -> int | None:
    """Return the port at which a server of our own belongs; None if the server is elsewhere.

    If nothing names one it is the `last` one: trainings that have lost their server wait for it there.

    An address of this machine at which nothing answers is where `eigen up` starts one: `eigen up` itself asks the user
    to set it.

    Raises:
        InputError: `given` contradicts PREFECT_API_URL.
    """
    if configured is None:
        return given or _port_in(environ) or last or DEFAULT_PORT
    parts = urlsplit(configured)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    local = parts.hostname in _LOOPBACK and parts.scheme == "http"
    if given is not None and not (local and given == port):
        raise InputError(
            f"PREFECT_API_URL names the server at {configured}, and --port asks for one here at port {given}: leave "
            "out --port, or unset PREFECT_API_URL."
        )
    return None if not local or answers(configured) else port


def start_server(home: Home, environ: Mapping[str, str], port: int, listening: Listening = _HERE) -> ProcessRecord:
    """Start a server at a port of this machine, and return when it answers.

    Args:
        home: where it is remembered.
        environ: its environment, beside what it needs.
        port: of it.
        listening: at which address of this machine.

    Raises:
        InputError: the port is taken, a training waits for the server at another one, other machines could reach it
            though it has no password, or the log cannot be written to.
        Stopped: the server ended, or did not answer in time.
    """
    require_startable(home, environ, port, listening)
    api = api_at(port)
    command, environment = server_command(port, listening.host), server_environment(environ, port)
    record, started = home.start("server", command, environment, api=api, host=listening.host)
    try:
        started.wait_until_ready("server", lambda: answers(api), START_SECONDS)
    except Stopped:
        started.stop()
        raise
    home.remember_port(port)
    return record


def require_startable(home: Home, environ: Mapping[str, str], port: int, listening: Listening = _HERE) -> None:
    """Refuse to start a server as `start_server` would; nothing is written.

    Raises:
        InputError: the port is taken, a training waits for the server at another one, other machines could reach it
            though it has no password, or its database is none of this version of Prefect.
    """
    host = listening.host
    if host not in _LOOPBACK and not listening.without_password and not _has_password(environ):
        raise InputError(
            f"At {host} other machines reach the server, and who reaches it can run code here: set "
            "PREFECT_SERVER_API_AUTH_STRING=user:password, or add --without-password if a firewall or a published port "
            "protects it."
        )
    last = home.port()
    if last not in (None, port) and home.is_server_used():
        raise InputError(
            f"A training still runs that asks the server at port {last}: start it there with `eigen up --port {last}`, "
            "or stop the training first."
        )
    require_home(environ)
    require_database()
    if is_taken(host, port):
        raise InputError(f"Port {port} is taken by another process: choose another one with --port, or stop that.")


def _prefects_api() -> str | None:
    """Return the URL that Prefect's active profile names."""
    from prefect.settings import PREFECT_API_URL

    url: str | None = PREFECT_API_URL.value()
    return url


def _has_password(environ: Mapping[str, str]) -> bool:
    """Whether environment or Prefect's profile give a server a password."""
    from prefect.settings import get_current_settings

    return bool(environ.get("PREFECT_SERVER_API_AUTH_STRING") or get_current_settings().server.api.auth_string)


def names_an_api(environ: Mapping[str, str]) -> bool:
    """Whether the environment names an API, or a profile of Prefect's may; Prefect is not imported for it."""
    if environ.get("PREFECT_API_URL", "").strip():
        return True
    home = Path(os.path.expanduser(environ.get("PREFECT_HOME", "~/.prefect")))
    profiles = Path(os.path.expanduser(environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")))
    try:
        return "PREFECT_API_URL" in profiles.read_text(encoding="utf-8")
    except OSError:
        return False


def _port_in(environ: Mapping[str, str]) -> int | None:
    text = environ.get("PREFECT_SERVER_API_PORT", "").strip()
    return int(text) if text.isdecimal() else None


def _is_same(one: str, other: str) -> bool:
    """Whether two URLs of this machine mean the same API."""
    first, second = urlsplit(one), urlsplit(other)
    local = first.hostname in _LOOPBACK and second.hostname in _LOOPBACK
    return one == other or (local and first.port == second.port)
