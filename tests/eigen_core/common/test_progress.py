"""Checks have their say between the steps of loops, where they were asked for and nowhere else."""

import threading
from contextvars import copy_context
from unittest.mock import Mock, call

import pytest

from eigen_core.common.progress import checked_by, progress_to, report_progress


def test_checks_run_after_the_listener_outer_ones_first() -> None:
    calls = Mock()
    with progress_to(calls.listener), checked_by(calls.outer), checked_by(calls.inner):
        report_progress("train", 1, 2)
    assert calls.mock_calls == [call.listener.update("train", 1, 2), call.outer(), call.inner()]


def test_what_a_check_raises_ends_the_loop_and_the_block_ends_the_check() -> None:
    def refuse() -> None:
        raise RuntimeError("enough")

    done = []

    def loop() -> None:
        for step in range(5):
            done.append(step)
            report_progress("train", step + 1, 5)

    with pytest.raises(RuntimeError, match="enough"), checked_by(refuse):
        loop()
    assert done == [0]
    report_progress("train", 1, 1)


def test_a_check_reaches_threads_that_were_given_the_context_and_no_others() -> None:
    calls: list[str] = []

    def report() -> None:
        report_progress("save", 1, 1)

    with checked_by(lambda: calls.append(threading.current_thread().name)):
        context = copy_context()
        told = threading.Thread(target=context.run, args=(report,), name="told")
        stranger = threading.Thread(target=report, name="stranger")
        for thread in (told, stranger):
            thread.start()
            thread.join()
    assert calls == ["told"]
