"""`eigen up` in its less usual forms, for real; tests/e2e has the usual one, with trainings."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flow_cases import eigen_command, run_eigen
from operation_cases import operator_environment

from flows.server.environment import COMPONENTS, free_port
from flows.server.servers import is_up
from flows.server.state_directory import StateDirectory


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    home = StateDirectory(tmp_path / ".eigen")
    left = [record for part in ("supervisor", "worker", "server") if (record := home.read(part)) is not None]
    for record in left:
        record.process.kill()


@pytest.fixture
def eigen(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = operator_environment(folder / "prefect")

    def run(*arguments: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        ended = run_eigen(arguments, environment={**environment, **extra}, folder=folder, timeout=300.0)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.mark.slow
def test_in_the_foreground_it_ends_with_what_it_started(folder: Path) -> None:
    port = free_port()
    environment = operator_environment(folder / "prefect")
    process = subprocess.Popen(
        eigen_command(["up", "--port", str(port), "--foreground"]),
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    home = StateDirectory(folder / ".eigen")
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("PREFECT_API_URL" in line for line in lines)
        started = [home.running("server"), home.running("worker")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.communicate()
    assert all(record is not None and not record.process.is_alive() for record in started)


@pytest.mark.slow
def test_what_is_killed_is_restarted_where_it_was_until_it_is_stopped(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    port = free_port()
    eigen("up", "--port", str(port))
    home = StateDirectory(folder / ".eigen")
    supervisor = home.running("supervisor")
    before = [home.running(part) for part in COMPONENTS]
    for record in before:
        assert record is not None
        record.process.kill()
    eigen("up")
    for part, record in zip(COMPONENTS, before, strict=True):
        restarted = home.running(part)
        assert restarted is not None
        assert restarted != record
        assert restarted.api == f"http://127.0.0.1:{port}/api"
        restarted.process.kill()
    end = time.monotonic() + 300.0
    while any(home.running(part) is None for part in COMPONENTS) or not is_up(home):
        assert time.monotonic() < end, home.log("supervisor").read_text()
        time.sleep(0.5)
    eigen("status")
    assert supervisor is not None
    eigen("down")
    assert home.running("supervisor") is None
    assert not supervisor.process.is_alive()
    assert [home.running(part) for part in COMPONENTS] == [None, None]
    # It comes back where it was, and says when nothing supervises it.
    eigen("up", "--only", "server")
    server, again = home.running("server"), home.running("supervisor")
    assert server is not None
    assert again is not None
    assert server.api == f"http://127.0.0.1:{port}/api"
    again.process.kill()
    assert "supervisor     has ended" in eigen("status", code=1).stdout
    eigen("up", "--only", "server")
    assert home.running("supervisor") is not None
    eigen("down")


@pytest.mark.slow
def test_for_a_server_elsewhere_only_the_worker_starts(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    elsewhere = {"EIGEN_HOME": str(tmp_path_factory.mktemp("elsewhere"))}
    eigen("up", "--port", str(port), "--only", "server", **elsewhere)
    try:
        refused = eigen("up", code=2, PREFECT_API_URL="http://elsewhere.invalid/api")
        assert "does not answer" in refused.stderr
        up = eigen("up", PREFECT_API_URL=api)
        assert "a server elsewhere" in up.stdout
        assert StateDirectory(folder / ".eigen").running("server") is None
        assert StateDirectory(folder / ".eigen").running("worker") is not None
        assert "train/gpu" in eigen("deploy", PREFECT_API_URL=api).stdout
        eigen("down")
        assert os.path.exists(elsewhere["EIGEN_HOME"])
        eigen("status", code=1, PREFECT_API_URL=api)
    finally:
        eigen("down", **elsewhere)


@pytest.mark.slow
def test_prefects_own_command_deploys_too(folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    eigen("up", "--port", str(port), "--only", "server")
    environment = {**operator_environment(folder / "prefect"), "PREFECT_API_URL": api}
    root = Path(__file__).parents[3]

    def prefect(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", *arguments], env=environment, cwd=root, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    prefect("prefect", "work-pool", "create", "eigen-gpu", "--type", "process", "--overwrite")
    prefect("prefect", "--no-prompt", "deploy", "--prefect-file", "deployments/prefect.yaml", "--all")
    prefect("flows.server.deploying")
    listed = prefect("prefect", "deployment", "ls")
    assert "train/gpu" in listed
    assert "cleanup/weekly" in listed
    assert "crashed without a word" in prefect("prefect", "automation", "ls")
    eigen("down")
