"""What holds of every population method: the same bits out of any grouping and out of a resume, and what is planned."""

from pathlib import Path
from typing import Any

import pytest
import torch
from science_cases import method_with, random_panel, small_config
from training_cases import advance, content_of, saved_of

from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.run import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import Config, OffPolicyConfig, merge, values
from eigen_core.generation import (
    TrainingState,
    restore,
    snapshot,
    snapshot_form,
    start_training,
)
from eigen_core.learning.interface import learner_settings
from eigen_core.planning import Sizes
from eigen_core.reporting.plots import write_plots
from eigen_core.task import TaskData

METHODS = list(values.METHODS)


def config_with(method: str, **sections: Any) -> Config:
    return small_config(**merge({"evolution": method_with(method, sync_generations=1)}, sections))


def begin(config: Config) -> TrainingState:
    return start_training(config, random_panel(config))


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    config = config_with(method)
    state = advance(begin(config), 2)
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state))
    resumed = begin(config)
    loaded = directory.load_newest(snapshot_form(resumed))
    assert loaded is not None
    restore(resumed, loaded.snapshot)
    assert content_of(resumed) == content_of(state)
    assert content_of(advance(resumed, 2)) == content_of(advance(state, 2))
    assert len(write_plots(state.history, state.telemetry, tmp_path / "plots", state.learner.curves)) == 7


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.cpu
def test_groups_change_no_bit(method: str) -> None:
    # The last of four is a group of its own.
    populations = [{"size": 4, "group_size": size} for size in (0, 1, 3)]
    contents = [content_of(advance(begin(config_with(method, population=one)), 3)) for one in populations]
    assert contents[0] == contents[1] == contents[2]


POINTER: dict[str, dict[str, Any]] = {
    "genetic": {},
    "cem": {"distribution_variance": 0.01},
    "erl": {"sync_generations": 1},
    "pbt": {"sync_generations": 2},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thorough
def test_it_finds_agents_that_name_the_number_that_is_shown(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(values.TASKS, "pointer", "pointer_task:PointerTask")
    learner = {"gradient_steps": 20, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0, "tau": 0.1}
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
    config = small_config(
        population={"size": 6}, learner={**learner, **rates}, evolution={"method": method, **POINTER[method]}
    ).model_copy(update={"task": "pointer"})
    state = advance(start_training(config, None), 12)
    first, last = state.history[0], state.history[-1]
    assert max(last.fitness) > 0.75 * max(first.fitness)
    assert sum(last.fitness) > 0.85 * sum(first.fitness)


@pytest.mark.parametrize(("learner", "counts"), [("ddpg", "critic_steps"), ("sac", "steps")])
def test_the_critic_of_cem_and_its_optimizer_have_learned_in_all_generations(learner: str, counts: str) -> None:
    state = advance(begin(config_with("cem", learner={"algorithm": learner})), 3)
    learned = sum(record.learning is not None for record in state.history)
    assert learned > 1
    drawn = state.population.rows(slice(3, 5))
    steps = learner_settings(state.config, OffPolicyConfig).gradient_steps
    assert drawn.state[counts].tolist() == [learned * steps] * 2
    critic = state.task.critic_layout.size
    for tensor in (drawn.weights, drawn.state["targets"], drawn.state["second_moment"]):
        assert torch.equal(tensor[0, :critic], tensor[1, :critic])
    assert not torch.equal(drawn.state["targets"][:, :critic], drawn.weights[:, :critic])
    assert not torch.equal(drawn.weights[0, critic:], drawn.weights[1, critic:])


def test_a_distribution_that_no_run_can_have_is_refused() -> None:
    state = advance(begin(config_with("cem")), 1)
    saved = saved_of(state)
    saved.tensors["evolution"]["variance"][2] = -1.0
    with pytest.raises(UnfitSnapshotError, match=r"evolution\.safetensors holds variance from -1"):
        restore(begin(config_with("cem")), saved)


@pytest.mark.parametrize(("method", "learning"), [("cem", 3), ("erl", 0), ("erl", 5)])
def test_more_or_fewer_agents_than_can_learn_are_refused(method: str, learning: int) -> None:
    config = small_config(evolution={"method": method, "learning_agents": learning})
    with pytest.raises(InputError, match=rf"evolution\.learning_agents {learning} .*population\.size 5"):
        begin(config)
    with pytest.raises(InputError, match="learning_agents"):
        Sizes.of(config, TaskData(random_panel(config)))
