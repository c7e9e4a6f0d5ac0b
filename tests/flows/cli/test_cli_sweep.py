"""Sweeps as processes: killed and continued, refused."""

import json
import os
import signal
from pathlib import Path

import pytest
from flow_cases import eigen_environment, run_eigen, small_settings, started, wait_for_generation

from eigen_core.config import DdpgConfig
from eigen_core.training.runs import runs_in, status_of

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def environment(session_folder: Path, prefect_api_url: str) -> dict[str, str]:
    """A user's environment, with a server."""
    return eigen_environment(session_folder / "sweep", PREFECT_API_URL=prefect_api_url)


COMMAND = [
    *("sweep", "mine", "--vary", "learner.gamma=0.9:0.99", "--vary", "learner.tau=0.01,0.02"),
    *("--seeds", "2", "--generations", "3", *small_settings()),
]


# A walk that was killed, in test_cli_walk.py, has its runs trained by the same functions.
@pytest.mark.slow
@pytest.mark.parametrize("trials", [1, 2])
def test_a_sweep_that_was_killed_goes_on_and_trains_nothing_twice(
    environment: dict[str, str], tmp_path: Path, trials: int
) -> None:
    pytest.importorskip("optuna")
    command = [*COMMAND, "--trials", str(trials)]
    store = tmp_path / "runs"
    with started([*command, "--json"], environment, tmp_path) as process:
        wait_for_generation(process, store, "mine-000-s2", 1)
        # Its children are in sessions of their own, and end by themselves.
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    first = status_of(str(store), "mine-000-s1").history
    ended = run_eigen([*command, "--json"], environment=environment, folder=tmp_path, timeout=400.0)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert runs_in(str(store)) == [f"mine-00{number}-s{seed}" for number in range(trials) for seed in (1, 2)]
    assert status_of(str(store), "mine-000-s1").history == first
    assert {trial["number"]: trial["state"] for trial in document["trials"]} == dict.fromkeys(range(trials), "finished")
    for trial in document["trials"]:
        reached = [status_of(str(store), run["run"]) for run in trial["runs"]]
        assert [status.config.seed for status in reached] == [1, 2]
        assert {status.generation for status in reached} == {3}
        assert trial["value"] == pytest.approx(sum(one.history[-1].champion_validation for one in reached) / 2)
        assert trial["spread"] > 0.0
        for status in reached:
            assert isinstance(status.config.learner, DdpgConfig)
            assert status.config.learner.gamma == trial["settings"]["learner.gamma"]
            assert status.config.learner.tau == trial["settings"]["learner.tau"]
    values = [trial["value"] for trial in document["trials"]]
    assert values == sorted(values, reverse=True)
    # Once more: nothing is left to do, and the table says what each has reached.
    table = run_eigen(command, environment=environment, folder=tmp_path)
    assert table.returncode == 0, table.stderr
    assert " ± " in table.stdout
    assert "begins" not in table.stdout


def test_what_a_trial_prints_as_it_is_refused_is_shown(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "mine", "--vary", "learner.tau=0.01", "--trials", "1", *small_settings()]
    refused = run_eigen([*command, "--data", "nowhere.csv"], environment=environment, folder=tmp_path, timeout=300.0)
    assert refused.returncode == 0, refused.stderr
    assert "Trial 0 was refused: " in refused.stdout
    assert "nowhere.csv" in refused.stdout
    assert runs_in(str(tmp_path / "runs")) == []


def test_bad_input_is_refused_in_a_sentence(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    hiding = tmp_path / "hiding"
    (hiding / "optuna").mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'optuna'\", name='optuna')"
    (hiding / "optuna" / "__init__.py").write_text(missing)
    without = {**environment, "PYTHONPATH": str(hiding)}
    for arguments, settings, sentence in (
        (["--vary", "learner.gamma=0.9:1.5"], environment, "learner.gamma"),
        (["--trials", "1"], without, "pip install 'eigen-trader[sweep]'"),
    ):
        ended = run_eigen(["sweep", "mine", *arguments], environment=settings, folder=tmp_path)
        assert ended.returncode == 2
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()
