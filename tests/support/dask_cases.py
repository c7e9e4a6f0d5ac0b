"""A Dask scheduler and its workers, as processes with folders and caches of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flow_cases import free_port

WAIT_SECONDS = 120.0


@contextmanager
def dask(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "EIGEN_CACHE": str(folder / "cache"), "PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def dask_worker(folder: Path, scheduler: str, *arguments: str) -> Any:
    folder.mkdir(exist_ok=True)
    return dask(folder, "worker", scheduler, "--nthreads", "1", "--no-nanny", "--death-timeout", "60 s", *arguments)


def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
