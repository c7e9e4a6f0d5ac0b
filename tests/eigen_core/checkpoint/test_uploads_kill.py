"""Uploads killed at any instant, by real processes, and uploads through a network that fails in every way."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from fault_proxy import Fault, FaultProxy
from gcs_emulator import GcsEmulator
from upload_cases import RUN, Machine, commit, new_directory, whole_generations

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.lease import Lease, LeaseLostError
from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.location import open_store
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import Store
from eigen_core.checkpoint.uploads import NOTHING_TO_DO, Uploader
from eigen_core.config import CheckpointConfig

FORK = multiprocessing.get_context("fork")
CONFIG = CheckpointConfig(keep_last=2, keep_every=4, keep_local=1, upload_mb_per_second=0)
GENERATIONS = 12


def _train(root: str, url: str, ready: Connection) -> None:
    """Take the lease, go on after the newest generation that is here, upload, finish."""
    store = open_store(url)
    directory = RunDirectory.open(Path(root), RUN)
    with directory.lock(), Lease.acquire(store, RUN, 90.0) as lease:
        ready.send(lease.epoch)
        newest = directory.load_newest()
        with Uploader(directory, RunContents(store, RUN), lease, CONFIG) as uploader:
            for generation in range(newest.manifest.generation + 1 if newest else 1, GENERATIONS + 1):
                uploader.wait_for_queue()
                uploader.add(commit(directory, generation, epoch=lease.epoch))
            uploader.finish(60)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return LocalStore(tmp_path / "store")
    bucket: str = request.getfixturevalue("gcs_bucket")
    return open_store(bucket)


@pytest.mark.parametrize(
    ("store", "seed"),
    [("folder", 0), *(pytest.param(*case, marks=pytest.mark.thorough) for case in (("folder", 1), ("bucket", 2)))],
    indirect=["store"],
)
def test_killed_at_any_instant_leaves_no_manifest_or_a_whole_generation(
    tmp_path: Path, store: Store, seed: int
) -> None:
    instants = random.Random(seed)
    new_directory(tmp_path / "here")
    target = RunContents(store, RUN)
    newest = 0
    for attempt in range(1, 1_000):
        here, there = FORK.Pipe()
        process = FORK.Process(target=_train, args=(str(tmp_path / "here"), store.url, there), daemon=True)
        process.start()
        assert here.poll(60)
        assert here.recv() == attempt, "the lease of a killed process is taken over at once"
        # Longer and longer, so that the test ends on slow machines too.
        process.join(instants.uniform(0.0, 0.02 * attempt))
        process.kill()
        process.join()
        stored = whole_generations(target)
        assert max(stored, default=0) >= newest
        newest = max(stored, default=0)
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert whole_generations(target) == [4, 8, 11, 12]
    assert whole_generations(RunDirectory.open(tmp_path / "here", RUN).contents)[-1] == 12


def _hold_and_write(root: str, url: str, pipe: Connection) -> None:
    """Upload a generation whenever told to, and say what came of it."""
    store = open_store(url)
    machine = Machine(Path(root), store, CONFIG)
    pipe.send(machine.lease.epoch)
    for generation in range(1, 10):
        pipe.recv()
        try:
            machine.train(generation)
            machine.drain()
        except LeaseLostError:
            pipe.send("lost")
        else:
            pipe.send(generation)


def test_a_process_that_was_suspended_commits_nothing_once_another_has_taken_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    here, there = FORK.Pipe()
    process = FORK.Process(target=_hold_and_write, args=(str(tmp_path / "one"), store.url, there), daemon=True)
    process.start()
    assert here.recv() == 1
    here.send(None)
    assert here.recv() == 1
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    other = Lease.acquire(store, RUN, 90.0, at_once=True)
    os.kill(process.pid, signal.SIGCONT)
    here.send(None)
    assert here.recv() == "lost"
    assert whole_generations(RunContents(store, RUN)) == [1]
    other.check()
    process.kill()
    process.join()


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", method="POST|PUT|DELETE", probability=0.3, times=None, status=503),
        Fault("status", probability=0.2, times=None, status=429),
        Fault("reset", probability=0.2, times=None),
        Fault("lost_reply", probability=0.2, times=None),
        Fault("cut", method="GET", probability=0.2, times=None),
        Fault("flip_request", method="POST", path="upload", probability=0.2, times=None, where=0.99),
        Fault("flip_reply", method="GET", path="alt=media", probability=0.2, times=None),
    ],
    ids=lambda fault: fault.kind,
)
def test_faults_of_the_network_change_nothing(
    tmp_path: Path, gcs_emulator: GcsEmulator, fault_proxy: FaultProxy, fault: Fault
) -> None:
    store = open_store(f"gs://{gcs_emulator.make_bucket()}")
    machine = Machine(tmp_path, store, CONFIG)
    fault_proxy.add(fault)
    machine.train(1, 2, 3)
    end = time.monotonic() + 120
    while machine.uploader.step() != NOTHING_TO_DO:
        assert time.monotonic() < end
    fault_proxy.clear()
    machine.drain()
    assert machine.stored() == [2, 3]


@pytest.mark.usefixtures("quick_retries")
def test_permission_revoked_in_mid_run_on_the_service(
    tmp_path: Path, gcs_emulator: GcsEmulator, fault_proxy: FaultProxy
) -> None:
    store = open_store(f"gs://{gcs_emulator.make_bucket()}/prefix")
    machine = Machine(tmp_path, store, CONFIG)
    machine.train(1)
    machine.drain()
    fault_proxy.add(Fault("status", method="POST|PUT", times=None, status=403, message="does not have access"))
    machine.train(2)
    assert machine.steps()[-1] == 30
    assert "may not" in str(machine.uploader.status().last_error)
    fault_proxy.clear()
    machine.drain()
    assert machine.stored() == [1, 2]
