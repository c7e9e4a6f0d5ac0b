"""A run that takes a second, on the bundled prices, and the command line as a process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tested_device import DEVICE

from eigen_core.config import Config, merge

if TYPE_CHECKING:
    from prefect import State

    from eigen_core.common.records import GenerationRecord

SMALL: dict[str, Any] = {
    "preset": "ddpg",
    "device": DEVICE,
    "market": {"window": 20, "validation": 60, "holdout": 0},
    "trading": {"trading_bars": 30, "settlement_bars": 10, "holding_bars": 10},
    "network": {"scales": [1, 5], "channels": 8, "embedding": 4, "queries": 2, "head_width": 8},
    "population": {"size": 4, "group_size": 2},
    "replay": {"capacity": 2_000, "minimum": 200},
    "learner": {"gradient_steps": 4, "batch_size": 16},
    "evaluation": {"slices": 2, "lowest": 1, "fitness_slices": 2, "validation_slices": 1, "validation_lowest": 1},
    "reporting": {"plot_every": 0},
}


def small_flow_config(store: Path, **sections: Any) -> Config:
    values = merge(SMALL, {"generations": 3, "checkpoint": {"store": str(store)}})
    return Config(**merge(values, sections))


def small_settings(**sections: Any) -> list[str]:
    options = []
    for section, values in merge(SMALL, sections).items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            options += ["--set", f"{section}.{key}={value}".replace(".=", "=")]
    return options


def train(config: Config, name: str = "run") -> "State[Any]":
    """Train a run as a flow of this process, and return the flow's end state."""
    from flows.server.flows import train_flow

    return train_flow(config, name, return_state=True)


def records(config: Config, name: str = "run") -> "tuple[GenerationRecord, ...]":
    from eigen_core.runs.handle import status_of

    return status_of(config.checkpoint.store, name).history


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eigen_environment(home: Path, **extra: str) -> dict[str, str]:
    """The environment of a user: Prefect as it comes, in a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    # None of these services has anything to do here, and each makes the server's start slower.
    idle = ("TRIGGERS", "SCHEDULER", "LATE_RUNS", "FOREMAN")
    services = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in idle}
    return {**kept, **services, "PREFECT_HOME": str(home), "COLUMNS": "120", **extra}


def eigen_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "flows.cli", *arguments]


def run_eigen(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout: float = 120.0,
    code: int | None = None,
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        eigen_command(arguments), env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert code in (None, ended.returncode), ended.stdout + ended.stderr
    return ended


class NoDrawing:
    """Stands in for `Drawing` where a test is not about plots, and counts how often one was begun."""

    begun = 0

    def __init__(self) -> None:
        type(self).begun += 1

    def begin(self, *_: object) -> None:
        """Draw nothing."""

    def is_done(self) -> bool:
        return True

    def write(self, folder: Path) -> list[Path]:  # noqa: ARG002 - the interface
        return []

    def stop(self) -> None:
        """Do nothing."""


@contextmanager
def started(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the command line in a process group of its own, as a terminal does, and kill it at the end."""
    process = subprocess.Popen(
        eigen_command(arguments),
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


def wait_for_generation(process: subprocess.Popen[str], store: Path, name: str, generation: int) -> None:
    manifests = store / name / "manifests"
    end = time.monotonic() + 120.0
    while not list(manifests.glob(f"{generation:06d}-*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
