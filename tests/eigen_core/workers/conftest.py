"""Fixtures of the tests of workers."""

from collections.abc import Iterator

import pytest

from eigen_core.workers import LocalWorkers


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalWorkers]:
    with LocalWorkers(2) as started:
        yield started


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of workers that begin, from the logger itself: the scheduler raises the level of all handlers."""
    said: list[str] = []
    monkeypatch.setattr("eigen_core.workers.executor.logger.warning", lambda text, *parts: said.append(text % parts))
    return said
