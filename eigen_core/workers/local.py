"""Worker processes on this machine."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import dask
from distributed import LocalCluster

from eigen_core.child_processes import stop_with_this_process
from eigen_core.errors import WorkerLostError

# Dask looks a hundred times a second at what the threads compute, and fifty times at whether the event loop is late, in
# the process that leads and in each worker. That takes several percent of the time.
_WITHOUT_PROFILE = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1 s"}
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    **{f"DASK_{name.upper().replace('.', '__')}": str(value) for name, value in _WITHOUT_PROFILE.items()},
}
_ENDING_SECONDS = 5.0
_WITHOUT_SCHEDULER = "30 s"


class LocalWorkers:
    """A scheduler in this process, and worker processes of one thread each; a context manager.

    They end with this process, however that ends.

    Args:
        count: how many.
        lost_seconds: time without a heartbeat after which one counts as lost.

    Attributes:
        count: how many there are to be.
    """

    def __init__(self, count: int, lost_seconds: int = 60) -> None:
        self.count = count
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._release: dict[int, Callable[[], None]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="eigen-workers-")
        self._log = Path(self._folder.name) / "workers.log"
        with dask.config.set({"distributed.scheduler.worker-ttl": f"{lost_seconds} s", **_WITHOUT_PROFILE}):
            self._cluster = LocalCluster(  # type: ignore[no-untyped-call] # distributed has no annotation here
                n_workers=0,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
            )
        self.start_missing()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(self._processes)

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return str(self._cluster.scheduler_address)

    def start_missing(self) -> None:
        """Start a process for each that is missing: at the beginning, or because it was killed.

        Raises:
            WorkerLostError: one ended by itself, which another would do too.
        """
        for process in self._processes.values():
            if (process.poll() or 0) > 0:
                *_, last = self._log.read_text(errors="replace").splitlines() or [f"status {process.returncode}"]
                raise WorkerLostError(f"a worker process of this machine ended by itself: {last}")
        for pid in [pid for pid, process in self._processes.items() if process.poll() is not None]:
            self._forget(pid)
        while len(self._processes) < self.count:
            process = self._started()
            self._processes[process.pid] = process
            self._release[process.pid] = stop_with_this_process(process.pid)

    def _forget(self, pid: int) -> None:
        del self._processes[pid]
        self._release.pop(pid)()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", "worker", self.address, "--nthreads", "1", "--no-nanny"]
        command += ["--no-dashboard", "--memory-limit", "0", "--local-directory", self._folder.name]
        command += ["--death-timeout", _WITHOUT_SCHEDULER]
        # What takes long to import is imported while the process that leads prepares the run.
        command += ["--preload", "eigen_core.workers.resident"]
        environment = {**os.environ, **_ENVIRONMENT}
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C stops the process that leads, which ends its phase first.
            return subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.processes:
            self._forget(pid)
        self._cluster.close()
        self._folder.cleanup()
