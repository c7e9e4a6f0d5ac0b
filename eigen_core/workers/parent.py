"""Preloaded by a worker on the machine of the process that started it: ends with that process, however that ends."""

import os
import threading
import time

PARENT = "EIGEN_WORKER_PARENT"
"""Names the process that started the worker: it may have ended before the worker looks."""
_SECONDS_BETWEEN = 1.0


def dask_setup(worker: object) -> None:  # noqa: ARG001 - Dask's hook
    """Begin to watch the parent. A worker without one would keep its memory until it misses its scheduler."""
    threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), name="parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN)
    # The worker's own end would wait for a scheduler that ended with the parent.
    os._exit(1)
