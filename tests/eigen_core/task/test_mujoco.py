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
    monkeypatch.chdir(tmp_path)


def begin(preset: str, group_size: int = 0) -> TrainingState:
    config = load_config(preset, [*SMALL, f"population.group_size={group_size}"])
    return start_training(config, open_data(config).content)


@pytest.mark.parametrize("preset", ["halfcheetah", "swimmer"])
@pytest.mark.cpu
def test_groups_and_a_resume_change_no_bit(preset: str) -> None:
    state = advance(begin(preset), 2)
    assert state.history[-1].learning is not None
    resumed = begin(preset, group_size=1)
    restore(resumed, snapshot(state))
    expected = content_of(advance(begin(preset, group_size=2), 3))
    assert content_of(advance(resumed, 1)) == expected
    assert content_of(advance(state, 1)) == expected


def test_a_warning_is_logged_once_and_written_to_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin("halfcheetah")
    mujoco = pytest.importorskip("mujoco")
    caplog.clear()
    unstable = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    for _ in range(2):
        data = mujoco.MjData(unstable)
        data.qvel[0] = float("nan")
        mujoco.mj_step(unstable, data)
    assert [record.message[:12] for record in caplog.records] == ["MuJoCo: Nan,"]
    assert not list(tmp_path.iterdir())
