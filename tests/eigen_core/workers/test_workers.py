"""Agents that other processes compute: the same bits for any number of workers, whatever happens to them."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from science_cases import small_config
from torch import Tensor
from torch.utils._pytree import tree_leaves
from training_cases import advance, content_for, content_of
from worker_cases import PENDULUM, alone, led, occupied, replaced, wait_for, wait_until_released

from eigen_core.common.errors import InputError, WorkerLostError
from eigen_core.common.process import code_digest
from eigen_core.common.progress import checked_by
from eigen_core.config import Config, registry
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.generation.executor import Episodes
from eigen_core.machine.allocation import SharedTensor, shares_memory
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.task import open_data
from eigen_core.workers import LocalWorkers, WorkerExecutor
from eigen_core.workers.connection import WorkerClient, array_bytes, connected

pytestmark = pytest.mark.cpu

PHASES = (evaluate, train, evolve)


LEARNERS = [small_config(learner={"algorithm": name}, population={"size": 5}) for name in registry.LEARNERS]
CASES = {
    **{str(config.learner.algorithm): config for config in LEARNERS},
    "tcn": small_config(network={"encoder": "tcn", "column_chunk": 2}, population={"size": 5, "group_size": 2}),
    "pendulum": PENDULUM,
}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=[] if name in ("ddpg", "ppo", "direct") else pytest.mark.thorough)
        for name, config in CASES.items()
    ],
)
def test_workers_compute_the_same_bits(config: Config, workers: LocalWorkers) -> None:
    with led(config, workers) as (state, _):
        assert content_of(advance(state, 3)) == content_of(alone(config, 3))


def reach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SharedTensor("/proc/0/fd/0", "", (1,), torch.uint8)
    monkeypatch.setattr("eigen_core.workers.executor.shared_memory_check", lambda: (torch.zeros(1), nothing))


@pytest.mark.skipif(not shares_memory("cpu"), reason="another system")
@pytest.mark.thorough
def test_transitions_are_sent_to_each_other_machine_once(
    workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each generation writes over a part of the ring.
    config, generations, sent = small_config(replay={"capacity": 150}), 4, []
    expected = alone(config, generations)
    for machines in (0, 1, 2):
        if machines == 1:
            reach_nothing(monkeypatch)
        apart = replaced(workers, "_machine", lambda _: str(os.getpid())) if machines == 2 else nullcontext()
        with apart, led(config, workers) as (state, executor):
            assert content_of(advance(state, generations)) == content_of(expected)
            sent.append(executor.sent_bytes)
    assert expected.replay.written > 3 * expected.replay.capacity
    stored = expected.replay.written * expected.replay.bytes_per_transition
    assert (sent[1] - sent[0], sent[2] - sent[0]) == (stored, 2 * stored)


@pytest.mark.thorough
def test_another_worker_shares_the_replay_of_a_machine_that_lost_the_one_that_did(
    workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config()
    reach_nothing(monkeypatch)
    with led(config, workers) as (state, executor):
        advance(state, 1)
        first, second = executor.workers
        monkeypatch.setattr(executor, "addresses", lambda: [second])
        advance(state, 1)
        # The one that was left out begins anew, and reads.
        monkeypatch.setattr(executor, "addresses", lambda: [first, second])
        advance(state, 1)
        monkeypatch.setattr(executor, "addresses", lambda: [second])
        assert content_of(advance(state, 1)) == content_of(alone(config, 4))


@pytest.mark.parametrize(
    ("phase", "elsewhere"),
    [
        pytest.param(evaluate, False, marks=pytest.mark.thorough),
        (train, False),
        pytest.param(train, True, marks=pytest.mark.thorough),
    ],
    ids=["evaluate", "train", "train elsewhere"],
)
def test_a_phase_whose_worker_was_killed_is_made_good_by_calling_it_again(
    workers: LocalWorkers, phase: Callable[[TrainingState], object], elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config()
    if elsewhere:
        reach_nothing(monkeypatch)
    with led(config, workers) as (state, _):
        advance(state, 1)
        for earlier in PHASES[: PHASES.index(phase)]:
            earlier(state)
        worker = sorted(workers.processes)[0]
        # It has been asked when the phase first reports its progress, and has not answered.
        os.kill(worker, signal.SIGSTOP)
        kill = partial(os.kill, worker, signal.SIGKILL)
        with (
            checked_by(kill),
            pytest.raises(WorkerLostError, match=r"was lost (while it|before it was asked)"),
        ):
            phase(state)
        for again in PHASES[PHASES.index(phase) :]:
            again(state)
        assert content_of(advance(state, 1)) == content_of(alone(config, 3))
        assert len(workers.processes) == 2
        assert worker not in workers.processes


@pytest.mark.thorough
def test_a_worker_that_ends_before_it_has_the_run_is_left_out(workers: LocalWorkers, warnings: list[str]) -> None:
    config = small_config()
    with led(config, workers) as (state, _):
        worker = sorted(workers.processes)[0]
        # The scheduler still lists it when the phase begins.
        os.kill(worker, signal.SIGSTOP)
        timer = threading.Timer(2.0, os.kill, (worker, signal.SIGKILL))
        timer.start()
        evaluate(state)
        [warning] = warnings
        assert warning.endswith("was lost while it started the run. The phase goes on with the others.")
        assert content_of(advance(state, 1)) == content_of(alone(config, 1))


@pytest.mark.thorough
def test_a_worker_that_hangs_counts_as_lost() -> None:
    config = small_config()
    with LocalWorkers(2, lost_seconds=15) as workers, led(config, workers) as (state, _):
        advance(state, 1)
        worker = sorted(workers.processes)[0]
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(WorkerLostError):
            evaluate(state)
        assert content_of(advance(state, 1)) == content_of(alone(config, 2))
        # It takes no memory any more, and another one has its place.
        assert worker not in workers.processes
        assert len(workers.processes) == 2
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.thorough
def test_a_worker_that_hangs_in_its_first_phase_is_replaced() -> None:
    """It joined after the last look at which processes are missing."""
    with LocalWorkers(1) as workers, connected(workers.address) as client:
        client.wait_for_workers(1)
        (worker,), (address,) = workers.processes, client.nthreads()
        os.kill(worker, signal.SIGSTOP)
        client.sync(client.scheduler.retire_workers, workers=[address], close_workers=False, remove=True)
        workers.start_missing()
        (other,) = workers.processes
        assert other != worker
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.thorough
def test_a_worker_that_joins_is_used_from_the_next_phase_on() -> None:
    config = small_config()
    with LocalWorkers(1) as workers, led(config, workers) as (state, executor):
        evaluate(state)
        assert len(executor.workers) == 1
        workers.count = 2
        train(state)
        wait_for(executor, 2)
        evolve(state)
        assert content_of(advance(state, 1)) == content_of(alone(config, 2))
        assert len(executor.workers) == 2


def test_data_are_sent_to_workers_that_do_not_find_them_and_not_again(workers: LocalWorkers) -> None:
    config = small_config()
    # The configuration names other prices than those of `led`.
    with led(config, workers) as (state, executor):
        evaluate(state)
        before = executor.sent_bytes
        assert before > 2 * array_bytes(content_for(config))
        train(state)
        # The agents and the batches.
        assert executor.sent_bytes - before < state.population.nbytes + 50_000
        evolve(state)
        before = executor.sent_bytes
        evaluate(state)
        # The agents play without what the learner keeps.
        assert executor.sent_bytes - before < state.population.weights.nbytes + 1_000
    found = open_data(config).content
    state = start_training(config, found)
    with WorkerExecutor("led", config, found, found.fingerprint, workers.address) as state.executor:
        evaluate(state)
        assert state.executor.sent_bytes < array_bytes(found)


def test_a_worker_guards_its_memory_and_keeps_nothing_of_what_failed(workers: LocalWorkers) -> None:
    """Agents, replay and task would be there twice when it is tried again, as long as the failure is remembered."""
    with led(small_config(memory={"limit_gb": 0.05}), workers) as (state, _):
        with pytest.raises(MemoryGuardError) as raised:
            evaluate(state)
        wait_until_released(workers)
    assert raised.value.__traceback__ is not None
    assert (raised.value.phase, raised.value.generation) == ("evaluate", 1)
    assert "50 MB" in str(raised.value)
    assert raised.value.report.phases is not None


def test_a_worker_with_other_code_is_named(workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.workers.executor.CODE", code_digest(("eigen_core",), extra="another version"))
    with (
        led(small_config(), workers) as (state, _),
        pytest.raises(InputError, match=r"worker tls://\S+ runs another version of Eigen's code"),
    ):
        evaluate(state)


@pytest.mark.thorough
@pytest.mark.parametrize("hangs", [False, True])
def test_workers_end_with_the_process_that_started_them(hangs: bool) -> None:
    program = (
        "import sys, time\nfrom eigen_core.workers import LocalWorkers\n"
        "workers = LocalWorkers(1)\nprint(*workers.processes, flush=True)\ntime.sleep(600)"
    )
    leader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    worker = int(leader.stdout.readline())
    pidfd = os.pidfd_open(worker)
    if hangs:
        # It does not answer a request to end, as one that computes does not for half a minute.
        os.kill(worker, signal.SIGSTOP)
    leader.kill()
    leader.wait()
    try:
        assert select.select([pidfd], [], [], 20)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def failing_with(error: str) -> Callable[..., object]:
    """A function that a worker, which has no test's module, can run."""

    def fail(*_: object) -> object:
        class TwoArgumentsError(Exception):
            def __init__(self, one: str, two: str) -> None:
                super().__init__(f"{one} and {two}")

        if error == "local":
            raise TwoArgumentsError("one", "two")
        if error == "unsendable":
            raise ValueError("one", (number for number in range(2)))
        if error == "importable":
            from httpx import HTTPStatusError

            raise HTTPStatusError("one and two", request=None, response=None)  # type: ignore[arg-type]
        raise {"timeout": TimeoutError, "file": FileNotFoundError, "permission": PermissionError}[error]("of the game")

    return fail


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "error", "expected", "text"),
    [
        ("play", "timeout", "TimeoutError", "of the game"),
        ("play", "file", "FileNotFoundError", "of the game"),
        ("open", "permission", "PermissionError", "of the game"),
        ("play", "local", "TwoArgumentsError", "one and two"),
        ("play", "importable", "HTTPStatusError", "one and two"),
        ("play", "unsendable", "RuntimeError", r"ValueError: \('one', <generator"),
    ],
)
def test_what_a_worker_raises_is_raised_here_and_nothing_of_the_run_is_left_there(
    workers: LocalWorkers, method: str, error: str, expected: str, text: str
) -> None:
    with led(small_config(population={"size": 2}), workers) as (state, _):
        with replaced(workers, method, failing_with(error)), pytest.raises(Exception, match=text) as raised:
            evaluate(state)
        # Else the workers would have the run twice when it is tried again, as long as the failure is remembered.
        wait_until_released(workers)
    assert raised.value.__traceback__ is not None
    assert type(raised.value).__name__ == expected


@pytest.mark.thorough
def test_workers_stop_what_nothing_waits_for_and_take_part_in_the_next_attempt(
    workers: LocalWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen_core.workers.executor._PATIENCE_SECONDS", 60.0)
    begun, config = str(tmp_path / "begun"), small_config()

    def play(_: object, __: object, episodes: Any, ___: object) -> None:
        import pathlib
        import time

        from eigen_core.common.progress import report_progress

        end = time.monotonic() + 300.0
        while time.monotonic() < end:
            if episodes.first_agent == 0:
                pathlib.Path(begun).touch()
                report_progress("evaluate", 0, 1)
            elif pathlib.Path(begun).exists():
                raise ValueError("the second fails")
            time.sleep(0.02)

    with led(config, workers) as (state, executor):
        with replaced(workers, "play", play), pytest.raises(ValueError, match="the second fails"):
            evaluate(state)
        evaluate(state)
        assert len(executor.workers) == 2
        assert content_of(advance(state, 1)) == content_of(alone(config, 1))


@pytest.mark.thorough
def test_a_worker_that_has_freed_the_run_counts_as_lost(workers: LocalWorkers) -> None:
    """The scheduler lets it do so when it loses the process that leads."""

    def release(dask_scheduler: Any) -> None:
        for key in [key for key in dask_scheduler.tasks if key.startswith("eigen:led:")]:
            for client in list(dask_scheduler.tasks[key].who_wants):
                dask_scheduler.client_releases_keys(keys=[key], client=client.client_key, stimulus_id="test")

    config = small_config()
    with led(config, workers) as (state, _):
        advance(state, 1)
        with connected(workers.address) as client:
            client.run_on_scheduler(release)
        wait_until_released(workers)
        with pytest.raises(WorkerLostError, match="was lost while it computed agents"):
            evaluate(state)
        assert content_of(advance(state, 1)) == content_of(alone(config, 2))


@pytest.mark.thorough
def test_a_worker_whose_thread_is_taken_is_used_once_it_is_free(
    workers: LocalWorkers, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = "eigen_core.workers.executor._PATIENCE_SECONDS"
    monkeypatch.setattr(patience, 1.0)
    config, free = small_config(), tmp_path / "free"
    with led(config, workers) as (state, executor):
        with occupied(workers, free, 1) as [taken]:
            advance(state, 2)
            assert taken not in executor.workers
            assert len(executor.workers) == 1
            assert any(taken in warning and "used from the next phase" in warning for warning in warnings)
        # A phase waits for it now, however long it takes to begin on a busy machine.
        monkeypatch.setattr(patience, 60.0)
        evaluate(state)
        assert taken in executor.workers
        assert content_of(advance(state, 1)) == content_of(alone(config, 3))


@pytest.mark.thorough
def test_a_phase_waits_for_the_first_worker_that_is_free(
    workers: LocalWorkers, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen_core.workers.executor._PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("eigen_core.workers.executor._FIRST_WORKER_SECONDS", 1.0)
    free = tmp_path / "free"
    with led(small_config(), workers) as (state, _), occupied(workers, free, 2):
        timer = threading.Timer(3.0, free.touch)
        timer.start()
        began = time.monotonic()
        evaluate(state)
        assert time.monotonic() - began > 2.5
    assert warnings
    assert all(warning.endswith("The phase waits until one is free.") for warning in warnings)


@pytest.mark.thorough
def test_only_arrays_of_the_host_are_sent(workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without the device of the process that leads could not read its tensors."""
    sent: list[Any] = []
    ask = WorkerClient.ask

    async def kept(self: WorkerClient, worker: Any, work: str, method: str, *arguments: Any) -> Any:
        if method == "play":
            sent.extend(asdict(argument) if isinstance(argument, Episodes) else argument for argument in arguments)
        return await ask(self, worker, work, method, *arguments)

    monkeypatch.setattr(WorkerClient, "ask", kept)
    with led(PENDULUM, workers) as (state, _):
        advance(state, 1)
    assert state.task.state
    assert sent
    assert not [leaf for leaf in tree_leaves(sent) if isinstance(leaf, Tensor)]
