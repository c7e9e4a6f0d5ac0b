"""Workers: processes on this machine or others that compute the agents of a run, by Dask (dask.distributed)."""

from eigen_core.workers.connection import connected, unreachable, worker_command
from eigen_core.workers.executor import WorkerExecutor
from eigen_core.workers.local import LocalWorkers

__all__ = ["LocalWorkers", "WorkerExecutor", "connected", "unreachable", "worker_command"]
