"""Eigen as it runs for days: server, worker and flow runs as real processes, in a folder of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil
from flow_cases import free_port, run_eigen
from kept_database import begin_with_copy, kept_file

from eigen_core.config.loading import parse_assignments
from eigen_core.runs.handle import RunStatus, status_of
from flows.server.state_directory import StateDirectory

T = TypeVar("T")

_OTHERS = ("PREFECT_", "EIGEN_", "CLOUD_")
_ENGINE = "prefect.engine"
_SIGTERM = 15
_FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_COMMAND_SECONDS = 300.0
# Of a machine on which much else computes.
_GENERATION_SECONDS = 30.0
GENERATIONS = 6
BUSY_SECONDS = 300.0
"""Longest wait for something that takes seconds on an idle machine, as from a kill to the next generation."""
_ACTIVE = ["PENDING", "RUNNING", "CANCELLING"]
_TAIL = 40
_TAIL_BYTES = 4096
_LOG_SECONDS = 0.3
_BUSY_SECONDS = 60.0
_TOLD = re.compile(r"Executing task '([a-z]+)'|Task run '[a-z]+-[0-9]+' - [^E]")
_BEGUN = re.compile(r"Executing task '[a-z]+' for task run '[a-z]+-([0-9]+)'")
PHASES = ("evaluate", "train", "evolve", "checkpoint")


def number_of(said: str) -> str:
    return said.split("/flow-run/")[1].split()[0]


def is_told_to_stop(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (_SIGTERM - 1) & 1 for mask in masks)


class Operated:
    """A user's folder, with all that `eigen up` starts in it; `api` is that of a server elsewhere."""

    def __init__(self, folder: Path, api: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.store = folder / "runs"
        self.home = folder / "home"
        self._port = free_port()
        self.api = api or f"http://127.0.0.1:{self._port}/api"
        self.pages = self.api.removesuffix("/api")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
        self.environment = {
            **kept,
            "PREFECT_HOME": str(folder / "prefect"),
            "EIGEN_HOME": str(self.home),
            "EIGEN_CACHE": os.environ["EIGEN_CACHE"],
            "COLUMNS": "120",
            # A worker asks for flow runs every ten seconds as it comes.
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            # The log says when a phase begins.
            "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "DEBUG",
            **({} if api is None else {"PREFECT_API_URL": api}),
            **(environment or {}),
        }
        if api is None:
            begin_with_copy(folder / "prefect" / "prefect.db", kept_file())
        # A client for each question would read all certificates anew, in the time that the trainings need. Connections
        # are not kept: servers are killed.
        self._client = httpx.Client(timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0))

    def eigen(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        ended = self.try_eigen(*arguments, seconds=seconds)
        assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr, self.tails())
        return ended

    def try_eigen(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        return run_eigen(arguments, environment=self.environment, folder=self.folder, timeout=seconds)

    def run_deployment(self, *arguments: str) -> str:
        """Ask for a flow run with Prefect's own command; return its number."""
        command = [sys.executable, "-m", "prefect", "deployment", "run", "train/gpu", *arguments]
        environment = {**self.environment, "PREFECT_API_URL": self.api}
        ended = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr, self.tails())
        return number_of(ended.stdout)

    def up(self) -> subprocess.CompletedProcess[str]:
        port = [] if "PREFECT_API_URL" in self.environment else ["--port", str(self._port)]
        return self.eigen("up", *port)

    def stay_up(self) -> None:
        home = StateDirectory(self.home)
        if home.running("server") is None or home.running("worker") is None:
            self.up()

    def launch(self, run: str, settings: Sequence[str]) -> str:
        return number_of(self.eigen("launch", "--run", run, *settings).stdout)

    def submit(self, run: str, settings: Sequence[str], generations: int) -> str:
        config = {"preset": "quickstart", "generations": generations, **parse_assignments(settings[1::2])}
        path = f"deployments/{self.deployment()['id']}/create_flow_run"
        return str(self.ask(path, name=run, parameters={"config": config, "run": run})["id"])

    def suspend(self, number: str) -> None:
        end = datetime.now(UTC) + timedelta(hours=1)
        details = {"pause_timeout": end.isoformat(), "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        self.ask(f"flow_runs/{number}/set_state", state=state, force=True)

    def down(self) -> str:
        return self.eigen("down").stdout

    def process(self, part: str) -> psutil.Process:
        return psutil.Process(json.loads((self.home / f"{part}.json").read_text())["process"]["pid"])

    def engines(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [child for child in self.process("worker").children() if _ENGINE in child.cmdline()]
        return []

    def engine(self) -> psutil.Process:
        (found,) = self.engines()
        return found

    def generation(self, run: str) -> int:
        manifests = (self.store / run / "manifests").glob("*.json")
        return max((int(path.name.split("-")[0]) for path in manifests), default=0)

    def status(self, run: str) -> RunStatus:
        return status_of(str(self.store), run)

    def flow_run(self, number: str) -> Any:
        return self._request("GET", f"flow_runs/{number}").json()

    def states(self, number: str) -> list[str]:
        found = self._request("GET", f"flow_run_states/?flow_run_id={number}").json()
        return [state["name"] for state in sorted(found, key=lambda state: str(state["timestamp"]))]

    def flow_runs(self, run: str) -> Any:
        tagged = {"tags": {"all_": [f"run:{run}"]}}
        return self.ask("flow_runs/filter", flow_runs=tagged, sort="START_TIME_ASC")

    def asked_for(self) -> list[dict[str, Any]]:
        """The flow runs that a user has asked for, oldest first; those of a schedule come to be at any instant."""
        found: list[dict[str, Any]] = self.ask("flow_runs/filter")
        return sorted((row for row in found if not row["auto_scheduled"]), key=lambda row: str(row["created"]))

    def ask(self, path: str, **document: Any) -> Any:
        return self._request("POST", path, document).json()

    def cancel(self, number: str) -> None:
        self.ask(f"flow_runs/{number}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})

    def is_idle(self) -> bool:
        found = self.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": _ACTIVE}}})
        asked = self.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": ["SCHEDULED"]}}})
        return not found and all(flow_run["auto_scheduled"] for flow_run in asked)

    def forget(self, number: str) -> None:
        self._request("DELETE", f"flow_runs/{number}")

    def _request(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> httpx.Response:
        """Ask the server, again if it is busy, as Prefect's client does."""
        end = time.monotonic() + _BUSY_SECONDS
        while True:
            with suppress(httpx.ReadTimeout) if time.monotonic() < end else nullcontext():
                answer = self._client.request(method, f"{self.api}/{path}", json=document)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > end:
                    answer.raise_for_status()
                    return answer
            time.sleep(1.0)

    @contextmanager
    def patched(self, path: str, name: str, value: bool) -> Iterator[None]:
        self._request("PATCH", path, {name: value})
        try:
            yield
        finally:
            self._request("PATCH", path, {name: not value})

    def wait(self, seconds: float, look: Callable[[], T | None], what: str, every: float = 0.3) -> T:
        end = time.monotonic() + seconds
        while not (found := look()):
            assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}\n{self.tails()}"
            time.sleep(every)
        return found

    def wait_for_generation(self, run: str, generation: int, seconds: float = 120.0) -> None:
        what = f"generation {generation} of {run}"
        self.wait(seconds, lambda: self.generation(run) >= generation, what, every=0.01)

    def wait_for_end(self, number: str, seconds: float = 180.0) -> str:
        self.wait(seconds, lambda: self.flow_run(number)["state"]["type"] in _FINAL, f"the end of flow run {number}")
        return str(self.flow_run(number)["state"]["name"])

    def finish(self, run: str, resumes: int = 1) -> list[str]:
        """Wait until a run that is resumed so often is finished, and return how its flow runs have ended."""
        last = self.wait(BUSY_SECONDS, lambda: self.flow_runs(run)[resumes:], f"{resumes} resumes")[-1]
        assert self.wait_for_end(last["id"]) == "Completed"
        return [row["state"]["name"] for row in self.flow_runs(run)]

    def deployment(self) -> Any:
        (found,) = self.ask("deployments/filter", deployments={"name": {"any_": ["gpu"]}})
        return found

    def is_resuming(self) -> bool:
        (schedule,) = self.deployment()["schedules"]
        return bool(schedule["active"])

    def ask_by_schedule(self) -> str:
        """Ask for a flow run as the schedule does; return its number."""
        path = f"deployments/{self.deployment()['id']}/create_flow_run"
        return str(self.ask(path, state={"type": "SCHEDULED"}, tags=["auto-scheduled"])["id"])

    @contextmanager
    def worker_paused(self) -> Iterator[None]:
        worker = self.process("worker")
        worker.suspend()
        try:
            yield
        finally:
            worker.resume()

    def hold_in(self, phase: str, seconds: float = 120.0) -> psutil.Process:
        """Stop the process of the flow run while it computes a phase, and return it: SIGCONT lets it go on."""
        end = time.monotonic() + seconds
        engine = self.engine()
        while time.monotonic() < end:
            if self._last_told() == phase:
                engine.suspend()
                # Its output is on its way through the worker.
                time.sleep(_LOG_SECONDS)
                if self._last_told() == phase:
                    return engine
                engine.resume()
            time.sleep(0.001)
        raise AssertionError(f"not seen in {phase} within {seconds:.0f} s\n{self.tails()}")

    def whole_after(self, phase: str) -> int:
        """The newest generation that must be in the store once a process that is held in a phase was told to stop."""
        computed = _BEGUN.findall(self._log_tail())[-1]
        return int(computed) - (phase != "checkpoint")

    def _last_told(self) -> str | None:
        told = _TOLD.findall(self._log_tail())
        return (told[-1] or None) if told else None

    def _log_tail(self) -> str:
        with open(self.home / "worker.log", "rb") as log:
            log.seek(max(os.fstat(log.fileno()).st_size - _TAIL_BYTES, 0))
            return log.read().decode(errors="replace")

    def tails(self) -> str:
        found = []
        for path in sorted(self.home.glob("*.log")):
            found += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-_TAIL:]]
        return "\n".join(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what was started here and runs yet."""
        everything: list[psutil.Process] = []
        for part in ("worker", "server"):
            with suppress(FileNotFoundError, psutil.NoSuchProcess):
                process = self.process(part)
                everything += [process, *process.children(recursive=True)]
        for process in everything:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(everything, timeout=10)
        self._client.close()


def outcome(status: RunStatus) -> list[tuple[int, str, str]]:
    return [(record.generation, record.weights_sha256, record.replay_sha256) for record in status.history]


class Undisturbed:
    """The same training by `eigen train`, in a store of its own; its flow runs are on the server that runs there."""

    NAME = "whole"
    """The run of `GENERATIONS`, whose pages are looked at; `longer` has more of them."""

    def __init__(self, operated: Operated, settings: Sequence[str]) -> None:
        self._operated = operated
        self._settings = settings
        self._store = operated.folder / "undisturbed"

    def outcome(self, generations: int) -> list[tuple[int, str, str]]:
        run = self.NAME if generations <= GENERATIONS else "longer"
        whole = max(generations, GENERATIONS)
        options = ["--store", str(self._store), "--generations", str(whole)]
        seconds = _COMMAND_SECONDS + whole * _GENERATION_SECONDS
        if not (self._store / run).exists():
            self._operated.eigen("train", "--run", run, *options, *self._settings, seconds=seconds)
        elif len(self._outcome(run)) < generations:
            self._operated.eigen("resume", run, *options, seconds=seconds)
        return self._outcome(run)[:generations]

    def _outcome(self, run: str) -> list[tuple[int, str, str]]:
        return outcome(status_of(str(self._store), run))
