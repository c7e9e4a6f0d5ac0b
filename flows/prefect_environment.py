"""The environment of processes that train: Prefect quiet and offline, file modes.

`prepare_environment` must run before Prefect is imported, so nothing here imports it at the top.
"""

import json
import os
import re
import socket
import warnings
from collections.abc import Mapping

from eigen_core.errors import InputError

# Each state of a task run is recorded from an event, which Prefect would keep for a week beside it: three quarters of
# what a training adds to the database. Events of tasks that fail, of flow runs and of workers stay for that week.
_ROUTINE_EVENTS = tuple(f"prefect.task-run.{state}" for state in ("Pending", "Running", "Completed"))
_ROUTINE_SECONDS = 60
_VACUUM = "PREFECT_SERVER_SERVICES_DB_VACUUM"

_RECORDER = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER"
_FLOW_DEFAULTS = {
    # A server records states of task runs that come within a second in one transaction, not each in one of its own,
    # which takes a fifth to a third of what it computes beside a training.
    f"{_RECORDER}_BATCH_SIZE": "100",
    f"{_RECORDER}_READ_BATCH_SIZE": "100",
    f"{_RECORDER}_FLUSH_INTERVAL": "1",
    f"{_VACUUM}_EVENT_RETENTION_OVERRIDES": json.dumps(dict.fromkeys(_ROUTINE_EVENTS, _ROUTINE_SECONDS)),
    f"{_VACUUM}_LOOP_SECONDS": f"{_ROUTINE_SECONDS}",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # A cache key would be computed by pickling gigabytes of training state.
    "PREFECT_TASKS_DEFAULT_NO_CACHE": "true",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "eigen_core",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # A tracker's server that does not answer is reported while it can be seen why: MLflow itself waits for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Few arenas of the C library: a server has many threads and few allocations, a training must give memory back.
    "MALLOC_ARENA_MAX": "2",
}

_UMASK = "EIGEN_UMASK"
_OWNER_ALONE = "077"


def prepare_environment() -> None:
    """Set the environment of Prefect and the C library where the user has not set it."""
    # What the C library reads as a process starts concerns those that this one starts.
    os.environ.update(flow_environment(os.environ))
    # Where Prefect's home is needed, `require_home` says so in a sentence.
    warnings.filterwarnings("ignore", message="Failed to create the Prefect home directory")


def flow_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with what every process that runs flows needs, where the user has not set it."""
    return {**_FLOW_DEFAULTS, **environ}


def set_umask(environ: Mapping[str, str]) -> None:
    """Let only the owner read what this process and its children write, or others too as EIGEN_UMASK says.

    Raises:
        InputError: EIGEN_UMASK is no umask.
    """
    text = environ.get(_UMASK, "") or _OWNER_ALONE
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise InputError(f"{_UMASK} is '{text}', which is no umask: write three octal digits, such as 027.")
    os.umask(int(text, 8))


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
