"""A request to stop that comes where Python swallows exceptions ends what runs all the same."""

import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from flow_cases import small_flow_config
from prefect import Task, task_engine
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import TerminationSignal

from eigen_core import generation as phases
from eigen_core.common.process import stop_requests_raised
from eigen_core.runs.handle import status_of
from flows.server.flows import train_flow

pytestmark = pytest.mark.usefixtures("sigterm_ignored")


class Owner:
    def __init__(self, finalize: Callable[[], None] = lambda: None) -> None:
        self._finalize = finalize
        self.itself = self

    def __del__(self) -> None:
        self._finalize()


def in_weakref_callback(action: Callable[[], None]) -> None:
    """Call `action` where what it raises is swallowed."""
    owner = Owner()
    reference = weakref.ref(owner, lambda _: action())
    owner.itself = None  # type: ignore[assignment]
    del owner
    assert reference() is None


def in_finalizer(action: Callable[[], None]) -> None:
    owner = Owner(action)
    owner.itself = None  # type: ignore[assignment]


SWALLOWING = [in_weakref_callback, in_finalizer]
Swallowing = Callable[[Callable[[], None]], None]


def sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def _raising(sigterm_ignored: None) -> Iterator[None]:  # noqa: ARG001 - which the handler replaces
    def raising(number: int, frame: object) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, raising)
    before = (sys.unraisablehook, signal.getsignal(signal.SIGALRM))
    yield
    assert (sys.unraisablehook, signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def compute() -> None:
    while True:
        sum(range(100))


@pytest.mark.usefixtures("_raising")
@pytest.mark.parametrize("swallowing", SWALLOWING)
@pytest.mark.parametrize("doing", [compute, lambda: time.sleep(60.0)], ids=["compute", "sleep"])
def test_what_was_swallowed_is_raised_in_ordinary_code(swallowing: Swallowing, doing: Callable[[], None]) -> None:
    def told_to_stop() -> None:
        with stop_requests_raised():
            swallowing(sigterm)
            doing()

    with pytest.raises(KeyboardInterrupt):
        told_to_stop()


@pytest.mark.usefixtures("_raising")
def test_what_is_swallowed_again_is_raised_again() -> None:
    def told_to_stop() -> None:
        with stop_requests_raised():
            in_finalizer(sigterm)
            in_weakref_callback(lambda: time.sleep(60.0))
            compute()

    with pytest.raises(KeyboardInterrupt):
        told_to_stop()


@pytest.mark.usefixtures("_raising")
def test_what_was_swallowed_last_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), stop_requests_raised():
        in_finalizer(sigterm)


def test_errors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    with stop_requests_raised():
        in_finalizer(Mock(side_effect=ValueError("in a finalizer")))
    assert reported == [ValueError]


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.thorough
def test_sigterm_in_a_weakref_callback_ends_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = phases.train

    def told_to_stop(state: phases.TrainingState) -> object:
        if state.generation == 1:
            in_weakref_callback(sigterm)
        return computed(state)

    monkeypatch.setattr(phases, "train", told_to_stop)
    with pytest.raises(TerminationSignal):
        train_flow(small_flow_config(tmp_path, generations=50), "run", return_state=True)
    status = status_of(str(tmp_path), "run")
    assert status.state == "unfinished"
    assert 1 <= status.generation < 50


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize("started", ["evaluate", "checkpoint", "plot"])
@pytest.mark.thorough
def test_sigterm_while_prefect_creates_a_task_run_ends_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    create = task_engine._create_task_run_locally
    created: list[str] = []

    def stopped_in_the_second_generation(task: Task[..., Any], **facts: Any) -> TaskRun:
        created.append(task.name)
        if task.name == started and created.count(started) == 2:
            sigterm()
        return create(task=task, **facts)

    monkeypatch.setattr(task_engine, "_create_task_run_locally", stopped_in_the_second_generation)
    config = small_flow_config(tmp_path, generations=50, reporting={"plot_every": 1})
    with pytest.raises(TerminationSignal):
        train_flow(config, "run", return_state=True)
    status = status_of(str(tmp_path), "run")
    assert (status.state, status.generation) == ("unfinished", 1 if started == "evaluate" else 2)
