"""Prefect's settings for the server, the worker, flow runs and clients, as environment variables."""

import json
import os
import tomllib
import warnings
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, open_regular_file
from flows.server.prefect_internals import EVENTS_IN_ORDER_OF_ARRIVAL, LEASES_IN_FILES

# Prefect keeps the event of each state of a task run for a week: three quarters of what a training adds to Prefect's
# database. Events of these routine states are deleted after a minute.
_ROUTINE_EVENTS = tuple(f"prefect.task-run.{state}" for state in ("Pending", "Running", "Completed"))
_ROUTINE_SECONDS = 60
_VACUUM = "PREFECT_SERVER_SERVICES_DB_VACUUM"

_RECORDER = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER"
LOGGERS = ("eigen_core", "flows")
"""Loggers whose records Prefect's server keeps with those of a flow run."""
_FLOW_DEFAULTS = {
    # Processes that Prefect starts import no modules from their working directory.
    "PYTHONSAFEPATH": "1",
    # The server records all task run states of a second in one transaction: a transaction for each state would take a
    # fifth to a third of the server's computing time during a training.
    f"{_RECORDER}_BATCH_SIZE": "100",
    f"{_RECORDER}_READ_BATCH_SIZE": "100",
    f"{_RECORDER}_FLUSH_INTERVAL": "1",
    f"{_VACUUM}_EVENT_RETENTION_OVERRIDES": json.dumps(dict.fromkeys(_ROUTINE_EVENTS, _ROUTINE_SECONDS)),
    f"{_VACUUM}_LOOP_SECONDS": f"{_ROUTINE_SECONDS}",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # To compute a cache key, Prefect would pickle gigabytes of training state.
    "PREFECT_TASKS_DEFAULT_NO_CACHE": "true",
    "PREFECT_LOGGING_EXTRA_LOGGERS": ",".join(LOGGERS),
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Report within seconds that the MLflow server does not answer: with MLflow's defaults it takes minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Few malloc arenas: a server has many threads and few allocations, and a training must return freed memory.
    "MALLOC_ARENA_MAX": "2",
}


def prepare_environment() -> None:
    """Set this process's environment variables of Prefect, MLflow and malloc to defaults, if they are not set."""
    # MALLOC_ARENA_MAX has an effect on child processes only.
    os.environ.update(flow_environment(os.environ))
    # `require_home` explains this error where the folder is needed.
    warnings.filterwarnings("ignore", message="Failed to create the Prefect home directory")


FOLDER_FILES = (".env", "prefect.toml", "pyproject.toml")
"""Settings files that Prefect reads in the working directory."""
_OF_ANY_FOLDER = {
    f"PREFECT_{name}"
    for name in ("API_URL", "API_KEY", "API_AUTH_STRING", "UI_URL", "UI_API_URL", "LOGGING_LEVEL", "LOGGING_COLORS")
}
"""Settings of Prefect that choose no code and no path on this machine."""


def refuse_settings_of_the_folder() -> None:
    """Raise `InputError` if a settings file of Prefect in the working directory has settings that could choose code.

    Prefect reads these files wherever it is imported. A configuration of its logging, for example, can call any
    function, and the directory may be somebody else's.
    """
    for name in FOLDER_FILES:
        if foreign := sorted(settings_in(Path(name)).keys() - _OF_ANY_FOLDER):
            raise InputError(
                f"{Path(name).absolute()} sets {foreign[0]}. A file of the working directory must not choose what is "
                "executed: set it as an environment variable instead. Eigen accepts "
                f"{', '.join(sorted(_OF_ANY_FOLDER))} there."
            )


def settings_in(file: Path) -> dict[str, Any]:
    """Return what a settings file of Prefect sets, by names of environment variables; profiles precede their names."""
    file = file.absolute()
    if not os.path.lexists(file) or file.is_dir():
        return {}
    # Prefect would wait for ever for the content of a pipe.
    with explained("read", file), open_regular_file(file) as opened:
        text = opened.read().decode(errors="replace")
    if file.name == ".env":
        if "prefect" not in text.lower():
            return {}
        from dotenv import dotenv_values

        found = dotenv_values(stream=StringIO(text), interpolate=False).items()
        return {key.upper(): value for key, value in found if key.upper().startswith("PREFECT_")}
    from eigen_core.config.explain import flatten

    try:
        values: Any = tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"{file} cannot be read as settings of Prefect: {error}. Correct or remove it.") from error
    for table in ("tool", "prefect") if file.name == "pyproject.toml" else ():
        values = values.get(table, {}) if isinstance(values, dict) else {}
    named = {key.replace(".", "_").upper(): value for key, value in flatten(values).items()}
    return {key if "PREFECT_" in key else f"PREFECT_{key}": value for key, value in named.items()}


def flow_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with defaults for processes that run flows added; variables that are set keep their values."""
    return {**_FLOW_DEFAULTS, **environ}


HOST = "127.0.0.1"
FOLDER_VARIABLE = "EIGEN_FOLDER"
"""Environment variable that names the working directory of a worker's flow runs."""
_CORS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"


def api_at(port: int) -> str:
    """Return the URL of Prefect's API on a server of this machine that listens at `port`."""
    return f"http://{HOST}:{port}/api"


def ui_of(api: str) -> str:
    """Return the address of the pages of the Prefect server whose API has URL `api`."""
    return api.rstrip("/").removesuffix("/api")


def own_origins(environ: Mapping[str, str], port: int) -> str:
    """Return the origins (`scheme://host:port`) of the pages of a server on this machine, separated by commas."""
    here = [f"http://{name}:{port}" for name in (HOST, "localhost", "[::1]")]
    named = [urlsplit(environ.get(name, "")) for name in ("PREFECT_UI_API_URL", "PREFECT_UI_URL")]
    return ",".join(dict.fromkeys([*here, *(f"{url.scheme}://{url.netloc}" for url in named if url.netloc)]))


def server_environment(environ: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the server's environment variables: no telemetry, leases in files, requests from its own pages only."""
    kept = {name: value for name, value in environ.items() if name != "PREFECT_API_URL"}
    return {
        # Prefect's pages draw a flow run's task runs on a time line, and do not respond while they draw thousands.
        "PREFECT_SERVER_FLOW_RUN_GRAPH_MAX_NODES": "1000",
        **flow_environment(kept),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES_IN_FILES,
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": EVENTS_IN_ORDER_OF_ARRIVAL,
        # By default, every web page that is open in a browser here may send requests, and a request can run code.
        _CORS: environ.get(_CORS, own_origins(environ, port)),
        # By default, Prefect's pages send requests to port 4200. Behind a proxy, the user must set this address.
        "PREFECT_UI_API_URL": environ.get("PREFECT_UI_API_URL", api_at(port)),
    }


def client_environment(environ: Mapping[str, str], api: str | None = None) -> dict[str, str]:
    """Return the environment variables, with the password, for clients of API `api` (None: that of PREFECT_API_URL)."""
    password = environ.get("PREFECT_SERVER_API_AUTH_STRING")
    given = {} if password is None else {"PREFECT_API_AUTH_STRING": password}
    if api is None:
        return {**given, **flow_environment(environ)}
    return {"PREFECT_UI_URL": ui_of(api), **given, **flow_environment(environ), "PREFECT_API_URL": api}


def worker_environment(environ: Mapping[str, str], api: str, folder: Path) -> dict[str, str]:
    """Return the environment variables of the worker and of its flow runs, whose working directory is `folder`."""
    return {
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        **client_environment(environ, api),
        FOLDER_VARIABLE: str(folder),
    }
