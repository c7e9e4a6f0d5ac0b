"""The training flow with a Gymnasium environment: trained, gone on with and held out as the market is."""

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


@pytest.mark.thorough
def test_a_reward_that_is_no_number_is_named_and_no_resume_is_advised(tmp_path: Path) -> None:
    settings = small_settings(environment={"episode_steps": 9}, replay={"minimum": 20})
    task = "task=gym:uneven_environment:NotFiniteEnvironment"
    ended = run_eigen(
        ["train", "--run", "x", "--generations", "2", *settings, "--set", task],
        environment=eigen_environment(tmp_path / "prefect", PYTHONPATH=str(Path(uneven_environment.__file__).parent)),
        folder=tmp_path,
        code=1,
    )
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
