"""Artifacts of a training at a server, renewed in place in a thread that waits for no unavailable server."""

import logging
import re
import threading
import time
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import httpx
import pytest
from operation_cases import listening
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_CSRF_SUPPORT_ENABLED, temporary_settings

from flows.server import artifacts as artifacts_module
from flows.server.artifacts import KINDS, SERVER_ERRORS, Artifacts, Reporter, artifact_key, retry_once


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the server answers: the last value; nothing of Prefect's is asked."""
    answers = [True]

    def require() -> None:
        if not answers[-1]:
            raise httpx.ConnectError("it does not answer")

    monkeypatch.setattr(artifacts_module, "require_server", require)
    monkeypatch.setattr(artifacts_module, "SyncClientContext", nullcontext)
    return answers


@pytest.mark.usefixtures("present")
def test_of_reports_of_a_kind_the_newest_is_sent_and_none_waits_for_another() -> None:
    sent: list[str] = []
    entered, opened = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert opened.wait(60.0)

    with Reporter("mine") as reporter:
        reporter.report("first", wait)
        assert entered.wait(60.0)
        for number in range(3):
            for kind in ("page", "name"):
                reporter.report(kind, partial(sent.append, f"{kind} {number}"))
        assert sent == []
        opened.set()
    assert sent == ["page 2", "name 2"]


def test_a_server_that_does_not_answer_is_logged_once_and_asked_again(
    present: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(artifacts_module, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(artifacts_module, "get_run_logger", lambda: logging.getLogger("reporter"))
    sent: list[int] = []
    reporter = Reporter("mine")
    for number, answers in enumerate((False, False, True, False, True)):
        present.append(answers)
        reporter._send_batch([partial(sent.append, number)] * 2)
    assert sent == [2, 2, 4, 4]
    assert caplog.text.count("its pages are outdated") == 2

    # One that has become silent would let each report wait.
    reporter._send_batch([Mock(side_effect=httpx.ReadTimeout("no answer")), partial(sent.append, 5)])
    assert sent == [2, 2, 4, 4]


@pytest.mark.usefixtures("present")
def test_what_is_no_refusal_ends_the_training() -> None:
    with pytest.raises(ZeroDivisionError), Reporter("mine") as reporter:
        reporter.report("page", Mock(side_effect=ZeroDivisionError))


@pytest.mark.usefixtures("present")
def test_a_reporter_that_ends_with_an_error_sends_the_last_reports_and_keeps_the_error() -> None:
    sent: list[int] = []

    def stopped(reporter: Reporter) -> None:
        with reporter:
            reporter.report("page", lambda: sent.append(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped(Reporter("mine"))
    assert sent == [1]


def test_the_page_of_a_run_has_no_other_key_than_a_page_beside_it() -> None:
    names = ["mine", *(f"mine-{kind}" for kind in KINDS), "mine-data-data", "Mine", "-data", "a-b", "a.b", "a_b", "..."]
    keys = [artifact_key(name, kind) for name in names for kind in ("", *KINDS)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", key) for key in keys)


@pytest.mark.thorough
def test_a_page_waits_a_bounded_time_for_a_server_that_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "_CALL_SECONDS", 0.5)
    began = time.monotonic()
    with listening() as (address, connections):
        settings = {PREFECT_API_URL: f"http://{address}/api", PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False}
        with temporary_settings(settings), retry_once(), pytest.raises(SERVER_ERRORS):
            Artifacts().show("key", "text", "description")
        assert connections
    assert 0.5 <= time.monotonic() - began < 50.0
