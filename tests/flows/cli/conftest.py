"""What the tests of the commands share."""

from collections.abc import Iterator

import pytest

from flows.prefect_environment import PrefectServer


@pytest.fixture
def no_server_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start no embedded server; each one that a command would have started must have been stopped at the end."""
    running: set[PrefectServer] = set()
    monkeypatch.setattr(PrefectServer, "start", lambda server: running.add(server))
    monkeypatch.setattr(PrefectServer, "stop", lambda server: running.discard(server))
    yield
    assert not running
