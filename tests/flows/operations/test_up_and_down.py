"""`eigen up`, `launch`, `status`, `down` for real: server, worker and training as processes of this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flow_cases import eigen_command, run_eigen, small_settings
from operation_cases import operator_environment

from flows.housekeeping import verify_run
from flows.operations.home import Home

FOREVER = 100_000


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder; whatever was started in it has ended afterwards."""
    yield tmp_path
    home = Home(tmp_path / ".eigen")
    left = [record for part in ("worker", "server") if (record := home.read(part)) is not None]  # type: ignore[arg-type] # mypy widens the words of the tuple
    for record in left:
        record.process.kill()


@pytest.fixture
def eigen(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command there."""
    environment = operator_environment(folder / "prefect")

    def run(*arguments: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        ended = run_eigen(arguments, environment={**environment, **extra}, folder=folder, timeout=300.0)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    return run


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """What a condition says as soon as it says something."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.3)
    return found


def manifests(folder: Path, run: str) -> list[str]:
    """The generations that a run has."""
    return sorted(path.name for path in (folder / "runs" / run / "manifests").glob("*.json"))


def test_from_nothing_to_a_training_and_back(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"

    up = eigen("up", "--port", str(port))
    assert re.search(rf"pages +http://127\.0\.0\.1:{port}\n", up.stdout)
    assert str(folder / ".eigen" / "worker.log") in up.stdout

    launched = eigen("launch", "--run", "mine", "--generations", str(FOREVER), *small_settings())
    assert "The run fits" in launched.stdout
    page = re.search(r"http\S+/runs/flow-run/\S+", launched.stdout)
    assert page is not None
    wait_for(lambda: len(manifests(folder, "mine")) >= 2, "no generation was trained")

    again = eigen("up")
    assert again.stdout.count("runs already") == 2
    assert "deployments" not in again.stderr
    status = json.loads(eigen("status", "--json").stdout)
    assert status["up"]
    assert status["server"]["api"] == api
    assert status["server"]["version"] == "3.8.8"
    assert status["worker"]["folder"] == str(folder)
    assert status["flow_run"]["active"]
    assert status["flow_run"]["page"] == page[0]
    assert status["schedule"]["active"]
    assert (status["run"]["run"], status["run"]["state"]) == ("mine", "running")
    assert status["run"]["generation"] >= 2

    down = eigen("down")
    assert re.search(
        r"run mine was told to stop; its last checkpoint is generation \d+ of 100000, in .*runs/mine", down.stdout
    )
    assert "killed" not in down.stdout
    home = Home(folder / ".eigen")
    assert home.read("worker") is home.read("server") is None
    assert "Finished in state Crashed" in home.log("worker").read_text()
    assert verify_run(str(folder / "runs"), "mine", deep=True).damages == ()


@pytest.mark.slow
def test_what_was_down_goes_on_by_itself_and_a_lost_training_too(
    folder: Path, eigen: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    port = str(free_port())
    eigen("up", "--port", port)
    eigen("launch", "--run", "mine", "--generations", str(FOREVER), *small_settings())
    wait_for(lambda: len(manifests(folder, "mine")) >= 2, "no generation was trained")
    eigen("down")
    assert eigen("down").stdout.startswith("Nothing runs")
    status = json.loads(eigen("status", "--json", code=1).stdout)
    assert (status["server"], status["worker"]["running"], status["up"]) == (None, False, False)
    assert (status["run"]["run"], status["run"]["state"]) == ("mine", "unfinished")
    before = manifests(folder, "mine")[-1]
    eigen("up", "--port", port)
    wait_for(lambda: manifests(folder, "mine")[-1] > before, "the training did not go on")

    worker = Home(folder / ".eigen").running("worker")
    assert worker is not None
    (engine,) = [child for child in worker.process.children() if child.runs("prefect.engine")]
    engine.send(signal.SIGKILL)
    assert engine.wait(10.0)
    killed_at = manifests(folder, "mine")[-1]
    wait_for(lambda: manifests(folder, "mine")[-1] > killed_at, "the training was not resumed after its end")
    eigen("down")


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
    home = Home(folder / ".eigen")
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
        assert Home(folder / ".eigen").running("server") is None
        assert Home(folder / ".eigen").running("worker") is not None
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

    prefect("prefect", "work-pool", "create", "gpu", "--type", "process", "--overwrite")
    prefect("prefect", "--no-prompt", "deploy", "--prefect-file", "deployments/prefect.yaml", "--all")
    prefect("flows.operations.automations")
    listed = prefect("prefect", "deployment", "ls")
    assert "train/gpu" in listed
    assert "cleanup/weekly" in listed
    assert "crashed without a word" in prefect("prefect", "automation", "ls")
    eigen("down")
