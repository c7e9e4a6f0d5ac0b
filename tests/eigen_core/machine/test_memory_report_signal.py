"""SIGUSR1 calls a function, beside whatever the process does."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from eigen_core.machine import install_report_signal

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert signal.getsignal(signal.SIGUSR1) is before


def test_each_signal_calls_the_function_in_a_thread_of_its_own() -> None:
    called: list[str] = []
    arrived = threading.Semaphore(0)

    def callback() -> None:
        called.append(threading.current_thread().name)
        arrived.release()

    undo = install_report_signal(callback)
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert arrived.acquire(timeout=PATIENCE)
    undo()
    assert called == ["memory-report"] * 3


def test_a_signal_that_comes_during_a_call_is_answered_after_it() -> None:
    under_way, running, release, arrived = [0], [], threading.Event(), threading.Semaphore(0)

    def callback() -> None:
        under_way[0] += 1
        running.append(under_way[0])
        arrived.release()
        assert release.wait(PATIENCE)
        under_way[0] -= 1

    undo = install_report_signal(callback)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert arrived.acquire(timeout=PATIENCE)
    os.kill(os.getpid(), signal.SIGUSR1)
    release.set()
    assert arrived.acquire(timeout=PATIENCE)
    undo()
    assert running == [1, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_fails_does_not_end_the_listening() -> None:
    calls = threading.Semaphore(0)

    def callback() -> None:
        calls.release()
        raise RuntimeError("no report today")

    undo = install_report_signal(callback)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert calls.acquire(timeout=PATIENCE)
    undo()


def test_outside_of_the_main_thread_nothing_is_installed() -> None:
    installed = []

    def install() -> None:
        undo = install_report_signal(lambda: None)
        installed.append(signal.getsignal(signal.SIGUSR1))
        undo()

    before = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert installed == [before]
