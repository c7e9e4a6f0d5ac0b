"""Workers: processes on this machine or others that compute the agents of a run, by Dask (dask.distributed)."""

from eigen_core.workers.connection import WorkerStatus, unreachable, worker_command, workers_of
from eigen_core.workers.executor import WorkerExecutor
from eigen_core.workers.local import LocalWorkers

__all__ = ["LocalWorkers", "WorkerExecutor", "WorkerStatus", "unreachable", "worker_command", "workers_of"]
