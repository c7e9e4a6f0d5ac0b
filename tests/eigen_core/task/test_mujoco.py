"""Environments of MuJoCo, where the extra `mujoco` is installed: their physics keeps nothing beyond a reset."""

from pathlib import Path

import pytest
from training_cases import advance, content_of

from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, restore, snapshot, start_training
from eigen_core.task import open_data

SMALL = (
    "environment.episode_steps=25",
    "environment.normalise_observations=true",
    "network.head_width=8",
    "population.size=3",
    "replay.minimum=50",
    "learner.gradient_steps=2",
    "learner.batch_size=8",
)


@pytest.fixture(autouse=True)
def _mujoco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    # It writes its log where it runs.
    monkeypatch.chdir(tmp_path)


def begin(preset: str, group_size: int = 0) -> TrainingState:
    config = load_config(preset, [*SMALL, f"population.group_size={group_size}"])
    return start_training(config, open_data(config).content)


@pytest.mark.parametrize("preset", ["halfcheetah", "swimmer"])
def test_groups_and_a_resume_change_no_bit(preset: str) -> None:
    state = advance(begin(preset), 2)
    assert state.history[-1].learning is not None
    resumed = begin(preset, group_size=1)
    restore(resumed, snapshot(state))
    expected = content_of(advance(begin(preset, group_size=2), 3))
    assert content_of(advance(resumed, 1)) == expected
    assert content_of(advance(state, 1)) == expected
