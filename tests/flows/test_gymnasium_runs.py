"""The training flow with a Gymnasium environment: trained, gone on with and held out as the market is."""

from pathlib import Path
from typing import Any

import pytest
from flow_cases import NoDrawing, small_flow_config

import flows.plotting
from eigen_core.config import Config
from flows.runs import status_of
from flows.train import train_flow


def pendulum(store: Path, generations: int) -> Config:
    """Short episodes of the pendulum; the market's settings are those of the other tests, and not used."""
    sections: dict[str, Any] = {
        "task": "gym:Pendulum-v1",
        "environment": {"episode_steps": 20, "normalise_observations": True},
        "replay": {"minimum": 100},
    }
    return small_flow_config(store, generations=generations, **sections)


@pytest.mark.thorough
@pytest.mark.usefixtures("prefect_api")
def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.plotting, "Drawing", NoDrawing)
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
