"""The command line as a user runs it: a whole run, a run stopped in every way, and what is shown of them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import uneven_environment
from cli_cases import document, eigen
from flow_cases import run_eigen, small_settings, started, wait_for_generation
from known import known

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.machine.reproducibility import arithmetic_of
from eigen_core.task.replay import Replay
from eigen_core.task.transitions import market_columns
from eigen_core.trading.environment import PORTFOLIO_VALUES
from flows.server.state_directory import wait_until

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("whole")]

GENERATIONS = 6
SHOWN_KEYS = {*("run", "state", "generation", "generations", "config", "store", "computed_by", "history", "uploads")}
SAME_IN_EQUAL_RUNS = {
    *("generation", "best_fitness", "mean_fitness", "validation", "champion_validation", "champion_score"),
    *("champion_excess", "distinct_ancestors", "policy_distance", "transitions", "weights_sha256", "replay_sha256"),
}
HISTORY_KEYS = {*SAME_IN_EQUAL_RUNS, "seconds", "rss_peak_bytes"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


def train_arguments(name: str, generations: int = GENERATIONS) -> list[str]:
    return ["train", "--run", name, "--generations", str(generations), *small_settings()]


def shown(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = document("show", name, "--store", str(folder / "runs"))
    return found


def outcome(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in SAME_IN_EQUAL_RUNS} for row in found["history"]]


@pytest.fixture(scope="module")
def whole(environment: dict[str, str], folder: Path) -> None:
    ended = run_eigen(train_arguments("whole"), environment=environment, folder=folder, code=0)
    assert (ended.stderr, ended.stdout.count("\ngeneration ")) == ("", GENERATIONS)
    assert str(folder / "runs" / "whole" / "plots") in ended.stdout


@contextmanager
def halted(process: subprocess.Popen[str]) -> Iterator[None]:
    """Hold a process still."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def processes_of_group(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def tensorboard_steps(folder: Path) -> list[tuple[str, int]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    # The newest file replaces the earlier ones.
    path = max(folder.iterdir())
    return [(value.tag, event.step) for event in EventFileLoader(str(path)).Load() for value in event.summary.value]


def test_what_is_written_only_its_owner_may_read(folder: Path, session_folder: Path) -> None:
    modes = {
        path: path.stat().st_mode & 0o777
        for root in (folder, session_folder / "cli")
        for path in root.rglob("*")
        if not path.is_symlink()
    }
    assert any(path.name == "lock" for path in modes)
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_show_prints_the_agreed_json(folder: Path) -> None:
    found = shown("whole", folder)
    assert set(found) == SHOWN_KEYS
    assert [set(row) for row in found["history"]] == [HISTORY_KEYS] * GENERATIONS
    assert (found["run"], found["state"], found["store"]) == ("whole", "finished", str(folder / "runs"))
    assert found["generation"] == found["generations"] == GENERATIONS
    assert found["config"]["population"]["size"] == 4
    assert found["computed_by"] == arithmetic_of(torch.device("cpu")).model_dump()
    loaded = known(RunDirectory.open(folder / "runs", "whole").load_newest())
    last = found["history"][-1]
    columns = market_columns(20, PORTFOLIO_VALUES)
    replay = Replay.from_ring(known(loaded.snapshot.ring), columns, torch.device("cpu"))
    assert last["replay_sha256"] == tensors_sha256(replay.tensors())
    assert last["weights_sha256"] == tensors_sha256({"weights": loaded.snapshot.tensors["population"]["weights"]})
    assert last["seconds"] > 0
    assert last["rss_peak_bytes"] > 10**8


def test_a_run_that_is_stopped_and_killed_ends_like_one_that_is_not(
    environment: dict[str, str], folder: Path, prefect_api_url: str
) -> None:
    pytest.importorskip("tensorboard")
    store = folder / "runs"

    # Ctrl-C in a terminal reaches every process of the group.
    tracked = [*train_arguments("stopped"), "--set", "reporting.trackers=tensorboard"]
    with started(tracked, environment, folder) as process:
        wait_for_generation(process, store, "stopped", 1)
        with halted(process):
            assert shown("stopped", folder)["state"] == "running"
            refused = run_eigen(["resume", "stopped"], environment=environment, folder=folder, code=2)
            assert f"in use by process {process.pid}" in refused.stderr
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("eigen: Stopped. The last checkpoint is generation ")
    assert "eigen resume stopped" in errors
    assert errors.count("\n") == 1
    stopped = shown("stopped", folder)
    assert stopped["state"] == "unfinished"
    assert f"generation {stopped['generation']} in" in errors

    # The same command continues; nothing can be done about SIGKILL.
    with started(tracked, environment, folder) as process:
        wait_for_generation(process, store, "stopped", stopped["generation"] + 1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        assert wait_until(lambda: not processes_of_group(process.pid), 20.0)
    assert shown("stopped", folder)["state"] == "unfinished"

    # On a server of the user's own, for a change.
    served = {**environment, "PREFECT_API_URL": prefect_api_url}
    resumed = run_eigen(["resume", "stopped", *tracked[-2:]], environment=served, folder=folder, code=0)
    assert "continuing after generation" in resumed.stdout
    ended = shown("stopped", folder)
    assert ended["state"] == "finished"
    assert outcome(ended) == outcome(shown("whole", folder))
    # A tracker holds each value once, as if one process had written them.
    steps = tensorboard_steps(store / "stopped" / "tensorboard")
    best = [step for name, step in steps if name == "generation/best_fitness"]
    assert (best, len(set(steps))) == (list(range(1, GENERATIONS + 1)), len(steps))


@pytest.mark.parametrize("arguments", [["resume", "whole"], train_arguments("whole")], ids=["resume", "train"])
def test_a_finished_run_is_shown_again_at_once(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("flows.cli.training.train_here", lambda *_: pytest.fail("It was trained"))
    again = eigen(*arguments, code=0)
    assert f"is finished: generation {GENERATIONS} of {GENERATIONS}" in again.stdout


def test_runs_lists_every_run_of_a_store(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    row = next(row for row in document("runs") if row["run"] == "whole")
    assert (row["state"], row["generation"], row["generations"]) == ("finished", GENERATIONS, GENERATIONS)
    assert "whole" in eigen("runs").stdout
    assert "There are no runs in none" in eigen("runs", "--store", "none").stdout
    assert not (folder / "none").exists()


def test_a_reward_that_is_no_number_is_named_and_no_resume_is_advised(
    environment: dict[str, str], tmp_path: Path
) -> None:
    settings = small_settings(environment={"episode_steps": 9}, replay={"minimum": 20})
    task = "task=gym:uneven_environment:NotFiniteEnvironment"
    ended = run_eigen(
        ["train", "--run", "x", "--generations", "2", *settings, "--set", task],
        environment={**environment, "PYTHONPATH": str(Path(uneven_environment.__file__).parent)},
        folder=tmp_path,
        code=1,
    )
    (said,) = (line for line in ended.stderr.splitlines() if line.startswith("eigen:"))
    assert "gave the reward nan, which is not finite, in step 3 of the episode" in said
    assert "Go on with" not in said
    assert "is retried" not in ended.stderr
