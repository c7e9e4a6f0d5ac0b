"""Server and worker of `eigen up` in a folder of their own, and trainings that are launched on them."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from flows.server.environment import Component
from flows.server.state_directory import StateDirectory

_OTHERS = ("PREFECT_", "EIGEN_", "CLOUD_")
_PARTS: tuple[Component, ...] = ("worker", "server")
_FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_POLL_SECONDS = 2.0
_TRAINING_SECONDS = 1_200.0
_TAIL = 2_000


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def own_environment(folder: Path) -> dict[str, str]:
    """Return the environment of commands that keep what Prefect and `eigen` know in a folder of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return {**kept, "EIGEN_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "prefect")}


class Operated:
    """A user's folder in which server and worker run inside the block, whatever happens there.

    Args:
        folder: everything lies below it.

    Attributes:
        store: where the runs are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.store = folder / "runs"
        self._folder = folder
        self._home = StateDirectory(folder / "home")
        self._environment = own_environment(folder)
        if "EIGEN_CACHE" in os.environ:
            self._environment["EIGEN_CACHE"] = os.environ["EIGEN_CACHE"]

    def __enter__(self) -> Self:
        try:
            self._eigen("up", "--port", str(free_port()))
        except BaseException:
            # What was begun is stopped whatever ends this, Ctrl-C too: `__exit__` is not called for it.
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def launch(self, preset: str, run: str, assignments: Sequence[str]) -> str:
        options = [part for assignment in assignments for part in ("--set", assignment)]
        said = self._eigen("launch", "--preset", preset, "--run", run, "--store", str(self.store), *options)
        return said.partition("/flow-run/")[2].split()[0]

    def train(self, preset: str, run: str, assignments: Sequence[str]) -> None:
        """Launch a training and return when it has ended.

        Raises:
            RuntimeError: it did not end as it should.
        """
        number = self.launch(preset, run, assignments)
        state = self._wait_for_end(number)
        if state != "COMPLETED":
            raise RuntimeError(f"training {run} ended as {state}\n{self._log('worker')}")

    def _wait_for_end(self, flow_run: str) -> str:
        server = self._home.read("server")
        assert server is not None
        end = time.monotonic() + _TRAINING_SECONDS
        while time.monotonic() < end:
            with urllib.request.urlopen(f"{server.api}/flow_runs/{flow_run}") as answer:
                state: str = json.load(answer)["state"]["type"]
            if state in _FINAL:
                return state
            time.sleep(_POLL_SECONDS)
        return "unfinished"

    def _stop(self) -> None:
        records = [record for part in _PARTS if (record := self._home.read(part)) is not None]
        try:
            self._eigen("down")
        finally:
            for record in records:
                record.process.kill()

    def _eigen(self, *arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise RuntimeError(f"eigen {arguments[0]}: {ended.stderr}\n{self._log('server')}")
        return ended.stdout

    def _log(self, part: Component) -> str:
        path = self._home.log(part)
        return path.read_text(errors="replace")[-_TAIL:] if path.exists() else ""
