"""A learner, an encoder and a task are each one file and one line: all else trains, saves and resumes them."""

from pathlib import Path
from typing import Any

import pytest
from science_cases import random_panel, small_config
from training_cases import advance, content_of, resumed_from

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import Config, registry
from eigen_core.generation import TrainingState, hold_out, snapshot, start_training
from eigen_core.machine.limits import Limit
from eigen_core.machine.usage import own_resident_bytes
from eigen_core.planning.plan import plan_of
from eigen_core.planning.probe import measure
from eigen_core.planning.sizes import Sizes
from eigen_core.reporting.plots import write_plots
from eigen_core.task import TaskData, open_data, task_class

POINTER = {"task": "pointer"}
JITTER = {"learner": "jitter"}
LAST_DAY = {"encoder": "last_day"}
BOTH = pytest.param({**POINTER, **JITTER}, marks=pytest.mark.thorough)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "pointer", "pointer_task:PointerTask")
    monkeypatch.setitem(registry.LEARNERS, "jitter", "jitter_learner:JitterLearner")
    monkeypatch.setitem(registry.ENCODERS, "last_day", "last_day_encoder:LastDayEncoder")


def config_with(chosen: dict[str, str], **sections: Any) -> Config:
    """A small configuration that names what was added, which only a file in the package could do by itself."""
    config = small_config(**sections)
    learner = config.learner.model_copy(update={"algorithm": chosen.get("learner", "ddpg")})
    network = config.network.model_copy(update={"encoder": chosen.get("encoder", "filter_bank")})
    task = chosen.get("task", "market")
    return config.model_copy(update={"task": task, "learner": learner, "network": network})


def begin(config: Config) -> TrainingState:
    return start_training(config, open_data(config).content if config.task == "pointer" else random_panel(config))


@pytest.mark.parametrize("chosen", [POINTER, JITTER, LAST_DAY, BOTH], ids=str)
def test_what_was_added_trains_and_resumes_to_the_same_bits(chosen: dict[str, str], tmp_path: Path) -> None:
    config = config_with(chosen)
    state = advance(begin(config), 3)
    assert state.history[-1].learning is not None
    directory = RunDirectory.create(tmp_path, "added", {})
    directory.save(snapshot(state))
    resumed = resumed_from(directory, begin, config)
    assert content_of(advance(resumed, 1)) == content_of(advance(state, 1))
    assert hold_out(state) is not None
    assert len(write_plots(state.history, state.telemetry, tmp_path / "plots", state.learner.curves)) == 5


def test_a_task_opens_its_own_data(tmp_path: Path) -> None:
    market = {"data": str(tmp_path / "nowhere.csv")}
    assert open_data(config_with(POINTER, market=market)).content is None
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        open_data(config_with(JITTER, market=market))


@pytest.mark.parametrize("chosen", [POINTER, JITTER, LAST_DAY, BOTH], ids=str)
@pytest.mark.cpu
def test_groups_change_no_bit_of_what_was_added(chosen: dict[str, str]) -> None:
    # The last of three is a group of its own.
    populations = [{"size": 3, "group_size": size} for size in (0, 1, 2)]
    contents = [content_of(advance(begin(config_with(chosen, population=one)), 2)) for one in populations]
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("chosen", [POINTER, JITTER, LAST_DAY, BOTH], ids=str)
def test_what_was_added_is_planned_and_measured_without_a_word_on_memory(chosen: dict[str, str]) -> None:
    config = config_with(chosen).model_copy(update={"device": "cpu"})
    data = open_data(config) if config.task == "pointer" else TaskData(random_panel(config))
    measured = measure(config, data, own_resident_bytes())
    assert min(measured.seconds.values()) > 0
    sizes = Sizes.of(config, data)
    plan = plan_of(config, sizes, measured, limits={"host": Limit(10_000_000_000, "here")})
    assert plan.fits
    assert {"population", "replay"} <= {part.name for part in plan.parts}
    assert sizes.population_bytes == begin(config).population.nbytes


def test_a_task_that_is_not_played_on_a_panel_has_no_shape() -> None:
    with pytest.raises(InputError, match="not played on a panel"):
        task_class(config_with(POINTER)).data_of_shape(config_with(POINTER), 1_000, 10, 10)
