"""Fixtures of trainings that are flows of the test process, and of commands."""

import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from flow_cases import NoDrawing, eigen_environment, records, small_flow_config, train

from eigen_core.common.records import GenerationRecord


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of this process start none that draws plots: each would import matplotlib."""
    monkeypatch.setattr("eigen_core.run.Drawing", NoDrawing)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait for nothing."""
    from tasks import TASKS

    for name in ("evaluate", "train", "evolve", "checkpoint"):
        monkeypatch.setattr(TASKS[name], "retry_delay_seconds", [0])


@pytest.fixture
def sigterm_ignored() -> Iterator[None]:
    """The test process survives SIGTERM: Prefect passes the signal on to the handler before its own."""
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, former)


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, prefect_api: None) -> tuple[GenerationRecord, ...]:  # noqa: ARG001
    """The records of three generations that nothing disturbs."""
    config = small_flow_config(tmp_path_factory.mktemp("undisturbed"))
    with patch("eigen_core.run.Drawing", NoDrawing):
        assert train(config).is_completed()
    return records(config)


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty working folder of a user whose environment names no store."""
    for name in ("EIGEN_HOME", "EIGEN_STORE", "CLOUD_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def environment(session_folder: Path) -> dict[str, str]:
    """The environment of a user without a server."""
    return eigen_environment(session_folder / "cli")


@pytest.fixture(scope="session")
def with_server(session_folder: Path, prefect_api_url: str) -> dict[str, str]:
    """The environment of a user with a server."""
    return eigen_environment(session_folder / "cli-with-server", PREFECT_API_URL=prefect_api_url)
