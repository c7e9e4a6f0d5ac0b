"""Figures that tests measure, printed at the end of pytest's output, also from the processes of pytest-xdist."""

from collections.abc import Callable
from typing import Any

import pytest

_MEASURED: list[str] = []


@pytest.fixture(scope="session")
def measured() -> Callable[[str], None]:
    """Keep a sentence for the end of pytest's output."""
    return _MEASURED.append


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the sentences of this process to the one that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["measured"] = _MEASURED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the sentences of a process of pytest-xdist; one that crashed has none."""
    _MEASURED.extend(getattr(node, "workeroutput", {}).get("measured", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MEASURED:
        terminalreporter.section("measured")
        for sentence in _MEASURED:
            terminalreporter.write_line(sentence)
