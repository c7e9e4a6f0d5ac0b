"""Workers that a run starts or finds: on this machine, on which GPUs, and at schedulers of other machines."""

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import psutil
import pytest
import torch
from distributed import Client, Security
from flow_cases import free_port
from science_cases import small_config
from training_cases import advance, content_of
from worker_cases import alone, dask, dask_worker, free_address, led_by, wait_for, wait_until_it_listens

import eigen_core.workers
from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.generation import TrainingState, evaluate
from eigen_core.run import local_workers
from eigen_core.workers import LocalWorkers, WorkerExecutor
from eigen_core.workers.connection import WorkerClient, connected

pytestmark = pytest.mark.cpu


def script(folder: Path, *lines: str) -> str:
    path = folder / "python"
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o700)
    return str(path)


def test_workers_that_failed_are_said_once_and_then_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "exit 3"))
    with LocalWorkers(2) as workers:
        failed = workers.processes
        for process in failed:
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerLostError, match="failed: status 3"):
            workers.start_missing()
        script(tmp_path, "exec sleep 60")
        workers.start_missing()
        assert len(workers.processes) == 2
        assert not set(failed) & set(workers.processes)


def test_workers_are_shared_out_among_gpus_and_the_next_gets_that_of_the_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tell = f'echo "$CUDA_VISIBLE_DEVICES" > {tmp_path}/$$.new; mv {tmp_path}/$$.new {tmp_path}/$$.gpu'
    monkeypatch.setattr(sys, "executable", script(tmp_path, tell, "exec sleep 60"))

    def gpus(workers: LocalWorkers) -> list[str]:
        files = [tmp_path / f"{process}.gpu" for process in workers.processes]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        return sorted(file.read_text().strip() for file in files)

    with LocalWorkers(3, ("4", "GPU-7")) as workers:
        assert gpus(workers) == ["4", "4", "GPU-7"]
        [lost] = [process for process in workers.processes if "GPU" in (tmp_path / f"{process}.gpu").read_text()]
        os.kill(lost, signal.SIGKILL)
        os.waitid(os.P_PID, lost, os.WEXITED | os.WNOWAIT)
        workers.start_missing()
        assert lost not in workers.processes
        assert gpus(workers) == ["4", "4", "GPU-7"]


def test_dask_imports_from_no_folder_that_others_can_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "dask-scratch-space").mkdir(mode=0o777)
    told = tmp_path / "told"
    tell = f'echo "$@" > {told}.new; mv {told}.new {told}'
    monkeypatch.setattr(sys, "executable", script(tmp_path, tell, "exec sleep 60"))
    before = set(sys.path)
    with LocalWorkers(1):
        while not told.exists():
            time.sleep(0.01)
        (own,) = tmp_path.glob("eigen-workers-*")
        assert own.stat().st_mode & 0o777 == 0o700
        assert all(Path(path).is_relative_to(own) for path in set(sys.path) - before)
        assert f"--local-directory {own}" in told.read_text()
    assert not own.exists()


def test_workers_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eigen_core.workers.local._ENDING_SECONDS", 1)
    deaf = script(tmp_path, "trap '' TERM", f"touch {tmp_path}/$$.ready", "while :; do sleep 0.1; done")
    monkeypatch.setattr(sys, "executable", deaf)
    with LocalWorkers(2) as workers:
        while len(list(tmp_path.glob("*.ready"))) < 2:
            time.sleep(0.01)
        processes = workers.processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize(
    ("device", "gpus", "workers", "started"),
    [
        ("cpu", 3, 2, (2, ())),
        ("cpu", 3, 0, None),
        # The process that leads computes on the first.
        ("cuda", 3, 2, (2, ("1", "2", "0"))),
        ("cuda", 3, "auto", (3, ("1", "2", "0"))),
        ("cuda", 1, 2, (2, ("0",))),
        ("cuda", 1, "auto", None),
    ],
)
def test_workers_are_given_the_gpus_where_the_run_computes_on_one(
    device: str,
    gpus: int,
    workers: int | str,
    started: tuple[int, tuple[str, ...]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Mock(return_value=nullcontext())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("eigen_core.run.resolve_device", lambda _: SimpleNamespace(type=device))
    monkeypatch.setattr(eigen_core.workers, "LocalWorkers", made)
    with local_workers(small_config(workers=workers)):
        pass
    assert [call.args for call in made.call_args_list] == ([] if started is None else [started])


@contextmanager
def scheduled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TrainingState, str, Any]]:
    """A run at a scheduler whose worker has computed a generation, and which gives up a connection soon."""
    config, address = small_config(), free_address()
    with dask(folder, "scheduler", "--host", address) as scheduler, dask_worker(folder / "worker", address):
        wait_until_it_listens(address)
        monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 5.0)
        with led_by(config, address) as (state, _):
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
@pytest.mark.parametrize(
    ("ending", "reason"), [(signal.SIGKILL, ".*"), (signal.SIGSTOP, "no answer for 2 s")], ids=["lost", "hangs"]
)
def test_a_scheduler_that_does_not_answer_any_more_is_named(
    ending: signal.Signals, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduled(tmp_path, monkeypatch) as (state, address, scheduler):
        monkeypatch.setattr("eigen_core.workers.connection._ANSWER_SECONDS", 2.0)
        scheduler.send_signal(ending)
        for _ in range(2):
            with pytest.raises(SchedulerLostError, match=rf"scheduler {address} .* any more \({reason}\):"):
                evaluate(state)
    assert content_of(state) == content_of(alone(state.config, 1))


def unreachable(folder: Path, scheduler: str) -> Any:
    return dask_worker(folder, scheduler, "--listen-address", free_address(), "--contact-address", free_address())


@pytest.mark.thorough
def test_no_phase_waits_again_for_a_worker_that_cannot_be_reached(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduled(tmp_path, monkeypatch) as (state, address, _):
        executor = state.executor
        assert isinstance(executor, WorkerExecutor)
        # On a busy machine the first worker may have taken long to begin.
        warnings.clear()
        monkeypatch.setattr("eigen_core.workers.executor._PATIENCE_SECONDS", 3.0)
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
    with dask(tmp_path, "scheduler", "--host", address), unreachable(tmp_path / "unreachable", address):
        wait_until_it_listens(address)
        monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 5.0)
        with led_by(config, address) as (state, executor):
            wait_for(executor, 1)
            with pytest.raises(WorkerLostError, match=r"Timed out trying to connect .*`--worker-port` of `dask wor"):
                evaluate(state)
    assert not [warning for warning in warnings if "with the others" in warning]


def test_a_client_that_has_closed_itself_says_so(workers: LocalWorkers) -> None:
    client = WorkerClient(workers.address)
    client.close()
    with pytest.raises(SchedulerLostError, match="the connection is closed"):
        client.addresses()


def test_who_has_no_certificate_of_a_run_reaches_none_of_its_processes(workers: LocalWorkers) -> None:
    with connected(workers.address) as client:
        client.wait_for_workers(workers.count)
        addresses = [workers.address, *client.nthreads()]
        ports = [client.scheduler_info()["services"]["dashboard"]]
    for process in map(psutil.Process, workers.processes):
        listening = [one.laddr for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
        assert {address.ip for address in listening} == {"127.0.0.1"}
        ports += [address.port for address in listening]
    pages = ("", "metrics", "health", "info/main/workers.html", "json/counts.json", "statics/css/base.css")
    for url in (f"http://127.0.0.1:{port}/{page}" for port in ports for page in pages):
        # A port with TLS closes the connection.
        with suppress(httpx.RemoteProtocolError, httpx.ReadError):
            assert httpx.get(url).status_code == httpx.codes.NOT_FOUND, url
    for address in addresses:
        assert address.startswith("tls://127.0.0.1:")
        stranger = Security.temporary()  # type: ignore[no-untyped-call] # distributed has no annotation here
        with pytest.raises(OSError, match="certificate"):
            Client(address, timeout=10, security=stranger, set_as_default=False)  # type: ignore[no-untyped-call] # as above
