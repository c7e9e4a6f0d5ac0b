"""Reports are sent beside the training: the newest of each kind, the last ones in any case."""

import logging
import threading
from contextlib import nullcontext

import httpx
import pytest

from flows.server import reporter as reporter_module
from flows.server.reporter import Reporter


@pytest.fixture(autouse=True)
def present(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the server answers: the last value; nothing of Prefect's is asked."""
    answers = [True]

    def require() -> None:
        if not answers[-1]:
            raise httpx.ConnectError("it does not answer")

    monkeypatch.setattr(reporter_module, "require_server", require)
    monkeypatch.setattr(reporter_module, "SyncClientContext", nullcontext)
    return answers


class Gate:
    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(60.0)


def test_of_reports_of_a_kind_the_newest_is_sent_and_none_waits_for_another() -> None:
    sent: list[str] = []
    gate = Gate()
    with Reporter("mine") as reporter:
        reporter.report("first", gate)
        assert gate.entered.wait(60.0)
        for number in range(3):
            reporter.report("page", lambda number=number: sent.append(f"page {number}"))  # type: ignore[misc]
            reporter.report("name", lambda number=number: sent.append(f"name {number}"))  # type: ignore[misc]
        assert sent == []
        gate.opened.set()
    assert sent == ["page 2", "name 2"]


def test_a_server_that_does_not_answer_is_logged_once_and_asked_again(
    present: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter_module, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(reporter_module, "get_run_logger", lambda: logging.getLogger("reporter"))
    sent: list[int] = []
    reporter = Reporter("mine")
    for number, answers in enumerate((False, False, True, False, True)):
        present.append(answers)
        reporter._send([lambda number=number: sent.append(number)] * 2)  # type: ignore[misc]
    assert sent == [2, 2, 4, 4]
    assert caplog.text.count("could not be renewed") == 2


def test_what_a_server_that_becomes_silent_is_sent_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter_module, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(reporter_module, "get_run_logger", lambda: logging.getLogger("reporter"))
    sent: list[int] = []

    def unanswered() -> None:
        raise httpx.ReadTimeout("no answer")

    reporter = Reporter("mine")
    reporter._send([unanswered, lambda: sent.append(1)])
    assert sent == []
    reporter._send([lambda: sent.append(2)])
    assert sent == [2]
    assert caplog.text.count("could not be renewed") == 1


def test_what_is_no_refusal_ends_the_training() -> None:
    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Reporter("mine") as reporter:
        reporter.report("page", wrong)


def test_a_reporter_that_ends_with_an_error_sends_the_last_reports_and_keeps_the_error() -> None:
    sent: list[int] = []

    def stopped(reporter: Reporter) -> None:
        with reporter:
            reporter.report("page", lambda: sent.append(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped(Reporter("mine"))
    assert sent == [1]
