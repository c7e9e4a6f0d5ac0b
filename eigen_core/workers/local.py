"""Worker processes on this machine."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count as count_from
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dask
from distributed import LocalCluster, Scheduler, SchedulerPlugin, Security

from eigen_core.checkpoint.lock import FileLock
from eigen_core.common.errors import WorkerLostError
from eigen_core.common.runtime import stop_with_this_process
from eigen_core.workers.connection import OWN_SECURITY

# Dask looks a hundred times a second at what the threads compute, and fifty times at whether the event loop is late, in
# the process that leads and in each worker. That takes several percent of the time.
_WITHOUT_PROFILE = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1 s"}
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    **{f"DASK_{name.upper().replace('.', '__')}": str(value) for name, value in _WITHOUT_PROFILE.items()},
}
# A worker that computes ends only when it has done so, and the system may give the process that leads 30 s.
_ENDING_SECONDS = 5
_WITHOUT_SCHEDULER = "30 s"
_FOLDER = "eigen-workers-"
_LOCK = "lock"
_UNLOCKED_SECONDS = 60
"""A folder may be so old before it is locked."""


@dataclass
class _Worker:
    """A process, the name by which the scheduler knows it, its GPU and log, and what ends the shell that watches it."""

    process: subprocess.Popen[bytes]
    name: str
    gpu: str | None
    log: Path
    release: Callable[[], None]


class _Dropped(SchedulerPlugin):
    """Names of the workers that the scheduler has known and dropped; its own thread calls this."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._name_at: dict[str, str] = {}

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        name = str(scheduler.workers[worker].name)
        self._name_at[worker] = name
        self.names.discard(name)

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - Dask's
        self.names.add(self._name_at.pop(worker))


class LocalWorkers:
    """A scheduler in this process, and worker processes of one thread each; a context manager.

    They end with this process, however that ends. Whoever connects to one of them can run code in it, and every user of
    this machine reaches its ports: connections need a certificate that is made for these processes alone.

    Args:
        count: how many.
        gpus: as `CUDA_VISIBLE_DEVICES` names them; each worker is given one of those that fewest have. Empty: workers
            see what this process does.
        lost_seconds: time without a heartbeat after which one counts as lost.

    Attributes:
        count: how many there are to be.
    """

    def __init__(self, count: int, gpus: Sequence[str] = (), lost_seconds: int = 60) -> None:
        self.count = count
        self._gpus = gpus
        self._workers: dict[int, _Worker] = {}
        self._dropped = _Dropped()
        self._names = (f"local-{number}" for number in count_from(1))
        _remove_folders_that_are_left()
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER)
        self._lock = FileLock(Path(self._folder.name) / _LOCK)
        self._lock.acquire()
        security = Security.temporary()  # type: ignore[no-untyped-call] # distributed has no annotation here
        self._certificates = _written(security, Path(self._folder.name))
        with dask.config.set({"distributed.scheduler.worker-ttl": f"{lost_seconds} s", **_WITHOUT_PROFILE}):
            self._cluster = LocalCluster(  # type: ignore[no-untyped-call] # distributed has no annotation here
                n_workers=0,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False, "plugins": [self._dropped]},
                silence_logs=logging.CRITICAL,
                protocol="tls://",
                security=security,
            )
        OWN_SECURITY[self.address] = security
        self.start_missing()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(self._workers)

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return str(self._cluster.scheduler_address)

    def start_missing(self) -> None:
        """Start a process for each that is missing: at the beginning, or because it was killed, failed or hung.

        Raises:
            WorkerLostError: some have failed since the last call; the next one starts others.
        """
        self._kill_those_that_hang()
        ended = [worker for worker in self._workers.values() if worker.process.poll() is not None]
        for worker in ended:
            self._forget(worker.process.pid)
        for worker in ended:
            if (status := worker.process.returncode) > 0:
                *_, last = worker.log.read_text(errors="replace").splitlines() or [f"status {status}"]
                raise WorkerLostError(f"a worker process of this machine ended by itself: {last}")
        while len(self._workers) < self.count:
            name = next(self._names)
            log = Path(self._folder.name) / f"{name}.log"
            gpu = self._free_gpu()
            process = self._started(name, gpu, log)
            release = stop_with_this_process(process.pid, _ENDING_SECONDS)
            self._workers[process.pid] = _Worker(process, name, gpu, log, release)

    def _free_gpu(self) -> str | None:
        """Return one of the GPUs that fewest workers have."""
        taken = Counter(worker.gpu for worker in self._workers.values())
        return min(self._gpus, key=lambda gpu: taken[gpu], default=None)

    def _kill_those_that_hang(self) -> None:
        """Kill those that the scheduler has dropped: it gives them nothing more to compute."""
        for worker in self._workers.values():
            if worker.name in self._dropped.names and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()

    def _forget(self, pid: int) -> None:
        self._workers.pop(pid).release()

    def _started(self, name: str, gpu: str | None, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", "worker", self.address, "--nthreads", "1", "--no-nanny"]
        command += ["--no-dashboard", "--memory-limit", "0", "--local-directory", self._folder.name]
        command += self._certificates
        command += ["--death-timeout", _WITHOUT_SCHEDULER, "--name", name]
        # What takes long to import is imported while the process that leads prepares the run.
        command += ["--preload", "eigen_core.workers.resident"]
        environment = {**os.environ, **_ENVIRONMENT, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})}
        with log.open("wb") as written:
            # In a session of its own: Ctrl-C stops the process that leads, which ends its phase first.
            return subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=written, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        processes = [worker.process for worker in self._workers.values()]
        for process in processes:
            process.terminate()
        end = time.monotonic() + _ENDING_SECONDS
        for process in processes:
            try:
                process.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
        for process in processes:
            process.wait()
        for pid in self.processes:
            self._forget(pid)
        del OWN_SECURITY[self.address]
        self._cluster.close()
        self._folder.cleanup()
        self._lock.release()


def _written(security: Security, folder: Path) -> list[str]:
    """Write certificates into a folder that only this user may read; return the options that name them."""
    options = []
    for option, name in (("--tls-ca-file", "ca_file"), ("--tls-cert", "worker_cert"), ("--tls-key", "worker_key")):
        path = folder / f"{name}.pem"
        path.touch(mode=0o600)
        path.write_text(getattr(security, f"tls_{name}"))
        options += [option, str(path)]
    return options


def _remove_folders_that_are_left() -> None:
    """Remove those of processes of this user that were killed: nothing else does so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        # Another process may remove it at the same time.
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _UNLOCKED_SECONDS:
                continue
            lock = FileLock(folder / _LOCK)
            if lock.acquire(0.0):
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
