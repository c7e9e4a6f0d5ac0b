"""Errors of workers, and workers that do not answer."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from science_cases import small_config
from torch import Tensor
from torch.utils._pytree import tree_leaves
from training_cases import advance, content_of
from worker_cases import PENDULUM, alone, led, occupied, replaced, wait_until_released

from eigen_core.common.errors import WorkerLostError
from eigen_core.generation import evaluate
from eigen_core.generation.executor import Episodes
from eigen_core.workers import LocalWorkers
from eigen_core.workers.connection import WorkerClient, connected

pytestmark = [pytest.mark.cpu, pytest.mark.thorough]


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
