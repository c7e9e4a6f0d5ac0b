"""A scheduler of other machines that is not there, or that is lost: what a run says."""

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dask_cases import WAIT_SECONDS, dask, dask_worker, free_address
from distributed import Client, Security
from science_cases import small_config
from training_cases import advance, content_of
from worker_cases import alone, led_by, wait_for

from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.generation import TrainingState, evaluate
from eigen_core.workers import LocalWorkers, WorkerExecutor
from eigen_core.workers.connection import WorkerClient, connected
from flows.server.environment import free_port

pytestmark = pytest.mark.cpu


@contextmanager
def scheduled(folder: Path) -> Iterator[tuple[TrainingState, str, subprocess.Popen[bytes]]]:
    """A run after its first generation, computed by a worker of a scheduler; with its address and process."""
    config, address = small_config(), free_address()
    with (
        dask(folder, "scheduler", "--host", address) as scheduler,
        dask_worker(folder / "worker", address),
        led_by(config, address) as (state, _),
    ):
        yield advance(state, 1), address, scheduler


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 1.0)
    left_behind: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", left_behind.append)
    port = free_port()
    for wrong in (*(f"{protocol}://127.0.0.1:{port}" for protocol in ("tcp", "tls", "ucx")), "127.0.0.1:x", "nonsense"):
        with pytest.raises(InputError, match=f"scheduler {wrong} cannot be reached"):
            WorkerExecutor("led", small_config(), None, "", wrong)
    gc.collect()
    assert not left_behind


@pytest.mark.thorough
def test_a_scheduler_that_is_lost_is_named(tmp_path: Path) -> None:
    """Also by the next attempt, when the client has given up."""
    with scheduled(tmp_path) as (state, address, scheduler):
        scheduler.kill()
        scheduler.wait()
        for _ in range(2):
            with pytest.raises(SchedulerLostError, match=f"scheduler {address} cannot be reached any more"):
                evaluate(state)
    assert content_of(state) == content_of(alone(state.config, 1))


@pytest.mark.thorough
def test_a_client_that_ends_while_its_scheduler_is_gone_prints_nothing(tmp_path: Path) -> None:
    """The error of a lost scheduler is one sentence: tracebacks of a client that was reconnecting hide it."""
    address = free_address()
    code = (
        "from eigen_core.workers.connection import connected; import time\n"
        f"client = connected({address!r}); print(flush=True); input(); time.sleep(0.5); client.close()"
    )
    with (
        dask(tmp_path, "scheduler", "--host", address) as scheduler,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        scheduler.kill()
        scheduler.wait()
        assert process.communicate(b"\n", WAIT_SECONDS) == (b"", b"")
    assert process.returncode == 0


@pytest.mark.thorough
def test_a_scheduler_that_hangs_counts_as_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with scheduled(tmp_path) as (state, address, scheduler):
        monkeypatch.setattr("eigen_core.workers.connection._ANSWER_SECONDS", 2.0)
        scheduler.send_signal(signal.SIGSTOP)
        with pytest.raises(SchedulerLostError, match=f"scheduler {address} .* any more .no answer for 2 s.:"):
            evaluate(state)


def unreachable(folder: Path, scheduler: str) -> Any:
    """A worker that names a port at which nothing listens."""
    return dask_worker(folder, scheduler, "--listen-address", free_address(), "--contact-address", free_address())


@pytest.mark.thorough
def test_no_phase_waits_again_for_a_worker_that_cannot_be_reached(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduled(tmp_path) as (state, address, _):
        executor = state.executor
        assert isinstance(executor, WorkerExecutor)
        # On a busy machine the first worker may have taken long to begin.
        warnings.clear()
        monkeypatch.setattr("eigen_core.workers.executor._PATIENCE_SECONDS", 8.0)
        with unreachable(tmp_path / "unreachable", address):
            wait_for(executor, 2)
            while len(warnings) < 2:
                advance(state, 1)
            assert warnings[0].endswith("The phase goes on with the others.")
            assert "Timed out trying to connect" in warnings[1]
            # A phase that waited for it would say so again.
            for _ in range(2):
                advance(state, 1)
                assert len(executor.workers) == 1
            assert len(warnings) == 2


@pytest.mark.thorough
def test_workers_that_cannot_be_reached_are_named(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("eigen_core.workers.executor._FIRST_WORKER_SECONDS", 0.0)
    config, address = small_config(), free_address()
    with (
        dask(tmp_path, "scheduler", "--host", address),
        unreachable(tmp_path / "unreachable", address),
        led_by(config, address) as (state, executor),
    ):
        wait_for(executor, 1)
        with pytest.raises(WorkerLostError, match=r"Timed out trying to connect .*`--worker-port` of `dask worker`"):
            evaluate(state)
    assert not [warning for warning in warnings if "with the others" in warning]


def test_a_client_that_has_closed_itself_says_so(workers: LocalWorkers) -> None:
    client = WorkerClient(workers.address)
    client.close()
    with pytest.raises(SchedulerLostError, match="the connection is closed"):
        client.addresses()


def test_who_has_no_certificate_of_a_run_reaches_none_of_its_processes(workers: LocalWorkers) -> None:
    with connected(workers.address) as client:
        client.wait_for_workers(1)
        addresses = [workers.address, *client.nthreads()]
    for address in addresses:
        assert address.startswith("tls://127.0.0.1:")
        stranger = Security.temporary()  # type: ignore[no-untyped-call] # distributed has no annotation here
        with pytest.raises(OSError, match="certificate"):
            Client(address, timeout=10, security=stranger, set_as_default=False)  # type: ignore[no-untyped-call] # as above
