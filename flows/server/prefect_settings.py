"""Prefect's settings for the server, the worker, flows and clients, as environment variables."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from flows.server.prefect_internals import EVENTS_IN_ORDER_OF_ARRIVAL, LEASES_IN_FILES

# Prefect keeps the event of each state of a task run for a week: three quarters of what a training adds to the
# database. These routine events are deleted sooner.
_ROUTINE_EVENTS = tuple(f"prefect.task-run.{state}" for state in ("Pending", "Running", "Completed"))
_ROUTINE_SECONDS = 60
_VACUUM = "PREFECT_SERVER_SERVICES_DB_VACUUM"

_RECORDER = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER"
LOGGERS = ("eigen_core", "flows")
"""Loggers whose records Prefect's server keeps with those of a flow run."""
_FLOW_DEFAULTS = {
    # The server records the task run states of a second in one transaction: a transaction for each would take a fifth
    # to a third of its computing time during a training.
    f"{_RECORDER}_BATCH_SIZE": "100",
    f"{_RECORDER}_READ_BATCH_SIZE": "100",
    f"{_RECORDER}_FLUSH_INTERVAL": "1",
    f"{_VACUUM}_EVENT_RETENTION_OVERRIDES": json.dumps(dict.fromkeys(_ROUTINE_EVENTS, _ROUTINE_SECONDS)),
    f"{_VACUUM}_LOOP_SECONDS": f"{_ROUTINE_SECONDS}",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # A cache key would be computed by pickling gigabytes of training state.
    "PREFECT_TASKS_DEFAULT_NO_CACHE": "true",
    "PREFECT_LOGGING_EXTRA_LOGGERS": ",".join(LOGGERS),
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Report a tracker's server that does not answer within seconds: MLflow's defaults wait for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Few arenas of the C library: a server has many threads and few allocations, a training must give memory back.
    "MALLOC_ARENA_MAX": "2",
}


def prepare_environment() -> None:
    """Set environment variables of Prefect and the C library that the user has not set."""
    # MALLOC_ARENA_MAX has an effect on child processes only.
    os.environ.update(flow_environment(os.environ))
    # `require_home` explains this error where the folder is needed.
    warnings.filterwarnings("ignore", message="Failed to create the Prefect home directory")


def flow_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with defaults for processes that run flows; variables that are set keep their values."""
    return {**_FLOW_DEFAULTS, **environ}


HOST = "127.0.0.1"
FOLDER_VARIABLE = "EIGEN_FOLDER"
"""Environment variable: the working directory of a worker's flows."""
_CORS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"


def api_at(port: int) -> str:
    """Return the URL of the API of a server on this machine."""
    return f"http://{HOST}:{port}/api"


def ui_of(api: str) -> str:
    """Return the address of the pages of the server whose API has this URL."""
    return api.rstrip("/").removesuffix("/api")


def own_origins(environ: Mapping[str, str], port: int) -> str:
    """Return the origins (scheme, host, port) of the pages of a server on this machine, separated by commas."""
    here = [f"http://{name}:{port}" for name in (HOST, "localhost", "[::1]")]
    named = [urlsplit(environ.get(name, "")) for name in ("PREFECT_UI_API_URL", "PREFECT_UI_URL")]
    return ",".join(dict.fromkeys([*here, *(f"{url.scheme}://{url.netloc}" for url in named if url.netloc)]))


def server_environment(environ: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the server's environment variables: no telemetry, leases in files, requests from its own pages only."""
    kept = {name: value for name, value in environ.items() if name != "PREFECT_API_URL"}
    return {
        # Prefect's pages draw a flow run's tasks on a time line, and do not respond while they draw thousands.
        "PREFECT_SERVER_FLOW_RUN_GRAPH_MAX_NODES": "1000",
        **flow_environment(kept),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES_IN_FILES,
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": EVENTS_IN_ORDER_OF_ARRIVAL,
        # By default, every web page that is open in a browser here may send requests, and a request can run code. The
        # pages would send theirs to port 4200; only the user knows the address of a proxy.
        _CORS: environ.get(_CORS, own_origins(environ, port)),
        "PREFECT_UI_API_URL": environ.get("PREFECT_UI_API_URL", api_at(port)),
    }


def client_environment(environ: Mapping[str, str], api: str | None = None) -> dict[str, str]:
    """Return the environment variables of a process that calls an API (None: that of `environ`), with its password."""
    password = environ.get("PREFECT_SERVER_API_AUTH_STRING")
    given = {} if password is None else {"PREFECT_API_AUTH_STRING": password}
    if api is None:
        return {**given, **flow_environment(environ)}
    return {"PREFECT_UI_URL": ui_of(api), **given, **flow_environment(environ), "PREFECT_API_URL": api}


def worker_environment(environ: Mapping[str, str], api: str, folder: Path) -> dict[str, str]:
    """Return the environment variables of the worker and of its flows, whose working directory is `folder`."""
    return {
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        **client_environment(environ, api),
        FOLDER_VARIABLE: str(folder),
    }
