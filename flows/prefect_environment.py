"""The environment of processes that train: Prefect quiet and offline, its embedded server safe from Ctrl-C, file modes.

`prepare_environment` must run before Prefect is imported, so nothing here imports it at the top.
"""

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from eigen_core.child_processes import stop_with_this_process
from eigen_core.errors import InputError
from flows.endings import Stopped
from flows.prefect_database import require_database

if TYPE_CHECKING:
    from uuid import UUID

_STARTUP_SECONDS = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"

_EMBEDDED_DEFAULTS = {
    # A busy machine needs more than Prefect's 20 seconds.
    _STARTUP_SECONDS: "120",
    # The embedded server writes to the same terminal as the progress bars.
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    # A training uses none of Prefect's blocks. A server that is started otherwise still registers them.
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
}

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

# What Prefect sets for the embedded server that it starts itself.
_EMBEDDED_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
# It has no pages; by itself Prefect lets every page that a browser has open here ask it.
_WITHOUT_PAGES = {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1"}
_EMBEDDED = "EIGEN_EMBEDDED_API"
_UMASK = "EIGEN_UMASK"
_OWNER_ALONE = "077"
_POLL_SECONDS = 0.05
_RECORDING_SECONDS = 10.0
_ENDING_SECONDS = 5.0


def prepare_environment() -> None:
    """Set the environment of Prefect and the C library where the user has not set it."""
    # What the C library reads as a process starts concerns those that this one starts.
    os.environ.update({**_EMBEDDED_DEFAULTS, **flow_environment(os.environ)})
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


class PrefectServer:
    """The API that a flow will ask: the user's own where one is configured, else an embedded server.

    The embedded server is a process of its own. It shares the terminal's process group, so Ctrl-C would stop it before
    the flow could report to it: it starts with SIGINT blocked. It would outlive a process killed by SIGKILL, so a
    small shell waits for the end of this process and then stops it.

    Prefect's own embedded server does the same, but its code loads the whole server into this process too, which takes
    2 s and 60 MB.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._api = ""

    def check(self) -> None:
        """Refuse an API that cannot be used, before anything is started or written; an embedded server is not asked.

        Raises:
            InputError: Prefect is configured with an API that does not answer, or with none, or its database is none
                that the embedded server can use.
        """
        if self._api:
            return
        from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE

        url = PREFECT_API_URL.value()
        if url:
            _require_answer(str(url))
        elif not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
            raise InputError(
                "Prefect has no API: its embedded server is switched off and PREFECT_API_URL is not set. "
                "Set PREFECT_API_URL, or PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=true."
            )
        else:
            require_database()

    def prepare(self) -> None:
        """Begin to load the embedded server, which takes seconds, in a process that serves nothing before `start`.

        For a command that has not imported Prefect yet, without which it is not known whether the server is needed.
        """
        if self._process is None and "prefect" not in sys.modules:
            self._process = _load_embedded()
            atexit.register(self._end)

    def start(self) -> None:
        """Begin to start the embedded server if it was not and no other API is configured; let Prefect ask it.

        It takes seconds: `wait_until_ready` before the first flow.
        """
        if self._api:
            return
        from prefect.settings import PREFECT_API_URL

        if PREFECT_API_URL.value():
            self.stop()
            return
        if self._process is None:
            self._process = _load_embedded()
            atexit.register(self._end)
        stop_with_this_process(self._process.pid)
        port = free_port()
        assert self._process.stdin is not None
        # A process that has ended already says why in `wait_until_ready`.
        with suppress(BrokenPipeError), self._process.stdin as given:
            given.write(f"{port}\n".encode())
        self._api = f"http://127.0.0.1:{port}/api"
        _ask(self._api)

    def wait_until_ready(self) -> None:
        """Return when the embedded server answers.

        Raises:
            Stopped: it ended, or did not answer in time.
        """
        if self._process is None or not self._api:
            return
        from flows.operations.health import answers

        end = time.monotonic() + float(os.environ[_STARTUP_SECONDS])
        while not answers(self._api):
            status = self._process.poll()
            if status is not None:
                raise Stopped(f"Prefect's embedded server ended with status {status} before it answered.")
            if time.monotonic() > end:
                self.stop()
                raise Stopped(
                    f"Prefect's embedded server did not answer within {os.environ[_STARTUP_SECONDS]} s. "
                    f"{_STARTUP_SECONDS} gives it longer."
                )
            time.sleep(_POLL_SECONDS)

    def wait_until_recorded(self, flow_run_id: "UUID", task_run_name: str, seconds: float = _RECORDING_SECONDS) -> bool:
        """Wait until the embedded server has recorded the end of a flow run's last task run, at most `seconds`.

        Task runs are recorded from a queue of events in their order; what is still queued when the server stops would
        be missing from the history. A server of the user's own goes on without this process: nothing to wait for.
        """
        if not self._api:
            return True
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterName

        flow_runs = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
        task_runs = TaskRunFilter(name=TaskRunFilterName(any_=[task_run_name]))
        end = time.monotonic() + seconds
        with get_client(sync_client=True) as client:
            while time.monotonic() < end:
                found = client.read_task_runs(flow_run_filter=flow_runs, task_run_filter=task_runs)
                if any(run.state is not None and run.state.is_final() for run in found):
                    return True
                time.sleep(0.1)
        return False

    def without_heartbeats(self) -> AbstractContextManager[object]:
        """Let flow runs inside the block send no heartbeats to the embedded server.

        It acts on none, and a flow run would wait up to a second at its end for the thread that sends them.
        """
        if not self._api:
            return nullcontext()
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})

    def stop(self) -> None:
        """Ask the embedded server to end, without waiting for it."""
        if self._process is not None:
            self._process.terminate()

    def _end(self) -> None:
        """End the embedded server, last of all: what Prefect still has to report at this process's end needs it."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def is_embedded(api: str) -> bool:
    """Whether the API at this URL is the embedded server of this process."""
    return api == os.environ.get(_EMBEDDED)


def _ask(api: str) -> None:
    """Let Prefect ask the embedded server at `api`."""
    from prefect.context import refresh_global_settings_context

    os.environ.update({"PREFECT_API_URL": api, _EMBEDDED: api})
    refresh_global_settings_context()


def _load_embedded() -> "subprocess.Popen[bytes]":
    """Start the process of Prefect's server, without pages, as Prefect starts its own embedded one."""
    # The mask of this thread is what the server's process inherits.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            # Not from the working directory, which may have a folder `flows` of its own.
            [sys.executable, "-P", "-m", "flows.embedded_server", "serve"],
            stdin=subprocess.PIPE,
            env={**os.environ, **_EMBEDDED_ENVIRONMENT, **_WITHOUT_PAGES},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _require_answer(url: str) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        problem = client.api_healthcheck()
    if problem is not None:
        raise InputError(
            f"Prefect's API at {url} does not answer ({type(problem).__name__}). Start it, or take its URL out of "
            "environment and profile to use the embedded server."
        )
