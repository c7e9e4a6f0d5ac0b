"""The training flow with a Gymnasium environment: trained, gone on with and held out as the market is."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import uneven_environment
from flow_cases import NoDrawing, eigen_environment, run_eigen, small_flow_config, small_settings

import eigen_core.run
from eigen_core.config import Config
from eigen_core.training.runs import status_of
from flows.server.flows import train_flow


def pendulum(store: Path, generations: int) -> Config:
    sections: dict[str, Any] = {
        "task": "gym:Pendulum-v1",
        "environment": {"episode_steps": 20, "normalise_observations": True},
        "replay": {"minimum": 100},
    }
    return small_flow_config(store, generations=generations, **sections)


def trained(folder: Path, environment: str) -> subprocess.CompletedProcess[str]:
    settings = small_settings(environment={"episode_steps": 9}, replay={"minimum": 20})
    support = str(Path(uneven_environment.__file__).parent)
    return run_eigen(
        ["train", "--run", "x", "--generations", "2", *settings, "--set", f"task=gym:uneven_environment:{environment}"],
        environment=eigen_environment(folder / "prefect", PYTHONPATH=support),
        folder=folder,
    )


@pytest.mark.thorough
def test_an_environment_of_the_old_api_is_refused_before_a_run_is_made(tmp_path: Path) -> None:
    ended = trained(tmp_path, "OldStepEnvironment")
    assert ended.returncode == 2, ended.stderr
    assert "step(action) returns 4 values" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_a_reward_that_is_no_number_is_named_and_no_resume_is_advised(tmp_path: Path) -> None:
    ended = trained(tmp_path, "NotFiniteEnvironment")
    assert ended.returncode == 1
    (said,) = (line for line in ended.stderr.splitlines() if line.startswith("eigen:"))
    assert "gave the reward nan, which is not finite, in step 3 of the episode" in said
    assert "Go on with" not in said
    assert "is tried again" not in ended.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("prefect_api")
def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen_core.run, "Drawing", NoDrawing)
    for run, ends in (("whole", [4]), ("stopped", [2, 4])):
        for generations in ends:
            assert train_flow(pendulum(tmp_path, generations), run, return_state=True).is_completed()
    whole, stopped = (status_of(str(tmp_path), run) for run in ("whole", "stopped"))
    assert stopped.history == whole.history
    assert whole.history[-1].learning is not None
    assert whole.history[-1].trading["steps"] == 20
    assert stopped.holdout is not None
    assert whole.holdout is not None
    assert stopped.holdout.champion_rewards == whole.holdout.champion_rewards
