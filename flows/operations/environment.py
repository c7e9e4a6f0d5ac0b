"""The environment of server and worker, for `eigen up`, for services and for containers.

Nothing here imports Prefect: starting these processes need not wait for it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from flows.prefect_environment import flow_environment
from flows.prefect_internals import LEASES_IN_FILES

HOST = "127.0.0.1"
"""Where the server listens by default, and where it is asked on its own machine."""
CORS_VARIABLE = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
"""Prefect's setting of the pages that a browser lets ask the server, by their origins."""
VARIABLE = "EIGEN_FOLDER"
"""Names the folder in which the flows of a worker work."""
POOL = "eigen-gpu"
"""A name that no pool has which a user has made for other flows."""
DEPLOYMENT = "train/gpu"
"""The flow and the deployment that trains."""
POLL_SECONDS = 2.0
"""How often the worker asks for work; half of it passes, on average, before a launched run begins."""

_SERVICES = ("SCHEDULER", "LATE_RUNS", "TRIGGERS", "FOREMAN", "TASK_RUN_RECORDER", "EVENT_PERSISTER", "REPOSSESSOR")


def api_at(port: int) -> str:
    """Return the URL of the API of a server of our own, wherever else it listens."""
    return f"http://{HOST}:{port}/api"


def ui_of(api: str) -> str:
    """Return the address of the pages that belong to an API."""
    return api.rstrip("/").removesuffix("/api")


def server_command(port: int, host: str = HOST) -> list[str]:
    """Return the command of the server; it stays in the foreground."""
    return [sys.executable, "-P", "-m", "flows.operations.guarded_server", host, str(port)]


def own_origins(environ: Mapping[str, str], port: int) -> str:
    """Return the origins of the pages of a server of our own, separated by commas."""
    here = [f"http://{name}:{port}" for name in (HOST, "localhost", "[::1]")]
    named = [urlsplit(environ.get(name, "")) for name in ("PREFECT_UI_API_URL", "PREFECT_UI_URL")]
    return ",".join(dict.fromkeys([*here, *(f"{url.scheme}://{url.netloc}" for url in named if url.netloc)]))


def server_environment(environ: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the environment of the server: no telemetry, leases that outlive it, every service that healing needs."""
    kept = {name: value for name, value in environ.items() if name != "PREFECT_API_URL"}
    return {
        # Prefect's pages draw a flow run's tasks on a time line, and do not respond while they draw thousands.
        "PREFECT_SERVER_FLOW_RUN_GRAPH_MAX_NODES": "1000",
        **flow_environment(kept),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES_IN_FILES,
        # The pages would ask port 4200. A proxy before them has another address, which only the user knows.
        # By itself Prefect lets every page that a browser has open here ask it, and whoever asks it can run code.
        CORS_VARIABLE: environ.get(CORS_VARIABLE, own_origins(environ, port)),
        "PREFECT_UI_API_URL": environ.get("PREFECT_UI_API_URL", api_at(port)),
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "true" for name in _SERVICES},
    }


def worker_command(name: str) -> list[str]:
    """Return the command of a worker; it stays in the foreground."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    # One run at a time. A limit of the pool would do it too, but a run whose process has vanished holds that for ever.
    return [*command, "--limit", "1", "--name", name]


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that asks an API: the password of a server of our own is known here."""
    password = environ.get("PREFECT_SERVER_API_AUTH_STRING")
    given = {} if password is None else {"PREFECT_API_AUTH_STRING": password}
    return {**given, **flow_environment(environ)}


def client_environment(environ: Mapping[str, str], api: str) -> dict[str, str]:
    """Return the environment of a process that asks the API at `api`."""
    return {"PREFECT_UI_URL": ui_of(api), **own_environment(environ), "PREFECT_API_URL": api}


def worker_environment(environ: Mapping[str, str], api: str, folder: Path) -> dict[str, str]:
    """Return the environment of the worker and, with it, of the flows that it starts; they work in `folder`."""
    return {
        "PREFECT_WORKER_QUERY_SECONDS": f"{POLL_SECONDS:g}",
        **client_environment(environ, api),
        VARIABLE: str(folder),
    }
