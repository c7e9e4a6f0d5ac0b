"""Worker processes on this machine, with a Dask scheduler in the process that trains (the leading process)."""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count as count_from
from typing import IO, Any

import dask
from distributed import LocalCluster, Scheduler, SchedulerPlugin, Security

from eigen_core.common.errors import WorkerLostError
from eigen_core.common.process import stop_with_this_process
from eigen_core.workers.connection import OWN_SECURITY

_DASK_SETTINGS = {
    # Dask profiles the threads a hundred times a second, and checks the event loop fifty times, in the leading process
    # and in each worker. That takes several percent of the time.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1 s",
    # HTTP pages need no certificate: they would show every user of this machine the run.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
_TLS = "distributed.comm.tls"
_HOST = "127.0.0.1"
# A worker ends only after its current computation, and the system may give the leading process only 30 s.
_ENDING_SECONDS = 5


@dataclass
class _Worker:
    """A worker process; `release` ends the shell that would stop it when this process exits."""

    process: subprocess.Popen[bytes]
    name: str
    gpu: str | None
    log: IO[bytes]
    release: Callable[[], None]


class _DroppedWorkers(SchedulerPlugin):
    """Collects names of workers that the scheduler has dropped; Dask calls its methods in the scheduler's thread."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._name_at: dict[str, str] = {}

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        self._name_at[worker] = str(scheduler.workers[worker].name)
        self.names.discard(self._name_at[worker])

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - Dask's
        self.names.add(self._name_at.pop(worker))


class LocalWorkers(AbstractContextManager["LocalWorkers"]):
    """A scheduler in this process, and `count` worker processes of one thread each; a context manager.

    The workers end with this process, even if it is killed. A connection can run code in them, and every user of this
    machine can reach their ports: so connections need a certificate that is made for these processes only.

    `gpus` are names as in `CUDA_VISIBLE_DEVICES`; each worker gets one of them, in equal numbers. Empty: workers see
    the GPUs of this process. A worker counts as lost after `lost_seconds` without a heartbeat.
    """

    def __init__(self, count: int, gpus: Sequence[str] = (), lost_seconds: int = 60) -> None:
        self.count = count
        self._gpus = gpus
        self._workers: dict[int, _Worker] = {}
        self._dropped = _DroppedWorkers()
        self._names = (f"local-{number}" for number in count_from(1))
        security = Security.temporary()  # type: ignore[no-untyped-call] # distributed has no annotation here
        # Other users cannot read the environment variables of a process.
        settings = {
            **_DASK_SETTINGS,
            f"{_TLS}.ca-file": security.tls_ca_file,
            f"{_TLS}.worker.cert": security.tls_worker_cert,
            f"{_TLS}.worker.key": security.tls_worker_key,
        }
        self._environment = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "PYTHONSAFEPATH": "1"} | {
            f"DASK_{name.upper().replace('.', '__').replace('-', '_')}": str(value) for name, value in settings.items()
        }
        # Dask imports from its folder, which by default lies in one that another user may have made.
        self._folder = tempfile.TemporaryDirectory(prefix="eigen-workers-")
        here = {"distributed.scheduler.worker-ttl": f"{lost_seconds} s", "temporary-directory": self._folder.name}
        with dask.config.set({**here, **_DASK_SETTINGS}):
            self._cluster = LocalCluster(  # type: ignore[no-untyped-call] # distributed has no annotation here
                n_workers=0,
                host=_HOST,
                dashboard_address=f"{_HOST}:0",
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
        return str(self._cluster.scheduler_address)

    def start_missing(self) -> None:
        """Replace worker processes that have ended or hang; `WorkerLostError` if one ended with an error."""
        for worker in self._workers.values():
            # The scheduler gives those that it has dropped nothing more to compute.
            if worker.name in self._dropped.names and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        ended = [worker for worker in self._workers.values() if worker.process.poll() is not None]
        for worker in ended:
            self._workers.pop(worker.process.pid).release()
        for worker in ended:
            if (status := worker.process.returncode) > 0:
                worker.log.seek(0)
                *_, last = worker.log.read().decode(errors="replace").splitlines() or [f"status {status}"]
                raise WorkerLostError(f"a worker process of this machine failed: {last}")
        while len(self._workers) < self.count:
            worker = self._started(next(self._names))
            self._workers[worker.process.pid] = worker

    def _started(self, name: str) -> _Worker:
        taken = Counter(worker.gpu for worker in self._workers.values())
        gpu = min(self._gpus, key=lambda gpu: taken[gpu], default=None)
        command = [sys.executable, "-P", "-m", "dask", "worker", self.address, "--name", name, "--nthreads", "1"]
        # Else it listens at all addresses of the machine.
        command += ["--host", _HOST, "--dashboard-address", f"{_HOST}:0"]
        command += ["--no-nanny", "--no-dashboard", "--memory-limit", "0", "--death-timeout", "30 s"]
        command += ["--local-directory", self._folder.name]
        # Libraries that take long to import are imported while the process that leads prepares the run.
        command += ["--preload", "eigen_core.workers.worker"]
        environment = os.environ | self._environment | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        log = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it
        # In its own session, which Ctrl-C does not reach: the leading process first ends its phase.
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
        return _Worker(process, name, gpu, log, stop_with_this_process(process.pid, _ENDING_SECONDS))

    def __exit__(self, *_error: object) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.process.terminate()
        end = time.monotonic() + _ENDING_SECONDS
        for worker in workers:
            try:
                worker.process.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                worker.process.kill()
        for worker in workers:
            worker.process.wait()
            worker.release()
        self._workers.clear()
        del OWN_SECURITY[self.address]
        self._cluster.close()
        self._folder.cleanup()
