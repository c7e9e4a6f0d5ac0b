"""Runs whose agents are computed by worker processes of this machine, and Dask's own processes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distributed.comm.addressing import get_address_host_port
from flow_cases import free_port
from science_cases import small_config
from training_cases import advance, begun, content_for

from eigen_core.config import Config
from eigen_core.generation import TrainingState, start_training
from eigen_core.workers import LocalWorkers, WorkerExecutor
from eigen_core.workers.connection import connected

WAIT_SECONDS = 120.0
PENDULUM = small_config(
    task="gym:Pendulum-v1",
    population={"size": 3},
    environment={"episode_steps": 30, "normalise_observations": True, "normalise_rewards": True},
    replay={"capacity": 2_000, "minimum": 20},
)


def alone(config: Config, generations: int) -> TrainingState:
    return advance(begun(config), generations)


@contextmanager
def led(config: Config, workers: LocalWorkers) -> Iterator[tuple[TrainingState, WorkerExecutor]]:
    """Lead a run whose agents all of these workers can compute."""
    with led_by(config, workers.address, workers.start_missing) as (state, executor):
        workers.start_missing()
        wait_for(executor, workers.count)
        yield state, executor


@contextmanager
def led_by(
    config: Config, scheduler: str, before_phase: Callable[[], None] = lambda: None
) -> Iterator[tuple[TrainingState, WorkerExecutor]]:
    content = content_for(config)
    state = start_training(config, content)
    with WorkerExecutor("led", config, content, state.task.fingerprint, scheduler, before_phase) as state.executor:
        assert isinstance(state.executor, WorkerExecutor)
        yield state, state.executor


def wait_for(executor: WorkerExecutor, workers: int) -> None:
    while len(executor.addresses()) < workers:
        time.sleep(0.1)


def wait_until_released(workers: LocalWorkers) -> None:
    """Wait until no worker keeps agents of a run."""
    end = time.monotonic() + 60.0
    with connected(workers.address) as client:
        while any(kept := [keys for of in (client.has_what(), client.processing()) for keys in of.values()]):
            assert time.monotonic() < end, kept
            time.sleep(0.1)


@contextmanager
def occupied(workers: LocalWorkers, end: Path, count: int) -> Iterator[list[str]]:
    """Let so many workers compute something else until the file `end` is there; return their addresses."""

    def compute(begun: str, end: str) -> None:
        import pathlib
        import time

        pathlib.Path(begun).touch()
        while not pathlib.Path(end).exists():
            time.sleep(0.02)

    with connected(workers.address) as client:
        while len(addresses := sorted(client.nthreads())) < len(workers.processes):
            time.sleep(0.02)
        begun = [end.with_name(f"{end.name}-{place}") for place in range(count)]
        tasks = [
            client.submit(compute, str(file), str(end), workers=[address], pure=False)
            for file, address in zip(begun, addresses, strict=False)
        ]
        while not all(file.exists() for file in begun):
            time.sleep(0.02)
        try:
            yield addresses[:count]
        finally:
            end.touch()
            for task in tasks:
                task.result(timeout=20)


@contextmanager
def replaced(workers: LocalWorkers, method: str, other: Callable[..., object]) -> Iterator[None]:
    """Let another function stand for a method of `WorkerAgents` in all workers."""

    def replace(method: str, other: Callable[..., object]) -> None:
        from eigen_core.workers.worker import WorkerAgents

        setattr(WorkerAgents, f"real_{method}", getattr(WorkerAgents, method))
        setattr(WorkerAgents, method, other)

    def restore(method: str) -> None:
        from eigen_core.workers.worker import WorkerAgents

        setattr(WorkerAgents, method, getattr(WorkerAgents, f"real_{method}"))

    with connected(workers.address) as client:
        client.run(replace, method, other)
        try:
            yield
        finally:
            client.run(restore, method)


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


def wait_until_it_listens(address: str) -> None:
    """Wait for a scheduler that begins, which on a busy machine takes longer than a run waits for one."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        with suppress(OSError):
            return socket.create_connection(get_address_host_port(address), 1.0).close()
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at {address}")


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        # Most ask a store, which takes time from the trainings.
        time.sleep(0.1)
